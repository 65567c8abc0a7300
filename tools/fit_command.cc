// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
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
#include "suite/fit.h"
#include "suite/trace_program.h"
#include "weir/config.h"

namespace weir {
namespace {

struct FitCommand {
  std::string file, gpu;
  std::optional<int> device;
  ResultOptions result;
};

// What is asked of a file, and the answer.
struct Answer : suite::Fit {
  std::string program;
  Origin origin;  // devices
  std::optional<Bytes> gpu;
};

std::string name_of(const suite::FitWay& way) {
  return way.name + (way.is_recorded ? " (recorded so)" : "");
}

bool fits_somehow(const Answer& answer) {
  return !answer.gpu ||
         std::ranges::any_of(answer.ways, [](const suite::FitWay& way) { return *way.fits; });
}

// "24gib": "24GiB".
std::string with_usual_case(std::string size) {
  for (char& c : size) c = c == 'i' || c == 'I' ? 'i' : static_cast<char>(std::toupper(c));
  return size;
}

// Beyond it a factor says that next to nothing comes and goes, and no more.
constexpr int kMostTold = 100;

std::string fit_text(const Answer& answer) {
  const std::string devices = devices_text(answer.origin);
  std::string text = printable(answer.program) + (devices.empty() ? "" : " (" + devices + ")");
  const std::string live = in_words(answer.peak_live);
  text +=
      answer.shows_peak
          ? fmt::format(" needs {} {}", live,
                        answer.recorded.needs > 0_B ? "up to the failed request" : "at its peak")
          : fmt::format(" has {} live at the file's beginning, and may have had more before it",
                        live);
  if (answer.going > 0_B) {
    text += fmt::format(", {} of it for blocks that come and go", in_words(answer.going));
  }
  ReportTable table(answer.gpu ? "nrnr" : "nr");
  // Of a file without a peak a replay knows what was live alone; what was freed before may be
  // cached.
  std::vector<std::string> heading = {"allocator", !answer.shows_peak ? "holds at least"
                                                   : answer.gpu       ? "without a limit"
                                                                      : "holds at most"};
  if (answer.gpu) heading.insert(heading.end(), {"on " + in_words(*answer.gpu), "they may grow"});
  table.add(heading);
  for (const suite::FitWay& way : answer.ways) {
    std::vector<std::string> row = {name_of(way), in_words(way.held)};
    if (answer.gpu) {
      row.emplace_back(!*way.fits                               ? "out of memory"
                       : !answer.shows_peak && !way.is_recorded ? "may fit"
                       : way.held <= *answer.gpu                ? "fits"
                                                                : "fits, cache freed");
      row.push_back(!way.may_grow               ? "-"
                    : *way.may_grow > kMostTold ? fmt::format("over {} times", kMostTold)
                                                : fmt::format("{:.2f} times", *way.may_grow));
    }
    table.add(row);
  }
  std::string doubt = answer.doubt;
  if (std::ranges::any_of(answer.ways, &suite::FitWay::is_recorded)) {
    doubt +=
        " Recorded so: the program ran with these settings, and the row says no less than it held; "
        "the other rows are replays.";
  }
  if (!answer.shows_peak) {
    doubt +=
        " What was freed before the file's beginning is in no replay: a row that was not "
        "recorded counts live blocks alone, and can't be compared with one that was.";
  }
  if (!doubt.empty()) doubt = "\n" + wrapped(doubt, 0) + "\n";
  return wrapped(text + ".", 0) + "\n\n" + table.text() + doubt;
}

std::string fit_json(const Answer& answer) {
  Json ways = Json::array();
  for (const suite::FitWay& way : answer.ways) {
    Json row = {{"allocator", name_of(way)}, {"peak_held_bytes", way.held.count}};
    if (way.fits) row["fits"] = *way.fits;
    if (way.may_grow) row["may_grow"] = *way.may_grow;
    ways.push_back(std::move(row));
  }
  Json json = {{"program", answer.program},
               {"peak_live_bytes", answer.peak_live.count},
               {"going_bytes", answer.going.count},
               {"allocators", std::move(ways)}};
  if (answer.gpu) json["gpu_bytes"] = answer.gpu->count;
  json["shows_peak"] = answer.shows_peak;
  if (!answer.origin.devices.empty()) json["device_in_file"] = answer.origin.device;
  if (answer.recorded.held > 0_B) json["recorded_held_bytes"] = answer.recorded.held.count;
  return json_text(json);
}

Result<Answer> answer_to(const FitCommand& command, std::optional<Bytes> gpu) {
  ProgressBar bar("replaying " + command.file, true);
  const auto fifth = [&](std::uint64_t done, std::uint64_t all) { bar.update(done, 5 * all); };
  const Result<RecordedTrace> trace = read_any_trace(command.file, command.device, fifth);
  if (!trace) return trace.error();
  const suite::FitOptions options{
      .gpu = gpu,
      .progress = [&](std::uint64_t done, std::uint64_t all) { bar.update(1 + done, 1 + all); }};
  Result<suite::Fit> fit = suite::fit_of(*trace, options);
  if (!fit) return fit.error();
  Answer answer{*std::move(fit), suite::program_name(command.file), {}, gpu};
  answer.origin.device = trace->snapshot.device;
  if (trace->snapshot.devices.size() > 1) answer.origin.devices = trace->snapshot.devices;
  return answer;
}

ExitCode run(const FitCommand& command) {
  std::optional<Bytes> gpu;
  if (!command.gpu.empty()) {
    const Result<Bytes> bytes = parse_bytes(with_usual_case(command.gpu));
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
  Result<ResultOutput> output = ResultOutput::open(command.result, {{"FILE", command.file}});
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
  fit->add_option("--gpu", command->gpu,
                  "Memory that the program may have; 24GiB: about that of a card of 24 GB; 24GB: "
                  "24e9 bytes, 22.4GiB")
      ->transform(not_empty())
      ->type_name("SIZE");
  add_device_option(*fit, command->device);
  add_result_options(*fit, command->result);
  fit->footer(kFitFooter);
  fit->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
