// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "grammar.h"
#include "look/any_trace.h"
#include "look/report.h"
#include "option_checks.h"
#include "replay/json.h"
#include "replay/report_table.h"
#include "replay/units.h"
#include "suite/measure.h"
#include "suite/torch_model.h"
#include "suite/trace_program.h"
#include "weir/config.h"

namespace weir {
namespace {

struct FitCommand {
  std::string file, gpu;
  std::optional<int> device;
  ResultOptions result;
};

using MakeAllocator = std::function<suite::AllocatorKind(Bytes limit)>;

// One way to serve the program.
struct Way {
  std::string name;
  Bytes held;                      // at most, if there is memory enough
  std::optional<bool> fits;        // into the GPU's memory, with cached memory given back in time
  std::optional<double> may_grow;  // by about this factor the blocks that come and go
};

// The blocks that are freed before the program ends: activations and gradients go, weights and an
// optimizer's state stay.
struct Going {
  std::vector<bool> blocks;
  Bytes at_peak;
};

// What the file shows of PyTorch's allocator, which served the program when it was recorded.
struct Recorded {
  Origin origin;  // devices
  bool shows_peak = true;
  bool expandable_segments = false;
  Bytes max_split;
  Bytes held;  // at most; zero: not known
  Bytes ran_out_of;
  Bytes needs;  // at least, since a request failed; zero: none did

  bool has_settings(const suite::TorchSettings& settings) const {
    return held > 0_B && settings.expandable_segments == expandable_segments &&
           settings.max_split == max_split;
  }
};

struct Answer {
  suite::Program program;
  Recorded recorded;
  std::optional<Bytes> gpu;
  Going going;
  std::vector<Way> ways;
};

Going going_of(const suite::Program& program) {
  using Kind = suite::ProgramCall::Kind;
  Going going{.blocks = std::vector<bool>(program.blocks), .at_peak = {}};
  for (const suite::ProgramCall& call : program.calls) {
    if (call.kind == Kind::free && call.time_us < program.end_us) going.blocks[call.block] = true;
  }
  const auto peak = std::ranges::max_element(program.live) - program.live.begin();
  for (std::size_t i = 0; std::cmp_less_equal(i, peak) && i < program.calls.size(); ++i) {
    const suite::ProgramCall& call = program.calls[i];
    if (!going.blocks[call.block]) continue;
    const Bytes bytes = round_up(Bytes{call.bytes}, kGrain);
    if (call.kind == Kind::allocate) going.at_peak += bytes;
    if (call.kind == Kind::free) going.at_peak -= bytes;
  }
  return going;
}

bool fits_grown(const Answer& answer, double factor, const MakeAllocator& make) {
  suite::Program grown = answer.program;
  for (suite::ProgramCall& call : grown.calls) {
    if (!answer.going.blocks[call.block]) continue;
    call.bytes = static_cast<std::uint64_t>(static_cast<double>(call.bytes) * factor);
  }
  return measure_memory(make(*answer.gpu), grown).failure.empty();
}

// The largest factor that fits, to a sixtieth of what no allocator could do better than.
std::optional<double> growth(const Answer& answer, const MakeAllocator& make) {
  const Bytes live = answer.program.needs.peak_live;
  if (answer.going.at_peak == 0_B || *answer.gpu < live) return std::nullopt;
  double fits = 1;
  double most = 1 + static_cast<double>((*answer.gpu - live).count) /
                        static_cast<double>(answer.going.at_peak.count);
  constexpr int kSteps = 6;
  for (int i = 0; i < kSteps; ++i) {
    const double middle = (fits + most) / 2;
    (fits_grown(answer, middle, make) ? fits : most) = middle;
  }
  return fits;
}

Result<Way> way_of(std::string name, const Answer& answer, const MakeAllocator& make) {
  constexpr Bytes kNoLimit = Bytes{std::uint64_t{1} << 60};
  const suite::Outcome free = measure_memory(make(kNoLimit), answer.program);
  if (!free.failure.empty()) return Error(ErrorCode::invalid_input, name + ": " + free.failure);
  Way way{.name = std::move(name), .held = Bytes{free.peak_held}, .fits = {}, .may_grow = {}};
  if (!answer.gpu) return way;
  way.fits = way.held <= *answer.gpu || fits_grown(answer, 1, make);
  if (*way.fits) way.may_grow = growth(answer, make);
  return way;
}

// With its own settings the program held, or failed for want of, what the file shows: the model
// knows nothing of blocks and segments that were gone before the file begins.
void heed(const Recorded& recorded, const std::optional<Bytes>& gpu, Way& way) {
  way.name += " (recorded so)";
  way.held = std::max({way.held, recorded.held, recorded.needs});
  if (!gpu || (*gpu > recorded.ran_out_of && *gpu >= recorded.needs)) return;
  way.fits = false;
  way.may_grow.reset();
}

Result<Answer> answer_of(suite::Program program, Recorded recorded, std::optional<Bytes> gpu,
                         ProgressBar& bar) {
  Answer answer{.program = std::move(program),
                .recorded = std::move(recorded),
                .gpu = gpu,
                .going = {},
                .ways = {}};
  answer.going = going_of(answer.program);
  std::vector<suite::TorchSettings> settings = {
      {}, {.max_split = 128_MiB}, {.expandable_segments = true}};
  const suite::TorchSettings own{.expandable_segments = answer.recorded.expandable_segments,
                                 .max_split = answer.recorded.max_split};
  const auto is_own = [&](const auto& each) { return answer.recorded.has_settings(each); };
  if (is_own(own) && std::ranges::none_of(settings, is_own)) settings.push_back(own);
  for (const suite::TorchSettings& each : settings) {
    bar.update(1 + answer.ways.size(), 2 + settings.size());
    std::string name = "PyTorch";
    if (each.expandable_segments) name += ", expandable_segments:True";
    if (each.max_split != suite::TorchSettings{}.max_split) {
      name += fmt::format(", max_split_size_mb:{}", each.max_split / 1_MiB);
    }
    Result<Way> way = way_of(name, answer, [each](Bytes limit) {
      suite::TorchSettings limited = each;
      limited.limit = limit;
      return suite::torch_model_kind(limited);
    });
    if (!way) return way.error();
    if (is_own(each)) heed(answer.recorded, gpu, *way);
    answer.ways.push_back(*std::move(way));
  }
  Result<Way> weir =
      way_of("Weir", answer, [](Bytes limit) { return suite::weir_heap_kind(limit); });
  if (!weir) return weir.error();
  answer.ways.push_back(*std::move(weir));
  return answer;
}

bool fits_somehow(const Answer& answer) {
  return !answer.gpu || std::ranges::any_of(answer.ways, [](const Way& way) { return *way.fits; });
}

std::string fit_text(const Answer& answer) {
  const suite::Program& program = answer.program;
  const Recorded& recorded = answer.recorded;
  const std::string devices = devices_text(recorded.origin);
  std::string text = printable(program.name) + (devices.empty() ? "" : " (" + devices + ")");
  const std::string live = in_words(program.needs.peak_live);
  text += recorded.shows_peak
              ? fmt::format(" needs {} at its peak", live)
              : fmt::format(" has {} live at the file's beginning, and may have had more before it",
                            live);
  if (answer.going.at_peak > 0_B) {
    text += fmt::format(", {} of it for blocks that come and go", in_words(answer.going.at_peak));
  }
  ReportTable table(answer.gpu ? "lrlr" : "lr");
  std::vector<std::string> heading = {"allocator", "holds at most"};
  if (answer.gpu) heading.insert(heading.end(), {"on " + in_words(*answer.gpu), "they may grow"});
  table.add(heading);
  for (const Way& way : answer.ways) {
    std::vector<std::string> row = {way.name, in_words(way.held)};
    if (answer.gpu) {
      row.emplace_back(*way.fits ? "fits" : "out of memory");
      row.push_back(way.may_grow ? fmt::format("{:.2f} times", *way.may_grow) : "-");
    }
    table.add(row);
  }
  return wrapped(text + ".", 0) + "\n\n" + table.text();
}

std::string fit_json(const Answer& answer) {
  Json ways = Json::array();
  for (const Way& way : answer.ways) {
    Json row = {{"allocator", way.name}, {"peak_held_bytes", way.held.count}};
    if (way.fits) row["fits"] = *way.fits;
    if (way.may_grow) row["may_grow"] = *way.may_grow;
    ways.push_back(std::move(row));
  }
  Json json = {{"program", answer.program.name},
               {"peak_live_bytes", answer.program.needs.peak_live.count},
               {"going_bytes", answer.going.at_peak.count},
               {"allocators", std::move(ways)}};
  if (answer.gpu) json["gpu_bytes"] = answer.gpu->count;
  json["shows_peak"] = answer.recorded.shows_peak;
  if (!answer.recorded.origin.devices.empty()) {
    json["device_in_file"] = answer.recorded.origin.device;
  }
  if (answer.recorded.held > 0_B) json["recorded_held_bytes"] = answer.recorded.held.count;
  return json_text(json);
}

Result<Answer> answer_to(const FitCommand& command, std::optional<Bytes> gpu) {
  ProgressBar bar("replaying " + command.file, true);
  const auto fifth = [&](std::uint64_t done, std::uint64_t all) { bar.update(done, 5 * all); };
  const Result<RecordedTrace> trace = read_any_trace(command.file, command.device, fifth);
  if (!trace) return trace.error();
  suite::Program program = suite::program_of(*trace, suite::program_name(command.file), true);
  const PytorchTrace& file = trace->snapshot;
  const auto peak = std::ranges::max_element(program.live) - program.live.begin();
  Recorded recorded{.origin = {.device = file.device},
                    .shows_peak = std::cmp_greater_equal(peak, file.stacks.early_blocks),
                    .expandable_segments = file.expandable_segments,
                    .max_split = file.max_split.value_or(suite::TorchSettings{}.max_split),
                    .held = {},
                    .ran_out_of = {},
                    .needs = {}};
  if (!file.devices.empty()) {
    recorded.held = file.devices[static_cast<std::size_t>(file.device)].peak_reserved;
  }
  if (file.devices.size() > 1) recorded.origin.devices = file.devices;
  if (file.held && file.failed_with) recorded.ran_out_of = file.held->reserved + *file.failed_with;
  if (file.held && file.failed_request > 0_B) {
    // An expandable segment grows at its end, where its last piece may be free.
    const Bytes piece = file.expandable_segments ? file.held->largest_inactive : 0_B;
    recorded.needs =
        file.held->reserved + file.failed_request - std::min(file.failed_request, piece);
  }
  return answer_of(std::move(program), std::move(recorded), gpu, bar);
}

ExitCode run(const FitCommand& command) {
  const Status allowed = check_names({{"FILE", command.file}}, named_outputs(command.result));
  if (!allowed) return exit_code_of(allowed);
  std::optional<Bytes> gpu;
  if (!command.gpu.empty()) {
    const Result<Bytes> bytes = parse_bytes(command.gpu);
    if (!bytes)
      return exit_code_of(Error(bytes.error().code(), "--gpu: " + bytes.error().message()));
    if (*bytes < 1_MiB) {
      return exit_code_of(Error(ErrorCode::invalid_argument,
                                fmt::format("--gpu: {} is less than any GPU has; give a unit too, "
                                            "such as 24GiB, or leave the option out",
                                            in_words(*bytes))));
    }
    gpu = *bytes;
  }
  Result<ResultOutput> output = ResultOutput::open(command.result);
  if (!output) return exit_code_of(output.error());
  const Result<Answer> answer = answer_to(command, gpu);
  if (!answer) return exit_code_of(answer.error());
  const Status written = output->write(fit_text(*answer), [&] { return fit_json(*answer); });
  if (!written) return exit_code_of(written);
  return fits_somehow(*answer) ? ExitCode::ok : ExitCode::answer_is_no;
}

constexpr const char* kFitFooter = R"(
Runs the program, with the requests that failed, through models of PyTorch's allocator and through
Weir on the simulated GPU. Memory of CUDA itself, and of other programs, is not counted: leave it
room.

Examples:
  weir fit snapshot.pickle --gpu 24GiB
  weir fit bench/traces/gnn.trace.gz

docs/command.md says what all commands have in common. Exit codes: 0 it fits with one of them, or no
GPU was named; 1 it fits with none; 2 a bad command line; 3 a file that can't be read or written.)";

}  // namespace

void add_fit_command(CLI::App& app, ExitCode& exit_code) {
  auto command = std::make_shared<FitCommand>();
  CLI::App* fit = app.add_subcommand(
      "fit", "Say whether a program fits into a GPU, and with which allocator and settings");
  add_input(*fit, "FILE", command->file,
            "A trace, an RMM log, a recording, or a snapshot of PyTorch's; -: standard input");
  fit->add_option("--gpu", command->gpu, "Memory that the program may have, such as 24GiB")
      ->transform(not_empty())
      ->type_name("SIZE");
  add_device_option(*fit, command->device);
  add_result_options(*fit, command->result);
  fit->footer(kFitFooter);
  fit->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
