// SPDX-License-Identifier: Apache-2.0
// The parts that timelines are made of: sets of fences, vector clocks, one timeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/stable_vector.h"
#include "core/time/fence_set.h"
#include "core/time/timeline.h"
#include "core/time/vector_clock.h"
#include "tests/unit/core_test_access.h"

namespace weir {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr TimelineId kA{0}, kB{1}, kC{2};

FenceSet set_of(std::initializer_list<Fence> fences) {
  FenceSet set;
  for (const Fence fence : fences) set.join(fence);
  return set;
}

std::vector<Fence> listed(const FenceSet& set) { return {set.begin(), set.end()}; }

TEST(FenceSet, KeepsTheLatestFenceOfEachTimeline) {
  FenceSet set = set_of({{kA, {3}}, {kB, {1}}, {kA, {2}}});
  EXPECT_THAT(listed(set), UnorderedElementsAre(Fence{kA, {3}}, Fence{kB, {1}}));
  set.join(set_of({{kA, {7}}, {kC, {1}}}));
  EXPECT_THAT(listed(set), UnorderedElementsAre(Fence{kA, {7}}, Fence{kB, {1}}, Fence{kC, {1}}));
  set.clear();
  EXPECT_TRUE(set.empty());
}

TEST(FenceSet, AgreesWithAMapForFewAndForMany) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    FenceSet set;
    std::map<std::uint32_t, Sequence> expected;
    for (int step = 0; step < 40; ++step) {
      const Fence fence{{static_cast<std::uint32_t>(random() % (1 + seed % 9))}, {random() % 20}};
      set.join(fence);
      Sequence& latest = expected.try_emplace(fence.timeline.value, fence.sequence).first->second;
      latest = std::max(latest, fence.sequence);
      if (random() % 16 == 0) {
        set.clear();
        expected.clear();
      }
      std::map<std::uint32_t, Sequence> actual;
      for (const Fence f : set) actual[f.timeline.value] = f.sequence;
      ASSERT_EQ(actual, expected);
      ASSERT_EQ(set.size(), expected.size());

      FenceSet copy = set;
      ASSERT_EQ(copy, set);
      copy.join({TimelineId{100}, {1}});
      ASSERT_FALSE(copy == set);
      FenceSet moved = std::move(copy);
      ASSERT_EQ(moved.size(), expected.size() + 1);
      ASSERT_TRUE(copy.empty());  // NOLINT(bugprone-use-after-move): it is said to be
      copy = moved;
      ASSERT_EQ(copy, moved);
    }
  }
}

TEST(VectorClock, AgreesWithAMapAndForgetsOnlyWhatIsDone) {
  const auto is_done = [](Fence fence) {
    return fence.timeline.value % 4 == 0 && fence.sequence <= Sequence{10};
  };
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::array<VectorClock, 3> clocks;
    std::array<std::map<std::uint32_t, Sequence>, 3> expected;
    for (int step = 0; step < 200; ++step) {
      const std::size_t i = random() % 3, other = random() % 3;
      if (random() % 3 == 0) {
        clocks[i].join(clocks[other], is_done);
        for (const auto& [timeline, sequence] : std::map(expected[other])) {
          expected[i][timeline] = std::max(expected[i][timeline], sequence);
        }
      } else {
        const Fence fence{{static_cast<std::uint32_t>(random() % 12)}, {1 + random() % 20}};
        clocks[i].raise(fence, is_done);
        Sequence& latest = expected[i][fence.timeline.value];
        latest = std::max(latest, fence.sequence);
      }
      for (const auto& [timeline, sequence] : expected[i]) {
        if (is_done({{timeline}, sequence})) continue;
        ASSERT_EQ(clocks[i].at({timeline}), sequence);
      }
      ASSERT_LE(clocks[i].size(), expected[i].size());
    }
  }
  VectorClock clock;
  clock.raise({{4}, {9}}, is_done);
  EXPECT_EQ(clock.size(), 0u);  // of no interest in the first place
}

TEST(VectorClock, ThatIsFullForgetsWhatIsDoneFirstAndNeverAPointThatItWasRaisedTo) {
  bool done = false;
  const auto is_done = [&](Fence fence) { return done && fence.timeline.value % 2 == 0; };
  VectorClock clock, other;
  for (std::uint32_t i = 0; i < 100; ++i) {
    const Fence point{{i * 37 % 100}, {i + 1}};
    clock.raise(point, is_done);
    EXPECT_EQ(clock.at(point.timeline), point.sequence);
  }
  EXPECT_EQ(clock.size(), VectorClock::kMost);
  EXPECT_TRUE(std::is_sorted(clock.begin(), clock.end(),
                             [](Fence a, Fence b) { return a.timeline < b.timeline; }));
  other.raise({{201}, {1}}, is_done);
  clock.join(other, is_done);
  EXPECT_EQ(clock.at({201}), Sequence{1});
  EXPECT_EQ(clock.size(), VectorClock::kMost);
  done = true;
  clock.raise({{203}, {1}}, is_done);
  EXPECT_EQ(clock.at({203}), Sequence{1});
  EXPECT_TRUE(std::none_of(clock.begin(), clock.end(), is_done));
}

TEST(Timeline, FindsTheEarliestEventThatCoversAPointAndWhatAnEventOfTheContextCovers) {
  std::mt19937_64 random(3);
  Timeline timeline{.id = kA, .stream = {}, .clock = {}, .events = {}};
  struct Plain {
    Sequence sequence, context;
  };
  std::vector<Plain> plain;
  Sequence next{1}, context{0};
  EXPECT_EQ(timeline.covering({1}), nullptr);
  for (int step = 0; step < 2'000; ++step) {
    if (plain.size() == Timeline::kMostEvents || (!plain.empty() && random() % 3 == 0)) {
      timeline.events.pop();
      plain.erase(plain.begin());
    }
    if (plain.size() < Timeline::kMostEvents && random() % 4 != 0) {
      timeline.events.push_slot() = {next, EventHandle{next.value}, context, {}};
      plain.push_back({next, context});
    }
    next.value += random() % 8 == 0 ? 3 : 1;
    context.value += random() % 5 == 0 ? 1 : 0;
    for (std::uint64_t back = 0; back < 80; ++back) {
      const Sequence wanted{next.value - std::min(back, next.value)};
      const auto earliest = std::find_if(plain.begin(), plain.end(),
                                         [&](const Plain& p) { return p.sequence >= wanted; });
      const Recorded* const found = timeline.covering(wanted);
      ASSERT_EQ(found == nullptr, earliest == plain.end());
      if (found != nullptr) {
        ASSERT_EQ(found->sequence, earliest->sequence);
        ASSERT_EQ(found->event.value, earliest->sequence.value);
      }
      const Sequence all{context.value - std::min(back, context.value)};
      const auto last = std::find_if(plain.rbegin(), plain.rend(),
                                     [&](const Plain& p) { return p.context < all; });
      ASSERT_EQ(timeline.covered_by(all), last == plain.rend() ? Sequence{0} : last->sequence);
    }
  }
}

TEST(StableVector, ElementsStayWhereTheyAreAndAreDestroyedOnce) {
  const auto counted = std::make_shared<int>(7);
  {
    StableVector<std::shared_ptr<int>> vector;
    vector.push_back(counted);
    const std::shared_ptr<int>* const first = &vector[0];
    for (int i = 1; i < 1'000; ++i)
      vector.push_back(i % 2 == 0 ? counted : std::make_shared<int>(i));
    EXPECT_EQ(&vector[0], first);
    EXPECT_EQ(vector.size(), 1'000u);
    for (std::size_t i = 0; i < 1'000; ++i)
      ASSERT_EQ(*vector[i], i % 2 == 0 ? 7 : static_cast<int>(i));
    EXPECT_EQ(counted.use_count(), 501);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

}  // namespace
}  // namespace weir
