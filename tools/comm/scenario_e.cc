// E: gradients all-reduced in buckets while the backward pass goes on, eagerly and in one graph.
//
// The buckets are a plain loop here. weir::Bucketer (weir/comm/bucketer.h) takes its place, in
// StepOfRank::backward(), once it is there.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/block.h"
#include "comm/scenario.h"
#include "replay/units.h"

namespace weir {
namespace {

using Model = BucketsOptions::Model;

constexpr std::uint64_t kTensors = 12;  // of a layer, each hidden * hidden of float32

// "Never slower": a run begins with the launch of a graph instead of that of a kernel, which shows,
// a little, however many steps follow.
constexpr double kNotLonger = 0.5;  // per cent

struct Bucket {
  Bytes bytes;
  int complete_after = 0;  // the layer whose backward pass writes the last of it
};
// In the order that gradients come: the last layer's first.
std::vector<Bucket> buckets_of(const Model& model, Bytes most) {
  std::vector<Bucket> buckets;
  Bytes filled;
  for (int layer = model.layers - 1; layer >= 0; --layer) {
    for (std::uint64_t tensor = 0; tensor < kTensors; ++tensor) {
      filled += Bytes{4 * model.hidden * model.hidden};
      const bool last = layer == 0 && tensor + 1 == kTensors;
      if (filled < most && !last) continue;
      buckets.push_back({filled, layer});
      filled = {};
    }
  }
  return buckets;
}

class StepOfRank {
 public:
  StepOfRank(BenchRank& rank, const BucketsOptions& options, const Model& model)
      : rank_(rank),
        options_(options),
        model_(model),
        buckets_(buckets_of(model, options.bucket)),
        collectives_(rank.comm) {}

  Status begin() {
    for (const Bucket& bucket : buckets_) {
      Result<Block> block = Block::allocate(rank_.heap, bucket.bytes, rank_.compute);
      if (!block) return std::move(block).error();
      memory_.push_back(*std::move(block));
    }
    return step();  // one warm-up: what connects, and what is allocated once
  }

  Result<Nanoseconds> time_eager() {
    return time([&] { return step(); });
  }
  Result<Nanoseconds> time_captured() {
    GraphPool pool(rank_.heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank_.compute, CaptureMode::global);
    if (!capture) return std::move(capture).error();
    if (Status ran = step(); !ran) return std::move(ran).error();
    Result<Graph> graph = rank_.comm.end_capture(*capture);
    if (!graph) return std::move(graph).error();
    return time([&] { return rank_.comm.launch(*graph, rank_.compute); });
  }

 private:
  // Of one step; the host waits for the last.
  Result<Nanoseconds> time(const std::function<Status()>& run) {
    if (Status done = rank_.kernels.finish(rank_.compute); !done) return std::move(done).error();
    const Nanoseconds begin = rank_.kernels.now();
    for (int number = 0; number < options_.steps; ++number) {
      if (Status ran = run(); !ran) return std::move(ran).error();
    }
    if (Status done = rank_.kernels.finish(rank_.compute); !done) return std::move(done).error();
    return Nanoseconds{(rank_.kernels.now() - begin).count / options_.steps};
  }

  // Matrix products: two operations for each parameter and token, forward; twice that, backward.
  Nanoseconds kernel_time(int passes, int kernels) const {
    const double parameters = static_cast<double>(kTensors * model_.hidden * model_.hidden);
    const double flops = 2 * passes * parameters * static_cast<double>(options_.tokens);
    const auto time = static_cast<std::int64_t>(flops / options_.flops_per_nanosecond / kernels);
    return std::max(options_.shortest_kernel, Nanoseconds{time});
  }

  Status step() {
    const Nanoseconds forward = kernel_time(1, options_.kernels_forward);
    for (int kernel = 0; kernel < model_.layers * options_.kernels_forward; ++kernel) {
      if (Status ran = rank_.kernels.work(rank_.compute, {}, {}, forward); !ran) return ran;
    }
    Work last;
    if (Status ran = backward(last); !ran) return ran;
    // All of them ran on one stream: the last is the end of all.
    if (Status waits = last.wait(rank_.compute); !waits) return waits;
    for (const Block& bucket : memory_) {  // the optimizer
      const Range range{bucket.get(), bucket.bytes()};
      const Nanoseconds time{static_cast<std::int64_t>(bucket.bytes().count / 1000)};
      if (Status ran = rank_.kernels.work(rank_.compute, {&range, 1}, {},
                                          std::max(options_.shortest_kernel, time));
          !ran) {
        return ran;
      }
    }
    return {};
  }

  Status backward(Work& last) {
    const Nanoseconds time = kernel_time(2, options_.kernels_backward);
    std::size_t next = 0;
    for (int layer = model_.layers - 1; layer >= 0; --layer) {
      for (int kernel = 1; kernel < options_.kernels_backward; ++kernel) {
        if (Status ran = rank_.kernels.work(rank_.compute, {}, {}, time); !ran) return ran;
      }
      std::vector<Range> gradients;
      const std::size_t first = next;
      for (; next < buckets_.size() && buckets_[next].complete_after == layer; ++next) {
        gradients.push_back({memory_[next].get(), memory_[next].bytes()});
      }
      if (Status ran = rank_.kernels.work(rank_.compute, {}, gradients, time); !ran) return ran;
      for (std::size_t bucket = first; bucket < next; ++bucket) {
        const Block& block = memory_[bucket];
        Result<Work> work =
            collectives_.all_reduce(block.get(), block.get(), block.bytes().count / 4,
                                    DataType::float32, {ReduceOp::average}, rank_.compute);
        if (!work) return std::move(work).error();
        last = *std::move(work);
      }
    }
    return {};
  }

  BenchRank& rank_;
  const BucketsOptions& options_;
  const Model model_;
  const std::vector<Bucket> buckets_;
  std::vector<Block> memory_;
  Collectives collectives_;
};

struct Times {
  Nanoseconds eager, captured;
  double shorter() const {  // per cent
    const double whole = static_cast<double>(std::max<std::int64_t>(eager.count, 1));
    return 100 * (1 - static_cast<double>(captured.count) / whole);
  }
};

Result<Times> time_model(const OpenRanks& open, const BucketsOptions& options, const Model& model,
                         ScenarioReport& report) {
  RanksOptions wanted;
  wanted.launch = options.launch;
  Result<std::unique_ptr<Ranks>> ranks = open(wanted);
  if (!ranks) return std::move(ranks).error();
  report.note(**ranks);
  Times times;
  Status ran = (*ranks)->on_all([&](BenchRank& rank) -> Status {
    StepOfRank step(rank, options, model);
    if (Status begun = step.begin(); !begun) return begun;
    const Result<Nanoseconds> eager = step.time_eager();
    if (!eager) return eager.error();
    const Result<Nanoseconds> captured = step.time_captured();
    if (!captured) return captured.error();
    if (rank.rank == 0) times = {*eager, *captured};
    return {};
  });
  if (!ran) return std::move(ran).error();
  for (std::string& problem : (*ranks)->close()) report.problems.push_back(std::move(problem));
  return times;
}

}  // namespace

Result<ScenarioReport> run_scenario_e(const OpenRanks& open, const BucketsOptions& options) {
  ScenarioReport report{.name = "E", .title = "a step that drowns in launches and communication"};
  ScenarioTable table{
      .title = "A step of data-parallel training, gradients all-reduced in buckets of " +
               in_words(options.bucket) + " while the backward pass goes on; one warm-up",
      .columns = {"hidden", "layers", "gradients", "buckets", "eager", "captured", "shorter"},
      .rows = {}};
  double first = 0, least = 100;
  for (const Model& model : options.models) {
    const Result<Times> times = time_model(open, options, model, report);
    if (!times) return times.error();
    const auto layers = static_cast<std::uint64_t>(model.layers);
    const Bytes gradients{4 * kTensors * model.hidden * model.hidden * layers};
    table.rows.push_back(
        {std::to_string(model.hidden), std::to_string(model.layers), in_words(gradients),
         std::to_string(buckets_of(model, options.bucket).size()), in_words(times->eager),
         in_words(times->captured), fmt::format("{:.1f} %", times->shorter())});
    if (table.rows.size() == 1) first = times->shorter();
    least = std::min(least, times->shorter());
  }
  report.tables.push_back(std::move(table));
  report.aims = {
      {"captured step shorter, at the smallest model", "%", Bound::at_least, 30, first},
      {"captured step longer, at the worst model", "%", Bound::at_most, kNotLonger, -least}};
  report.notes.push_back(fmt::format(
      "on simulated devices kernels are lengths of time: {} of host time a launch, at least {} a "
      "kernel, {} kernels forward and {} backward in a layer. The figures follow from these",
      in_words(options.launch), in_words(options.shortest_kernel), options.kernels_forward,
      options.kernels_backward));
  return report;
}

}  // namespace weir
