// SPDX-License-Identifier: Apache-2.0
#include "suite/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "look/stack_calls.h"
#include "replay/failed_mark.h"
#include "replay/units.h"
#include "suite/measure.h"
#include "suite/torch_model.h"
#include "suite/trace_program.h"

namespace weir::suite {
namespace {

using Kind = ProgramCall::Kind;
using MakeAllocator = std::function<AllocatorKind(Bytes limit)>;

constexpr double kMuchLess = 0.97;  // of what was held

std::vector<bool> going_blocks(const Program& program, const RecordedTrace& trace) {
  std::vector<bool> going(program.blocks);
  for (const ProgramCall& call : program.calls) {
    if (call.kind == Kind::free && call.time_us < program.end_us) going[call.block] = true;
  }
  // A file that ends when a request fails has no frees of what the request was one of.
  const TraceStacks& known = trace.snapshot.stacks;
  const CallStacks stacks = calls_of(known.frames, known.stacks);
  for (std::size_t block = 0; block < known.of_block.size() && !stacks.purposes.empty(); ++block) {
    if (stacks.purposes[known.of_block[block]] == weir::Purpose::activations) going[block] = true;
  }
  for (std::size_t block = trace.blocks.size(); block < going.size(); ++block) going[block] = true;
  return going;
}

// The program, as it is to be served.
class Served {
 public:
  Served(const RecordedTrace& trace, std::optional<Bytes> gpu)
      : program_(program_of(trace, trace.name, true)),
        gpu_(gpu),
        going_(going_blocks(program_, trace)) {
    Bytes going;
    for (std::size_t i = 0; i < program_.calls.size(); ++i) {
      const ProgramCall& call = program_.calls[i];
      const Bytes bytes = going_[call.block] ? round_up(Bytes{call.bytes}, kGrain) : 0_B;
      if (call.kind == Kind::allocate) going += bytes;
      if (call.kind == Kind::free) going -= bytes;
      if (program_.live[i] <= program_.live[peak_] && i > 0) continue;
      peak_ = i;
      going_at_peak_ = going;
    }
  }

  Bytes peak_live() const { return program_.needs.peak_live; }
  Bytes going_at_peak() const { return going_at_peak_; }
  std::size_t peak() const { return peak_; }  // the call
  std::size_t calls() const { return program_.calls.size(); }

  Result<FitWay> way(std::string name, const MakeAllocator& make) const {
    constexpr Bytes kNoLimit = Bytes{std::uint64_t{1} << 60};
    const Outcome free = measure_memory(make(kNoLimit), program_);
    if (!free.failure.empty()) return Error(ErrorCode::invalid_input, name + ": " + free.failure);
    FitWay way{.name = std::move(name), .held = Bytes{free.peak_held}};
    way.replayed = way.held;
    if (gpu_) way.fits = way.held <= *gpu_ || fits(1, make);
    return way;
  }

  // The largest factor for the blocks that come and go, to a sixtieth of what no allocator could do
  // better than, of a program that fits. None: no block comes and goes.
  std::optional<double> growth(const MakeAllocator& make) const {
    const std::optional<double> bound = factor_bound();
    if (!bound) return std::nullopt;
    double fit = 1, most = *bound;
    constexpr int kSteps = 6;
    for (int i = 0; i < kSteps; ++i) {
      const double middle = (fit + most) / 2;
      (fits(middle, make) ? fit : most) = middle;
    }
    return fit;
  }

  // A factor that fits, in hundredths, near the largest.
  std::optional<double> shrinking(const MakeAllocator& make) const {
    for (const double part : {1.0, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5}) {
      const double factor = std::floor(factor_bound().value_or(0) * part * 100) / 100;
      if (factor > 0 && fits(factor, make)) return factor;
    }
    return std::nullopt;
  }

 private:
  // With more than this no allocator could serve the program.
  std::optional<double> factor_bound() const {
    const Bytes stays = peak_live() - going_at_peak_;
    if (going_at_peak_ == 0_B || *gpu_ < stays) return std::nullopt;
    return static_cast<double>((*gpu_ - stays).count) / static_cast<double>(going_at_peak_.count);
  }

  bool fits(double factor, const MakeAllocator& make) const {
    Program grown = program_;
    for (ProgramCall& call : grown.calls) {
      if (!going_[call.block]) continue;
      const double bytes = static_cast<double>(call.bytes) * factor;
      call.bytes = std::max<std::uint64_t>(static_cast<std::uint64_t>(bytes), 1);
    }
    return measure_memory(make(*gpu_), grown).failure.empty();
  }

  const Program program_;
  const std::optional<Bytes> gpu_;
  const std::vector<bool> going_;  // by block
  std::size_t peak_ = 0;
  Bytes going_at_peak_;
};

TorchSettings own_settings(const RecordedFit& recorded) {
  return {.expandable_segments = recorded.expandable_segments, .max_split = recorded.max_split};
}

std::vector<TorchSettings> settings_for(const RecordedFit& recorded) {
  std::vector<TorchSettings> settings = {{}, {.max_split = 128_MiB}, {.expandable_segments = true}};
  const TorchSettings own = own_settings(recorded);
  if (recorded.held > 0_B && std::ranges::find(settings, own) == settings.end()) {
    settings.push_back(own);
  }
  return settings;
}

// As PYTORCH_CUDA_ALLOC_CONF has them.
std::string name_of(const TorchSettings& settings) {
  std::string name = settings.expandable_segments ? "expandable_segments:True" : "";
  if (settings.max_split != TorchSettings{}.max_split) {
    if (!name.empty()) name += ',';
    name += fmt::format("max_split_size_mb:{}", settings.max_split / 1_MiB);
  }
  return name.empty() ? "PyTorch" : "PyTorch, " + name;
}

MakeAllocator maker_of(TorchSettings settings) {
  return [settings](Bytes limit) mutable {
    settings.limit = limit;
    return torch_model_kind(settings);
  };
}
AllocatorKind make_weir(Bytes limit) { return weir_heap_kind(limit); }

RecordedFit recorded_by(const PytorchTrace& file) {
  RecordedFit recorded{.expandable_segments = file.expandable_segments,
                       .max_split = file.max_split.value_or(TorchSettings{}.max_split)};
  if (!file.devices.empty()) {
    recorded.held = file.devices[static_cast<std::size_t>(file.device)].peak_reserved;
  }
  if (file.held && file.failed_with) recorded.ran_out_of = file.held->reserved + *file.failed_with;
  if (file.held && file.failed_request > 0_B) {
    // An expandable segment grows at its end, where its last piece may be free.
    const Bytes piece = file.expandable_segments ? file.held->largest_inactive : 0_B;
    recorded.needs =
        file.held->reserved + file.failed_request - std::min(file.failed_request, piece);
  }
  return recorded;
}

// With its own settings the program held, or failed for want of, what the file shows: the model
// knows nothing of blocks and segments that were gone before the file begins.
void heed(const RecordedFit& recorded, const std::optional<Bytes>& gpu, FitWay& way) {
  way.is_recorded = true;
  way.held = std::max({way.held, recorded.held, recorded.needs});
  if (gpu && (*gpu <= recorded.ran_out_of || *gpu < recorded.needs)) way.fits = false;
}

Result<std::vector<FitWay>> ways_of(const Served& served, const RecordedFit& recorded,
                                    const FitOptions& options, bool with_growth) {
  std::vector<FitWay> ways;
  const std::vector<TorchSettings> settings = settings_for(recorded);
  const auto add = [&](std::string name, const MakeAllocator& make, bool is_recorded) -> Status {
    if (options.progress) options.progress(ways.size(), settings.size() + 1);
    Result<FitWay> way = served.way(std::move(name), make);
    if (!way) return way.error();
    if (is_recorded) heed(recorded, options.gpu, *way);
    if (with_growth && way->fits.value_or(false)) way->may_grow = served.growth(make);
    ways.push_back(*std::move(way));
    return {};
  };
  for (const TorchSettings& each : settings) {
    const bool is_own = recorded.held > 0_B && each == own_settings(recorded);
    if (Status added = add(name_of(each), maker_of(each), is_own); !added) return added.error();
  }
  if (Status added = add("Weir", make_weir, false); !added) return added.error();
  ways.back().is_pytorch = false;
  return ways;
}

// What one sets.
std::string setting(const FitWay& way) {
  constexpr std::string_view kPyTorch = "PyTorch, ";
  if (!way.name.starts_with(kPyTorch)) return "PyTorch's default settings";
  return "PYTORCH_CUDA_ALLOC_CONF=" + way.name.substr(kPyTorch.size());
}

// The same for the program that was recorded: without its own settings, where these are the
// default.
std::string setting(const FitWay& way, const PytorchTrace& file) {
  const std::string own = name_of(own_settings(recorded_by(file)));
  const bool unsets = way.name == "PyTorch" && own != way.name;
  constexpr std::string_view kWithout = "PyTorch without PYTORCH_CUDA_ALLOC_CONF=";
  return unsets ? std::string(kWithout) + own.substr(own.find(", ") + 2) : setting(way);
}

// Of the ways that `wanted` holds for the one that holds least; PyTorch's settings or Weir alone.
template <class Wanted>
const FitWay* tightest(const std::vector<FitWay>& ways, bool is_pytorch, const Wanted& wanted) {
  const FitWay* best = nullptr;
  for (const FitWay& way : ways) {
    if (way.is_pytorch != is_pytorch || !wanted(way)) continue;
    if (best == nullptr || way.held < best->held) best = &way;
  }
  return best;
}

// "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would hold 1.20 GiB, Weir 1.17 GiB", without
// those that are null. `most`: what they may hold.
std::string either(const FitWay* torch, const FitWay* weir, Bytes most, const PytorchTrace& file) {
  const std::string runs = file.devices.empty() ? "" : " (python -m weir run SCRIPT)";
  std::string text;
  for (const FitWay* way : {torch, weir}) {
    if (way == nullptr) continue;
    const bool is_first = text.empty();
    text += fmt::format("{}{} {}{}", is_first ? "" : ", ",
                        way->is_pytorch ? setting(*way, file) : way->name + runs,
                        is_first ? "would hold " : "", in_words(std::min(way->held, most)));
  }
  return text;
}

// "expandable_segments:True"; "default".
std::string own_setting(const FitWay& way) {
  const std::string whole = setting(way);
  const std::size_t value = whole.find('=') + 1;
  return value > 0 ? whole.substr(value) : "default";
}

// "; a batch at most 0.93 times as large gets past this request with PYTORCH_CUDA_ALLOC_CONF=..."
std::string smaller_batch(const Served& served, const RecordedFit& recorded,
                          const std::vector<FitWay>& ways) {
  const auto least = [](const FitWay& a, const FitWay& b) { return a.replayed < b.replayed; };
  const std::vector<TorchSettings> settings = settings_for(recorded);
  const auto best = std::min_element(ways.begin(), std::prev(ways.end()), least);
  const auto factor =
      served.shrinking(maker_of(settings[static_cast<std::size_t>(best - ways.begin())]));
  if (!factor) return {};
  std::string text =
      fmt::format("; a batch at most {:.2f} times as large gets past this request", *factor);
  if (best->is_recorded) return text;
  text += " with " + setting(*best);
  const auto own = std::ranges::find_if(ways, &FitWay::is_recorded);
  const bool has_own = own != ways.end() && own_settings(recorded) != TorchSettings{};
  return has_own ? text + " in place of " + own_setting(*own) : text;
}

// " Caution: by replay your own setting (...) would have fitted, and it did not.": where PyTorch
// failed, a replay does not. Then what filled the memory is not in the file, or a real device
// served it otherwise.
std::string doubt_of(const std::vector<FitWay>& ways, Bytes there) {
  const auto own = std::ranges::find_if(ways, &FitWay::is_recorded);
  if (own == ways.end() || *own->fits || own->replayed > there) return {};
  const bool one_fits =
      tightest(ways, true, [](const FitWay& way) { return *way.fits; }) != nullptr;
  return fmt::format(" {}: by replay your own setting ({}) would have fitted, and it did not.",
                     one_fits ? "Caution" : "Replays can't judge the others", own_setting(*own));
}

std::string unknown_help(const Served& served) {
  return fmt::format(
      "What helps is not known: the file does not say how much memory there was. {} is needed at "
      "least; weir fit FILE --gpu SIZE tries the settings.",
      in_words(served.peak_live()));
}

Help help_for_failure(const Served& served, const PytorchTrace& file, Bytes there,
                      const std::vector<FitWay>& ways) {
  const auto fit = [](const FitWay& way) { return *way.fits; };
  const std::string doubt = doubt_of(ways, there);
  // What a replay does not show, an expandable segment is the likeliest to stand.
  const auto* torch = tightest(ways, true, [&](const FitWay& way) {
    return !doubt.empty() && fit(way) && way.name.find("expandable") != std::string::npos;
  });
  if (torch == nullptr) torch = tightest(ways, true, fit);
  const std::string fits = either(torch, tightest(ways, false, fit), there, file);
  if (!fits.empty()) {
    return {.text = fmt::format("What helps: {}, with this request ({} were available).{}", fits,
                                in_words(there), doubt)};
  }
  if (!doubt.empty()) return {.text = "What helps is not known." + doubt};
  if (!file.failed_with) return {.text = unknown_help(served)};
  // Less may be live than there was, and every allocator hold more.
  const Bytes live = served.peak_live();
  const Bytes needs = live > there ? live : std::ranges::min(ways, {}, &FitWay::held).held;
  return {.text = fmt::format("No setting is enough alone: up to the failed request it needs {}, "
                              "and this program could have at most {}{}.",
                              in_words(needs), in_words(there),
                              smaller_batch(served, recorded_by(file), ways)),
          .needs_less = true};
}

std::optional<Help> help_for_peak(const Served& served, const PytorchTrace& file,
                                  const std::vector<FitWay>& ways) {
  const auto own = std::ranges::find_if(ways, &FitWay::is_recorded);
  const FitWay& now = own == ways.end() ? ways.front() : *own;
  const Bytes enough{static_cast<std::uint64_t>(static_cast<double>(now.held.count) * kMuchLess)};
  // What replays do not show they can't help with.
  if (now.replayed < enough) return std::nullopt;
  const auto is_less = [&](const FitWay& way) { return way.held <= enough; };
  const std::string less =
      either(tightest(ways, true, is_less), tightest(ways, false, is_less), enough, file);
  const std::string held =
      (now.is_recorded ? "PyTorch held " : "under PyTorch's default settings it would hold ") +
      in_words(now.held);
  if (!less.empty()) return Help{.text = fmt::format("What helps: {}; {}.", less, held)};
  return Help{.text = fmt::format("No setting helps: {}, and {} was live.", held,
                                  in_words(served.peak_live())),
              .needs_less = true};
}

}  // namespace

Result<Fit> fit_of(const RecordedTrace& trace, const FitOptions& options) {
  const PytorchTrace& file = trace.snapshot;
  const Served served(trace, options.gpu);
  Fit fit{.recorded = recorded_by(file),
          .shows_peak = served.peak() >= file.stacks.early_blocks,
          .peak_live = served.peak_live(),
          .going = served.going_at_peak()};
  Result<std::vector<FitWay>> ways = ways_of(served, fit.recorded, options, true);
  if (!ways) return ways.error();
  fit.ways = *std::move(ways);
  if (options.gpu) fit.doubt = doubt_of(fit.ways, *options.gpu);
  return fit;
}

std::optional<Help> help_of(const RecordedTrace& trace) {
  const PytorchTrace& file = trace.snapshot;
  const bool fails = std::ranges::any_of(
      trace.markers, [](const std::string& marker) { return failed_mark(marker).has_value(); });
  if (!fails && trace.blocks.size() == file.stacks.early_blocks) return std::nullopt;
  const RecordedFit recorded = recorded_by(file);
  FitOptions options;
  if (fails && file.held) options.gpu = file.held->reserved + file.failed_with.value_or(0_B);
  const Served served(trace, options.gpu);
  if (fails && !options.gpu) return Help{.text = unknown_help(served)};
  const Result<std::vector<FitWay>> ways = ways_of(served, recorded, options, false);
  if (!ways) return std::nullopt;
  return fails ? help_for_failure(served, file, *options.gpu, *ways)
               : help_for_peak(served, file, *ways);
}

}  // namespace weir::suite
