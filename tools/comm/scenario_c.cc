// SPDX-License-Identifier: Apache-2.0
// C: outputs of layers that are all-reduced on the communicator's stream, and dropped at once.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "comm/block.h"
#include "comm/scenario.h"
#include "replay/units.h"

namespace weir {
namespace {

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
  Bytes live;    // blocks, most, likewise
  Nanoseconds step;
  std::vector<Bytes> picture;  // memory held, and live, after each layer
};

class OverlapOfRank {
 public:
  OverlapOfRank(BenchRank& rank, const OverlapOptions& options, Way way)
      : rank_(rank), options_(options), way_(way) {}

  Status begin() {
    const Bytes bytes{2 * options_.width * options_.width};
    for (int layer = 0; layer < options_.layers; ++layer) {
      if (Status had = allocate(weights_, bytes); !had) return had;
    }
    before_ = rank_.heap.statistics();
    rank_.heap.reset_peaks();
    if (Status had = allocate(input_, options_.output); !had) return had;
    if (way_ == Way::host_sees) {
      Result<Stream> stream = rank_.kernels.new_stream();
      if (!stream) return std::move(stream).error();
      comm_ = *stream;
    }
    return rank_.kernels.finish(rank_.compute);
  }

  // The host does not wait from layer to layer, nor from step to step.
  Result<Outcome> run(bool captured) {
    GraphPool pool(rank_.heap);
    Graph graph;
    if (captured) {
      Result<Graph> made =
          capture_graph(rank_, pool, CaptureMode::global, [this] { return step(); });
      if (!made) return std::move(made).error();
      graph = *std::move(made);
    }
    const Nanoseconds begin = rank_.kernels.now();
    for (int number = 0; number < options_.steps; ++number) {
      Status ran = captured ? rank_.comm.launch(graph, rank_.compute) : step();
      if (!ran) return std::move(ran).error();
    }
    return end(begin);
  }

  Status finish() {
    if (Status seen = free_seen(true); !seen) return seen;
    weights_.clear();
    input_.clear();
    return {};
  }

 private:
  struct Kept {
    EventHandle done;
    Block block;
  };

  Status allocate(std::vector<Block>& into, Bytes bytes) {
    Result<Block> block = Block::allocate(rank_.heap, bytes, rank_.compute);
    if (!block) return std::move(block).error();
    const UsedMemory all{block->get(), bytes};
    into.push_back(*std::move(block));
    return rank_.kernels.work(rank_.compute, {}, {&all, 1}, 1_us);
  }

  Status step() {
    Work last;
    for (int layer = 0; layer < options_.layers; ++layer) {
      if (Status ran = run_layer(static_cast<std::size_t>(layer), last); !ran) return ran;
      const Statistics now = rank_.heap.statistics();
      picture_.push_back({now.reserved_bytes.current});
      picture_.push_back({now.live_bytes.current});
    }
    // The optimizer would need them all.
    if (way_ == Way::alone) return {};
    if (way_ == Way::host_sees) return rank_.heap.order(comm_, rank_.compute);
    if (Status waits = last.wait(rank_.compute); !waits) return waits;
    for (Block& block : step_) {
      if (Status freed = block.free(); !freed) return freed;
    }
    step_.clear();
    return {};
  }

  Status run_layer(std::size_t layer, Work& last) {
    if (Status seen = free_seen(false); !seen) return seen;
    Result<Block> output = Block::allocate(rank_.heap, options_.output, rank_.compute);
    if (!output) return std::move(output).error();
    const UsedMemory reads[] = {{input_.front().get(), options_.output},
                                {weights_[layer].get(), weights_[layer].bytes()}};
    const UsedMemory writes{output->get(), options_.output};
    if (Status ran = rank_.kernels.work(rank_.compute, reads, {&writes, 1}, options_.compute);
        !ran) {
      return ran;
    }
    const Operation sum{.kind = OperationKind::all_reduce,
                        .send = output->get(),
                        .receive = output->get(),
                        .count = options_.output.count / 2,
                        .type = DataType::bfloat16};
    if (way_ == Way::host_sees) return keep(sum, *std::move(output));
    if (way_ == Way::alone) return output->free();
    Result<Work> work = rank_.comm.run(sum, overlapped(rank_.compute));
    if (!work) return std::move(work).error();
    last = *std::move(work);
    if (way_ == Way::weir) return output->free();
    step_.push_back(*std::move(output));
    return {};
  }

  Status keep(const Operation& operation, Block block) {
    if (Status ordered = rank_.heap.order(rank_.compute, comm_); !ordered) return ordered;
    if (Status queued = rank_.nccl.enqueue(rank_.raw, {&operation, 1}, comm_); !queued)
      return queued;
    Result<EventHandle> done = rank_.device.create_event();
    if (!done) return std::move(done).error();
    if (Status recorded = rank_.device.record(*done, comm_); !recorded) return recorded;
    if (Status fenced = rank_.heap.fence(block.get(), comm_); !fenced) return fenced;
    kept_.push_back({*done, std::move(block)});
    return {};
  }
  // Those whose end the host sees now.
  Status free_seen(bool all) {
    while (!kept_.empty()) {
      const Result<bool> done = rank_.device.query(kept_.front().done);
      if (!done) return done.error();
      if (!*done && !all) return {};
      if (Status freed = kept_.front().block.free(); !freed) return freed;
      (void)rank_.device.destroy_event(kept_.front().done);
      kept_.pop_front();
    }
    return {};
  }

  Result<Outcome> end(Nanoseconds begin) {
    if (Status finished = rank_.kernels.finish(rank_.compute); !finished) {
      return std::move(finished).error();
    }
    const Nanoseconds took = rank_.kernels.now() - begin;
    const Statistics after = rank_.heap.statistics();
    const Bytes beyond{after.reserved_bytes.peak - before_.reserved_bytes.current};
    const Bytes live{after.live_bytes.peak - before_.live_bytes.current};
    return Outcome{beyond, live, {took.count / options_.steps}, std::move(picture_)};
  }

  BenchRank& rank_;
  const OverlapOptions& options_;
  const Way way_;
  std::vector<Block> weights_, input_, step_;
  Statistics before_;
  Stream comm_;
  std::deque<Kept> kept_;
  std::vector<Bytes> picture_;
};

// Of rank 0, in new ranks.
Result<Outcome> run_once(const OpenRanks& open, const OverlapOptions& options,
                         const Variant& variant, ScenarioReport& report) {
  RanksOptions wanted;
  wanted.raw = variant.way == Way::host_sees;
  wanted.launch = 3_us;
  Outcome first;
  Result<Status> ran = report.run(open, wanted, [&](BenchRank& rank) -> Status {
    OverlapOfRank overlap(rank, options, variant.way);
    if (Status begun = overlap.begin(); !begun) return begun;
    Result<Outcome> outcome = overlap.run(variant.captured);
    if (!outcome) return std::move(outcome).error();
    if (rank.rank == 0) first = *std::move(outcome);
    return overlap.finish();
  });
  if (!ran) return std::move(ran).error();
  if (!*ran) return ran->error();
  return first;
}

double ratio(Nanoseconds a, Nanoseconds b) {
  return static_cast<double>(a.count) / static_cast<double>(std::max<std::int64_t>(b.count, 1));
}
double mebibytes(Bytes bytes) { return static_cast<double>(bytes.count) / (1 << 20); }

// Where two runs begin to differ, and what stands there.
std::string first_difference(const std::vector<Bytes>& one, const std::vector<Bytes>& other) {
  const auto [mine, theirs] = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  const auto at = mine - one.begin();
  return fmt::format("after {} layers {} bytes {}, against {}", at / 2 + 1, mine->count,
                     at % 2 == 0 ? "held" : "live", theirs->count);
}

// Runs it, adds its row, and says how many of the runs gave the very bytes of the first.
Result<Outcome> run_variant(const OpenRanks& open, const OverlapOptions& options,
                            const Variant& variant, ScenarioTable& table, int& alike,
                            ScenarioReport& report) {
  Outcome first;
  alike = 0;
  for (int run = 0; run < options.runs; ++run) {
    Result<Outcome> outcome = run_once(open, options, variant, report);
    if (!outcome) return outcome;
    if (run == 0) first = *outcome;
    if (outcome->picture == first.picture) {
      ++alike;
    } else if (run == alike) {
      report.notes.push_back(fmt::format("{}: run {} differs from the first: {}", variant.name,
                                         run + 1,
                                         first_difference(first.picture, outcome->picture)));
    }
  }
  table.rows.push_back({variant.name, in_words(first.beyond), in_words(first.live),
                        in_words(first.step), fmt::format("{} of {}", alike, options.runs)});
  return first;
}

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

Result<ScenarioReport> run_scenario_c(const OpenRanks& open, const OverlapOptions& options) {
  ScenarioReport report{.name = "C", .title = "all-reduce inputs that live too long"};
  ScenarioTable table{
      .title = fmt::format(
          "{} layers {} wide, each with an output of {}, all-reduced, dropped at once; {} steps, "
          "and the host waits for none",
          options.layers, options.width, in_words(options.output), options.steps),
      .columns = {"", "beyond the weights", "of it blocks", "step", "runs of the same bytes"},
      .rows = {}};
  Outcome kept;  // eager; then captured
  for (const Variant& variant : kVariants) {
    int alike = 0;
    Result<Outcome> outcome = run_variant(open, options, variant, table, alike, report);
    if (!outcome) return std::move(outcome).error();
    if (variant.way == Way::weir) {
      const std::string name = variant.name;
      report.aims.push_back({name + ": memory beyond the weights", "MiB", Bound::at_most,
                             mebibytes(options.aim), mebibytes(outcome->beyond)});
      report.aims.push_back({name + ": step, against that which keeps every buffer", "times",
                             Bound::at_most, 1.02, ratio(outcome->step, kept.step)});
      report.aims.push_back({name + ": runs of the same bytes", "runs", Bound::exactly,
                             static_cast<double>(options.runs), static_cast<double>(alike)});
    }
    if (variant.way == Way::kept) kept = *std::move(outcome);
  }
  report.tables.push_back(std::move(table));
  report.notes.emplace_back("a run's bytes are the memory held and live after each layer");
  return report;
}

}  // namespace weir
