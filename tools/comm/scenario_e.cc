// SPDX-License-Identifier: Apache-2.0
// E: gradients all-reduced in buckets while the backward pass goes on, eagerly and in one graph.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/scenario.h"
#include "replay/units.h"
#include "weir/comm/bucketer.h"

namespace weir {
namespace {

using Model = BucketsOptions::Model;

constexpr std::uint64_t kTensors = 12;             // of a layer, each hidden * hidden of float32
constexpr unsigned kForward = 20, kBackward = 40;  // kernels of a layer
constexpr double kTokens = 4096;                   // in a step, on each rank
constexpr double kFlopsPerNanosecond = 400'000;
constexpr Nanoseconds kShortestKernel = 1500_ns;
constexpr Bytes kBucket = 25_MiB;
constexpr int kTimedSteps = 5;

// "Never slower": a run begins with the launch of a graph instead of that of a kernel, which shows,
// a little, however many steps follow.
constexpr double kNotLonger = 0.5;  // per cent

std::vector<std::uint64_t> tensors_of(const Model& model) {
  return std::vector<std::uint64_t>(kTensors * model.layers, model.hidden * model.hidden);
}
Bytes bytes_of_tensor(const Model& model) { return {4 * model.hidden * model.hidden}; }

class StepOfRank {
 public:
  StepOfRank(BenchRank& rank, const Model& model)
      : rank_(rank),
        model_(model),
        buckets_(need(Bucketer::create(*rank.comm, tensors_of(model), DataType::float32,
                                       rank.compute, {.bucket = kBucket}))) {
    step();  // one warm-up: what connects, and what is allocated once
  }

  std::size_t buckets() const { return buckets_.buckets(); }

  Nanoseconds time(bool captured) {
    return time_steps(rank_, kTimedSteps, captured, [this] { step(); });
  }

 private:
  // Matrix products: two operations for each parameter and token, forward; twice that, backward.
  Nanoseconds kernel_time(int passes, unsigned kernels) const {
    const double parameters = static_cast<double>(kTensors * model_.hidden * model_.hidden);
    const double time = 2 * passes * parameters * kTokens / kFlopsPerNanosecond / kernels;
    return std::max(kShortestKernel, Nanoseconds{static_cast<std::int64_t>(time)});
  }

  void step() {
    const Nanoseconds forward = kernel_time(1, kForward);
    for (std::uint64_t kernel = 0; kernel < model_.layers * kForward; ++kernel) {
      rank_.kernels->work(rank_.compute, {}, forward);
    }
    for (std::uint64_t layer = model_.layers; layer-- > 0;) backward(layer);
    need(buckets_.finish());
    const Bytes gradients = bytes_of_tensor(model_) * kTensors;
    const Nanoseconds optimizer{static_cast<std::int64_t>(gradients.count / 1000)};
    for (std::uint64_t layer = 0; layer < model_.layers; ++layer) {
      rank_.kernels->work(rank_.compute, use_gradients(layer, Reads),
                          std::max(kShortestKernel, optimizer));
    }
  }

  // The last kernel writes the layer's gradients.
  void backward(std::uint64_t layer) {
    const Nanoseconds time = kernel_time(2, kBackward);
    for (unsigned kernel = 1; kernel < kBackward; ++kernel) {
      rank_.kernels->work(rank_.compute, {}, time);
    }
    rank_.kernels->work(rank_.compute, use_gradients(layer, Writes), time);
    for (std::size_t tensor = (layer + 1) * kTensors; tensor-- > layer * kTensors;) {
      need(buckets_.ready(tensor));
    }
  }

  // `use`: Reads or Writes.
  std::vector<Access> use_gradients(std::uint64_t layer, Access (*use)(const void*, Bytes)) const {
    std::vector<Access> accesses;
    for (std::size_t tensor = layer * kTensors; tensor < (layer + 1) * kTensors; ++tensor) {
      accesses.push_back(use(buckets_.bucket_view(tensor), bytes_of_tensor(model_)));
    }
    return accesses;
  }

  BenchRank& rank_;
  const Model model_;
  Bucketer buckets_;
};

struct Times {
  Nanoseconds eager, captured;
  std::size_t buckets = 0;
  double shorter() const {  // per cent
    const double whole = static_cast<double>(std::max<std::int64_t>(eager.count, 1));
    return 100 * (1 - static_cast<double>(captured.count) / whole);
  }
};

}  // namespace

ScenarioReport run_scenario_e(const OpenRanks& open, const BucketsOptions& options) {
  ScenarioReport report{.name = "E", .title = "a step that drowns in launches and communication"};
  ScenarioTable table{
      .title = "A step of data-parallel training, gradients all-reduced in buckets of " +
               in_words(kBucket) + " while the backward pass goes on; one warm-up",
      .columns = {"hidden", "layers", "gradients", "buckets", "eager", "captured", "shorter"}};
  double first = 0, least = 100;
  for (const Model& model : options.models) {
    Times times;
    need(report.run(open, {.launch = options.launch}, [&](BenchRank& rank) {
      StepOfRank step(rank, model);
      const Nanoseconds eager = step.time(false), captured = step.time(true);
      if (rank.rank == 0) times = {eager, captured, step.buckets()};
    }));
    const Bytes gradients = bytes_of_tensor(model) * tensors_of(model).size();
    table.rows.push_back({std::to_string(model.hidden), std::to_string(model.layers),
                          in_words(gradients), std::to_string(times.buckets), in_words(times.eager),
                          in_words(times.captured), fmt::format("{:.1f} %", times.shorter())});
    if (table.rows.size() == 1) first = times.shorter();
    least = std::min(least, times.shorter());
  }
  report.tables.push_back(std::move(table));
  report.aims = {
      {"captured step shorter, at the smallest model", "%", Bound::at_least, 30, first},
      {"captured step longer, at the worst model", "%", Bound::at_most, kNotLonger, 0 - least}};
  report.notes.push_back(fmt::format(
      "kernels are lengths of time, at least {}, {} forward and {} backward in a layer. On "
      "simulated devices a launch takes {} of the host, on GPUs what it takes there",
      in_words(kShortestKernel), kForward, kBackward, in_words(options.launch)));
  return report;
}

}  // namespace weir
