// SPDX-License-Identifier: Apache-2.0
// The parts that timelines are made of: sets of fences, vector clocks, recorded events, ranges that
// wait for fences.
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
#include "core/time/fenced_ranges.h"
#include "core/time/recorded_events.h"
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
    std::vector<VectorClock::Entry> scratch;
    std::array<std::map<std::uint32_t, Sequence>, 3> expected;
    for (int step = 0; step < 200; ++step) {
      const std::size_t i = random() % 3, other = random() % 3;
      if (random() % 3 == 0) {
        clocks[i].join(clocks[other], is_done, scratch);
        for (const auto& [timeline, sequence] : std::map(expected[other])) {
          expected[i][timeline] = std::max(expected[i][timeline], sequence);
        }
      } else {
        const Fence fence{{static_cast<std::uint32_t>(random() % 12)}, {1 + random() % 20}};
        clocks[i].raise({fence.timeline, 0, fence.sequence}, is_done);
        Sequence& latest = expected[i][fence.timeline.value];
        latest = std::max(latest, fence.sequence);
      }
      ASSERT_TRUE(clocks[i].in_order());
      for (const auto& [timeline, sequence] : expected[i]) {
        if (is_done({{timeline}, sequence})) continue;
        ASSERT_EQ(clocks[i].at({timeline}), sequence);
      }
      ASSERT_LE(clocks[i].size(), expected[i].size());
    }
  }
  VectorClock clock;
  clock.raise({{4}, 0, {9}}, is_done);
  EXPECT_EQ(clock.size(), 0u);  // of no interest in the first place
}

TEST(RecordedEvents, FindsTheEarliestThatCoversAPointAndItsClock) {
  std::mt19937_64 random(3);
  RecordedEvents events;
  std::vector<std::pair<Sequence, std::uint64_t>> plain;
  std::uint64_t moment = 0;
  VectorClock clock;
  Sequence next{1};
  EXPECT_EQ(events.covering({1}), nullptr);
  for (int step = 0; step < 2'000; ++step) {
    if (events.full() || (!events.empty() && random() % 3 == 0)) {
      events.pop();
      plain.erase(plain.begin());
    }
    if (!events.full() && random() % 4 != 0) {
      if (step % 3 == 0) {
        ++moment;
        clock.raise({{1}, 0, {moment}}, [](Fence) { return false; });
        events.new_moment(clock);
      }
      events.push(next, EventHandle{next.value});
      plain.emplace_back(next, moment);
    }
    next.value += random() % 8 == 0 ? 3 : 1;
    for (std::uint64_t back = 0; back < 80; ++back) {
      const Sequence wanted{next.value - std::min(back, next.value)};
      const auto earliest = std::find_if(plain.begin(), plain.end(),
                                         [&](const auto& p) { return p.first >= wanted; });
      const Recorded* const found = events.covering(wanted);
      ASSERT_EQ(found == nullptr, earliest == plain.end());
      if (found == nullptr) continue;
      ASSERT_EQ(found->sequence, earliest->first);
      ASSERT_EQ(found->event.value, earliest->first.value);
      ASSERT_EQ(found->moment, earliest->second);
      if (found->moment > 0) {
        ASSERT_EQ(events.clock_of(*found).at({1}).value, earliest->second);
      }
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

FenceSet collected(const FencedRanges& ranges, std::uint64_t begin, std::uint64_t end) {
  FenceSet set;
  ranges.collect(begin, end, set);
  return set;
}

TEST(FencedRanges, CollectsTheFencesOfOverlappingBytesOnly) {
  FencedRanges ranges;
  ranges.add(10, 20, set_of({{kA, {1}}}));
  EXPECT_THAT(collected(ranges, 0, 10), IsEmpty());
  EXPECT_THAT(collected(ranges, 20, 30), IsEmpty());
  EXPECT_THAT(listed(collected(ranges, 19, 20)), UnorderedElementsAre(Fence{kA, {1}}));
  EXPECT_THAT(listed(collected(ranges, 0, 11)), UnorderedElementsAre(Fence{kA, {1}}));
}

TEST(FencedRanges, ALaterFenceOverTheSameBytesReplacesTheEarlier) {
  FencedRanges ranges;
  ranges.add(10, 20, set_of({{kA, {1}}}));
  ranges.add(0, 30, set_of({{kA, {2}}}));
  EXPECT_EQ(ranges.size(), 1u);
  ranges.add(0, 5, set_of({{kA, {3}}}));
  EXPECT_EQ(ranges.size(), 2u);  // the rest of the bytes still wait for the second
  EXPECT_THAT(listed(collected(ranges, 5, 6)), UnorderedElementsAre(Fence{kA, {2}}));
}

TEST(FencedRanges, ForgetsWhatLiesWhollyInsideAndNothingElse) {
  FencedRanges ranges;
  ranges.add(0, 10, set_of({{kA, {1}}}));
  ranges.add(10, 20, set_of({{kB, {1}}}));
  ranges.forget(0, 15);
  EXPECT_THAT(listed(collected(ranges, 0, 20)), UnorderedElementsAre(Fence{kB, {1}}));
  ranges.forget(10, 20);
  EXPECT_TRUE(ranges.empty());
}

TEST(FencedRanges, BrokenOnesAreNamed) {
  FencedRanges ranges;
  ranges.add(0, 10, set_of({{kA, {1}}}));
  ranges.add(5, 20, set_of({{kA, {2}}}));
  EXPECT_EQ(ranges.validate(20), std::nullopt);
  EXPECT_EQ(ranges.validate(19), "a fenced range ends beyond its bytes");
  const FencedRanges sound = ranges;
  TestAccess::ranges(ranges)[0].end = 0;
  EXPECT_EQ(ranges.validate(20), "a fenced range is empty");
  ranges = sound;
  TestAccess::ranges(ranges)[0].begin = 5;
  EXPECT_EQ(ranges.validate(20), "a fenced range is kept that a later one implies");
}

TEST(FencedRanges, AgreesWithAPlainListOverRandomPrograms) {
  struct Plain {
    std::uint64_t begin, end;
    Fence fence;
  };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    FencedRanges ranges;
    std::vector<Plain> plain;
    for (int step = 0; step < 300; ++step) {
      const std::uint64_t begin = random() % 40, end = begin + 1 + random() % 12;
      const Fence fence{{static_cast<std::uint32_t>(random() % 3)}, {1 + random() % 20}};
      if (const std::uint64_t kind = random() % 8; kind < 5) {
        ranges.add(begin, end, set_of({fence}));
        plain.push_back({begin, end, fence});
      } else if (kind < 6) {
        ranges.forget(begin, end);
        std::erase_if(plain, [&](Plain p) { return begin <= p.begin && p.end <= end; });
      } else {
        const auto done = [&](Fence other) {
          return other.timeline == fence.timeline && other.sequence <= fence.sequence;
        };
        ranges.forget_if(done);
        std::erase_if(plain, [&](Plain p) { return done(p.fence); });
      }
      ASSERT_EQ(ranges.validate(52), std::nullopt);
      for (std::uint64_t at = 0; at < 52; at += 3) {
        std::map<std::uint32_t, Sequence> expected, actual;
        for (const Plain& p : plain) {
          if (p.begin >= at + 3 || at >= p.end) continue;
          Sequence& latest = expected[p.fence.timeline.value];
          latest = std::max(latest, p.fence.sequence);
        }
        for (const Fence f : collected(ranges, at, at + 3)) actual[f.timeline.value] = f.sequence;
        ASSERT_EQ(actual, expected);
      }
    }
  }
}

}  // namespace
}  // namespace weir
