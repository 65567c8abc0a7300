// SPDX-License-Identifier: Apache-2.0
// Steps of sharded training on the simulated device: memory moves between the streams, and the
// streams that gather and reduce still run beside the one that computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/sharded/trainer.h"
#include "weir/device_heap.h"
#include "weir/sim_device.h"

namespace weir::sharded {
namespace {

enum class Heaps { one, one_a_stream };
enum class CheckRaces { no, yes };

constexpr std::size_t kFirst = 6;  // steps in which memory finds its places

struct Outcome {
  double ms = 0;  // of all steps but the first ones
  Bytes held, live;
};

Outcome train(const std::vector<double>& lengths, Heaps heaps, CheckRaces check) {
  SimDevice device({.check_races = check == CheckRaces::yes});
  const Streams streams{device.new_stream(), device.new_stream(), device.new_stream(),
                        device.new_stream()};
  std::map<std::uint64_t, std::unique_ptr<DeviceHeap>> all;
  const auto heap_of = [&](Stream stream) -> DeviceHeap& {
    auto& heap = all[heaps == Heaps::one ? 0 : stream.id];
    if (!heap) heap = std::make_unique<DeviceHeap>(device);
    return *heap;
  };
  Outcome outcome;
  {
    Trainer trainer(device, heap_of, streams, {});
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const Nanoseconds took = trainer.step(lengths[i]);
      if (i >= kFirst) outcome.ms += static_cast<double>(took.count) / 1e6;
    }
  }
  outcome.held = device.physical_peak();
  for (const auto& [stream, heap] : all) {
    const Statistics statistics = heap->statistics();
    outcome.live += Bytes{statistics.live_bytes.peak};
    EXPECT_EQ(statistics.live_blocks.current, 0);
    EXPECT_THAT(heap->validate(), testing::IsEmpty());
  }
  EXPECT_EQ(device.race_count(), 0u);  // of those that were looked for
  all.clear();
  EXPECT_EQ(device.live().events, 0u);
  return outcome;
}

double ratio(Bytes a, Bytes b) {
  return static_cast<double>(a.count) / static_cast<double>(b.count);
}

// Sequences of one length in every step; or, where that is 0, of lengths drawn with a seed.
struct Program {
  int length;
  unsigned seed;
  int steps = 30;
};

std::vector<double> lengths_of(const Program& program) {
  std::mt19937_64 random(program.seed);
  std::lognormal_distribution<double> draw(std::log(700.0), 0.5);
  std::vector<double> lengths;
  for (int i = 0; i < program.steps; ++i) {
    lengths.push_back(program.length > 0 ? program.length
                                         : std::clamp(std::round(draw(random)), 128.0, 1792.0));
  }
  return lengths;
}

class ShardedSteps : public testing::TestWithParam<Program> {};

TEST_P(ShardedSteps, TakeNoLongerForSharingMemoryAndHoldWhatIsLive) {
  const Outcome apart = train(lengths_of(GetParam()), Heaps::one_a_stream, CheckRaces::no);
  const Outcome one = train(lengths_of(GetParam()), Heaps::one, CheckRaces::no);
  const double time = one.ms / apart.ms, held = ratio(one.held, one.live);
  EXPECT_LE(time, 1.0075);
  EXPECT_LE(held, 1.032);
  EXPECT_LT(one.held, apart.held);
  std::cout << "time " << time << ", held over live " << held << " (" << ratio(apart.held, one.live)
            << " with a heap for each stream)\n";
}

std::string name_of(const testing::TestParamInfo<Program>& info) {
  return info.param.length > 0 ? "Length" + std::to_string(info.param.length)
                               : "Seed" + std::to_string(info.param.seed);
}

INSTANTIATE_TEST_SUITE_P(On, ShardedSteps,
                         testing::Values(Program{300, 0}, Program{700, 0}, Program{1000, 0},
                                         Program{1400, 0}, Program{1792, 0}, Program{0, 1},
                                         Program{0, 2}, Program{0, 3}),
                         name_of);

TEST(ShardedStep, HasNoRaces) {
  train(lengths_of({.length = 0, .seed = 4, .steps = 8}), Heaps::one, CheckRaces::yes);
}

}  // namespace
}  // namespace weir::sharded
