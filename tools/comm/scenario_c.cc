// SPDX-License-Identifier: Apache-2.0
// C: outputs of layers that are all-reduced on the communicator's stream, and dropped at once.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "comm/scenario.h"
#include "replay/units.h"

namespace weir {
namespace {

// Of one rank.
constexpr int kLayers = 8, kSteps = 10;
constexpr std::uint64_t kWidth = 8192;          // of a layer
constexpr Bytes kWeights{2 * kWidth * kWidth};  // of a layer, in bfloat16
constexpr Bytes kOutput = 64_MiB;               // of a layer

enum class Way {
  alone,      // no all-reduce
  weir,       // the block carries its fence
  kept,       // Weir, too; freed when the step ends
  host_sees,  // NCCL alone; freed when the host sees the end, as PyTorch's record_stream does
};
struct Variant {
  const char* name;
  Way way;
  bool captured = false;
};

struct Outcome {
  Bytes beyond;  // physical memory, most, beyond what was held before the first step
  Nanoseconds step;
  std::vector<Bytes> picture;  // memory held, and live, after each layer
};

class OverlapOfRank {
 public:
  OverlapOfRank(BenchRank& rank, const OverlapOptions& options, Way way)
      : rank_(rank), options_(options), way_(way) {
    for (int layer = 0; layer < kLayers; ++layer) weights_.push_back(written(kWeights));
    before_ = rank_.heap->statistics();
    rank_.heap->reset_peaks();
    input_ = written(kOutput);
    if (way_ == Way::host_sees) comm_ = rank_.kernels->new_stream();
    rank_.kernels->finish(rank_.compute);
  }
  ~OverlapOfRank() {
    for (const auto& [done, block] : kept_) (void)rank_.device->destroy_event(done);
  }

  // The host does not wait from layer to layer, nor from step to step.
  Outcome run(bool captured) {
    const Nanoseconds time = time_steps(rank_, kSteps, captured, [this] { step(); });
    const Bytes peak{rank_.heap->statistics().reserved_bytes.peak};
    return {peak - Bytes{before_.reserved_bytes.current}, time, std::move(picture_)};
  }

 private:
  Block written(Bytes bytes) {
    Block block = allocate(*rank_.heap, bytes, rank_.compute);
    const Access all = Writes(block.get(), bytes);
    rank_.kernels->work(rank_.compute, {&all, 1}, 1_us);
    return block;
  }

  void step() {
    Work last;
    std::vector<Block> kept;  // until the step ends
    for (const Block& weights : weights_) {
      free_seen();
      Block output = allocate(*rank_.heap, kOutput, rank_.compute);
      const Access layer[] = {Reads(input_.get(), kOutput), Reads(weights.get(), kWeights),
                              Writes(output.get(), kOutput)};
      rank_.kernels->work(rank_.compute, layer, options_.compute);
      reduce(std::move(output), kept, last);
      const Statistics now = rank_.heap->statistics();
      picture_.push_back({now.reserved_bytes.current});
      picture_.push_back({now.live_bytes.current});
    }
    // The optimizer would need them all.
    if (way_ == Way::host_sees) need(rank_.heap->order(comm_, rank_.compute));
    need(last.wait(rank_.compute));
  }

  void reduce(Block output, std::vector<Block>& kept, Work& last) {
    const Operation sum{.kind = OperationKind::all_reduce,
                        .send = output.get(),
                        .receive = output.get(),
                        .count = kOutput.count / 2,
                        .type = DataType::bfloat16};
    if (way_ == Way::weir || way_ == Way::kept) {
      last = need(rank_.comm->run(sum, overlapped(rank_.compute)));
    } else if (way_ == Way::host_sees) {
      need(rank_.heap->order(rank_.compute, comm_));
      need(rank_.nccl->enqueue(rank_.raw, {&sum, 1}, comm_));
      const EventHandle done = need(rank_.device->create_event());
      need(rank_.device->record(done, comm_));
      need(rank_.heap->fence(output.get(), comm_));
      kept_.emplace_back(done, std::move(output));
    }
    if (way_ == Way::kept) kept.push_back(std::move(output));
  }

  // Those whose end the host sees now.
  void free_seen() {
    while (!kept_.empty() && need(rank_.device->query(kept_.front().first))) {
      (void)rank_.device->destroy_event(kept_.front().first);
      kept_.pop_front();
    }
  }

  BenchRank& rank_;
  const OverlapOptions& options_;
  const Way way_;
  std::vector<Block> weights_;
  Block input_;
  Statistics before_;
  Stream comm_;
  std::deque<std::pair<EventHandle, Block>> kept_;  // each until the host sees its event
  std::vector<Bytes> picture_;
};

// Of rank 0, in new ranks.
Outcome run_once(const OpenRanks& open, const OverlapOptions& options, const Variant& variant,
                 ScenarioReport& report) {
  Outcome first;
  need(report.run(
      open, {.raw = variant.way == Way::host_sees, .launch = 3_us}, [&](BenchRank& rank) {
        Outcome outcome = OverlapOfRank(rank, options, variant.way).run(variant.captured);
        if (rank.rank == 0) first = std::move(outcome);
      }));
  return first;
}

double ratio(Nanoseconds a, Nanoseconds b) {
  return static_cast<double>(a.count) / static_cast<double>(std::max<std::int64_t>(b.count, 1));
}
double mebibytes(Bytes bytes) { return static_cast<double>(bytes.count) / (1 << 20); }

// The row that keeps every buffer comes before Weir's.
const Variant kVariants[] = {
    {"no all-reduce", Way::alone},
    {"Weir, every buffer kept for the step", Way::kept},
    {"Weir", Way::weir},
    {"freed when the host sees the end", Way::host_sees},
    {"no all-reduce, captured", Way::alone, true},
    {"Weir, every buffer kept, captured", Way::kept, true},
    {"Weir, captured", Way::weir, true},
};

}  // namespace

ScenarioReport run_scenario_c(const OpenRanks& open, const OverlapOptions& options) {
  ScenarioReport report{.name = "C", .title = "all-reduce inputs that live too long"};
  ScenarioTable table{
      .title = fmt::format(
          "{} layers {} wide, each with an output of {}, all-reduced, dropped at once; {} steps, "
          "and the host waits for none",
          kLayers, kWidth, in_words(kOutput), kSteps),
      .columns = {"", "beyond the weights", "step", "runs of the same bytes"}};
  Outcome kept;  // eager; then captured
  for (const Variant& variant : kVariants) {
    const Outcome outcome = run_once(open, options, variant, report);
    int alike = 1;  // runs that gave the very bytes of the first
    for (int run = 1; run < options.runs; ++run) {
      if (run_once(open, options, variant, report).picture == outcome.picture) ++alike;
    }
    table.rows.push_back({variant.name, in_words(outcome.beyond), in_words(outcome.step),
                          fmt::format("{} of {}", alike, options.runs)});
    if (variant.way == Way::weir) {
      const std::string name = variant.name;
      report.aims.push_back({name + ": memory beyond the weights", "MiB", Bound::at_most,
                             mebibytes(options.aim), mebibytes(outcome.beyond)});
      report.aims.push_back({name + ": step, against that which keeps every buffer", "times",
                             Bound::at_most, 1.02, ratio(outcome.step, kept.step)});
      report.aims.push_back({name + ": runs of the same bytes", "runs", Bound::exactly,
                             static_cast<double>(options.runs), static_cast<double>(alike)});
    }
    if (variant.way == Way::kept) kept = outcome;
  }
  report.tables.push_back(std::move(table));
  report.notes.emplace_back("a run's bytes are the memory held and live after each layer");
  return report;
}

}  // namespace weir
