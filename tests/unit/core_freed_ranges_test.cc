// SPDX-License-Identifier: Apache-2.0
// FreedRanges: who may still be using free bytes, range by range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "core/time/freed_ranges.h"
#include "tests/unit/core_last_use.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::Eq;
using testing::IsEmpty;
using testing::Optional;
using testing::UnorderedElementsAre;

constexpr TimelineId kA{0}, kB{1}, kC{2}, kD{3};
constexpr Address kFirst{1 << 30};

std::vector<Fence> listed(const FenceSet& set) { return {set.begin(), set.end()}; }

// The bytes from `begin` to `end` behind kFirst.
Range bytes(std::uint64_t begin, std::uint64_t end) {
  return {kFirst + kGrain * begin, kGrain * (end - begin)};
}

class FreedRangesTest : public testing::Test {
 protected:
  std::vector<Range> ranges(const FreedRanges& list, Range within = bytes(0, 1000)) const {
    std::vector<Range> all;
    list.visit(within, [&](const FreedRange& range) {
      all.push_back(range.range());
      return true;
    });
    return all;
  }
  // What a request of `taker`'s for these bytes waits for.
  std::vector<Fence> waits(const FreedRanges& list, Range within, TimelineId taker) const {
    FenceSet all;
    list.visit(within, [&](const FreedRange& range) {
      collect(range.use, taker, all);
      return true;
    });
    return listed(all);
  }
  const LastUse& use_at(const FreedRanges& list, std::uint64_t grain) const {
    const LastUse* found = nullptr;
    list.visit(bytes(grain, grain + 1), [&](const FreedRange& range) {
      found = &range.use;
      return true;
    });
    static const LastUse none;
    EXPECT_NE(found, nullptr) << "no range at grain " << grain;
    return found == nullptr ? none : *found;
  }
  void TearDown() override { EXPECT_EQ(list_.validate(bytes(0, 1000)), std::nullopt); }

  FreedRangePool pool_;
  FreedRanges list_;
};

TEST_F(FreedRangesTest, BytesThatWereNeverUsedHaveNoRange) {
  EXPECT_TRUE(list_.empty());
  EXPECT_EQ(list_.size(), 0u);
  EXPECT_THAT(ranges(list_), IsEmpty());
  EXPECT_THAT(waits(list_, bytes(0, 1000), kA), IsEmpty());
}

TEST_F(FreedRangesTest, OnlyRangesThatShareAByteAreVisited) {
  list_.append(pool_, bytes(10, 20), last_use(kA, 1));
  list_.append(pool_, bytes(30, 40), last_use(kA, 2));
  EXPECT_THAT(ranges(list_, bytes(0, 10)), IsEmpty());
  EXPECT_THAT(ranges(list_, bytes(0, 11)), ElementsAre(bytes(10, 20)));
  EXPECT_THAT(ranges(list_, bytes(19, 30)), ElementsAre(bytes(10, 20)));
  EXPECT_THAT(ranges(list_, bytes(20, 30)), IsEmpty());
  EXPECT_THAT(ranges(list_, bytes(20, 31)), ElementsAre(bytes(30, 40)));
  EXPECT_THAT(ranges(list_, bytes(40, 50)), IsEmpty());
  EXPECT_THAT(ranges(list_, bytes(15, 35)), ElementsAre(bytes(10, 20), bytes(30, 40)));
}

TEST_F(FreedRangesTest, AVisitEndsWhereTheVisitorSaysSo) {
  for (std::uint64_t i = 0; i < 3; ++i) list_.append(pool_, bytes(i, i + 1), last_use(kA, i));
  int visited = 0;
  EXPECT_FALSE(list_.visit(bytes(0, 3), [&](const FreedRange&) { return ++visited < 2; }));
  EXPECT_EQ(visited, 2);
  EXPECT_TRUE(list_.visit(bytes(0, 2), [](const FreedRange&) { return true; }));
}

TEST_F(FreedRangesTest, TheStreamThatFreedBytesNeedNotWaitForItself) {
  list_.append(pool_, bytes(0, 10), last_use(kA, 7, {{kB, {3}}}));
  EXPECT_THAT(waits(list_, bytes(0, 1), kA), ElementsAre(Fence{kB, {3}}));
  EXPECT_THAT(waits(list_, bytes(0, 1), kC), UnorderedElementsAre(Fence{kA, {7}}, Fence{kB, {3}}));
}

TEST_F(FreedRangesTest, NeighboursWithTheSameUsersAreOneRangeFreedWhenTheLaterWas) {
  list_.append(pool_, bytes(0, 10), {kA, {kA, {5}}, set_of({{kB, {1}}}), /*freed_at=*/100});
  list_.append(pool_, bytes(10, 15), {kA, {kA, {5}}, set_of({{kB, {1}}}), /*freed_at=*/102});
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 15)));
  EXPECT_EQ(use_at(list_, 0).freed_at, 102u);
  EXPECT_EQ(list_.size(), 1u);
  // The list goes on behind it.
  list_.append(pool_, bytes(15, 20), last_use(kC, 1));
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 15), bytes(15, 20)));
}

TEST_F(FreedRangesTest, RangesWithOtherUsersOrWithAGapBetweenStayApart) {
  list_.append(pool_, bytes(0, 10), last_use(kA, 5));
  list_.append(pool_, bytes(10, 20), last_use(kB, 5));               // another stream
  list_.append(pool_, bytes(20, 30), last_use(kB, 6));               // a later point
  list_.append(pool_, bytes(30, 40), last_use(kB, 6, {{kC, {1}}}));  // another user
  list_.append(pool_, bytes(41, 50), last_use(kB, 6, {{kC, {1}}}));  // not side by side
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 10), bytes(10, 20), bytes(20, 30), bytes(30, 40),
                                         bytes(41, 50)));
  EXPECT_THAT(waits(list_, bytes(20, 30), kA), ElementsAre(Fence{kB, {6}}));
}

TEST_F(FreedRangesTest, AListTakesOverTheRangesOfALaterOne) {
  FreedRanges later;
  list_.append(pool_, bytes(0, 10), last_use(kA, 1));
  later.append(pool_, bytes(20, 30), last_use(kB, 1));
  later.append(pool_, bytes(30, 40), last_use(kC, 1));
  list_.append(pool_, later);
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 10), bytes(20, 30), bytes(30, 40)));
  EXPECT_TRUE(later.empty());
  EXPECT_EQ(later.size(), 0u);

  FreedRanges none;
  list_.append(pool_, none);
  EXPECT_EQ(list_.size(), 3u);
  FreedRanges taker;
  taker.append(pool_, list_);
  EXPECT_THAT(ranges(taker), ElementsAre(bytes(0, 10), bytes(20, 30), bytes(30, 40)));
  taker.append(pool_, bytes(40, 50), last_use(kD, 1));
  EXPECT_EQ(taker.size(), 4u);
  EXPECT_EQ(taker.validate(bytes(0, 50)), std::nullopt);
  list_ = FreedRanges{};
}

TEST_F(FreedRangesTest, WhereTwoListsMeetTheSameUsersAreOneRange) {
  FreedRanges later;
  list_.append(pool_, bytes(0, 10), last_use(kA, 1));
  later.append(pool_, bytes(10, 20), last_use(kA, 1));
  list_.append(pool_, later);
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 20)));
  list_.append(pool_, bytes(25, 30), last_use(kB, 1));  // the last range is the joined one
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 20), bytes(25, 30)));
}

TEST_F(FreedRangesTest, ARangeBeforeTheOthersJoinsTheFirstWhereItSaysTheSame) {
  list_.prepend(pool_, bytes(20, 30), last_use(kA, 1));
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(20, 30)));
  list_.prepend(pool_, bytes(15, 20), {kA, {kA, {1}}, {}, /*freed_at=*/9});
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(15, 30)));
  EXPECT_EQ(use_at(list_, 29).freed_at, 9u);
  list_.prepend(pool_, bytes(10, 15), last_use(kB, 1));  // another stream
  list_.prepend(pool_, bytes(0, 9), last_use(kB, 1));    // not side by side
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 9), bytes(10, 15), bytes(15, 30)));
  EXPECT_EQ(list_.size(), 3u);
  list_.append(pool_, bytes(30, 40), last_use(kC, 1));
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 9), bytes(10, 15), bytes(15, 30), bytes(30, 40)));
}

TEST_F(FreedRangesTest, ARangeThatIsOneTooManyBeforeTheOthersJoinsNeighbours) {
  for (std::uint64_t i = 0; i < FreedRanges::kMost; ++i) {
    list_.append(pool_, bytes(100 + 2 * i, 101 + 2 * i), last_use(kA, 1 + i));
  }
  list_.prepend(pool_, bytes(0, 10), last_use(kB, 1));
  EXPECT_EQ(list_.size(), FreedRanges::kMost);
  EXPECT_THAT(ranges(list_, bytes(0, 20)), ElementsAre(bytes(0, 10)));
}

TEST_F(FreedRangesTest, WhatLiesBeforeOrBehindAPlaceIsForgotten) {
  const auto fill = [&] {
    list_.clear(pool_);
    list_.append(pool_, bytes(0, 10), last_use(kA, 1));
    list_.append(pool_, bytes(10, 20), last_use(kB, 1));
    list_.append(pool_, bytes(30, 40), last_use(kC, 1));
  };
  const auto before = [&](std::uint64_t at) {
    fill();
    list_.drop_before(pool_, kFirst + kGrain * at);
    return ranges(list_);
  };
  const auto from = [&](std::uint64_t at) {
    fill();
    list_.drop_from(pool_, kFirst + kGrain * at);
    return ranges(list_);
  };
  EXPECT_THAT(before(0), ElementsAre(bytes(0, 10), bytes(10, 20), bytes(30, 40)));
  EXPECT_THAT(before(10), ElementsAre(bytes(10, 20), bytes(30, 40)));
  EXPECT_THAT(before(15), ElementsAre(bytes(15, 20), bytes(30, 40)));
  EXPECT_THAT(before(25), ElementsAre(bytes(30, 40)));
  EXPECT_THAT(before(40), IsEmpty());
  EXPECT_EQ(list_.size(), 0u);
  EXPECT_THAT(from(40), ElementsAre(bytes(0, 10), bytes(10, 20), bytes(30, 40)));
  EXPECT_THAT(from(35), ElementsAre(bytes(0, 10), bytes(10, 20), bytes(30, 35)));
  EXPECT_THAT(from(25), ElementsAre(bytes(0, 10), bytes(10, 20)));
  EXPECT_THAT(from(10), ElementsAre(bytes(0, 10)));
  list_.append(pool_, bytes(50, 60), last_use(kD, 1));  // the list goes on behind it
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 10), bytes(50, 60)));
  EXPECT_THAT(from(0), IsEmpty());
}

TEST_F(FreedRangesTest, ASplitInsideARangeLeavesBothHalvesItsUsers) {
  FreedRanges later;
  list_.append(pool_, bytes(0, 10), last_use(kA, 1));
  list_.append(pool_, bytes(10, 20), last_use(kB, 4, {{kC, {2}}}));
  list_.append(pool_, bytes(20, 30), last_use(kA, 3));
  list_.split(pool_, kFirst + kGrain * 15, later);
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 10), bytes(10, 15)));
  EXPECT_THAT(ranges(later), ElementsAre(bytes(15, 20), bytes(20, 30)));
  for (const FreedRanges* half : {&list_, &later}) {
    EXPECT_THAT(waits(*half, bytes(10, 20), kA),
                UnorderedElementsAre(Fence{kB, {4}}, Fence{kC, {2}}));
  }
  EXPECT_EQ(later.validate(bytes(15, 30)), std::nullopt);
  EXPECT_EQ(list_.validate(bytes(0, 15)), std::nullopt);
  // Put together again, they are what they were.
  list_.append(pool_, later);
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(0, 10), bytes(10, 20), bytes(20, 30)));
}

TEST_F(FreedRangesTest, ASplitBetweenRangesMovesWholeOnes) {
  for (const std::uint64_t at : {20u, 25u, 30u}) {
    FreedRanges early, later;
    early.append(pool_, bytes(10, 20), last_use(kA, 1));
    early.append(pool_, bytes(30, 40), last_use(kB, 1));
    early.split(pool_, kFirst + kGrain * at, later);
    EXPECT_THAT(ranges(early), ElementsAre(bytes(10, 20)));
    EXPECT_THAT(ranges(later), ElementsAre(bytes(30, 40)));
    EXPECT_EQ(early.validate(bytes(0, at)), std::nullopt);
    EXPECT_EQ(later.validate(bytes(at, 40)), std::nullopt);
  }
}

TEST_F(FreedRangesTest, ASplitBeforeOrBehindAllMovesAllOrNone) {
  list_.append(pool_, bytes(10, 20), last_use(kA, 1));
  FreedRanges all, none;
  list_.split(pool_, kFirst + kGrain * 20, none);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.validate(bytes(0, 1)), std::nullopt);
  EXPECT_EQ(list_.size(), 1u);
  list_.split(pool_, kFirst + kGrain * 10, all);
  EXPECT_THAT(ranges(all), ElementsAre(bytes(10, 20)));
  EXPECT_TRUE(list_.empty());
  EXPECT_EQ(all.validate(bytes(10, 20)), std::nullopt);
  // What is empty begins anew.
  list_.append(pool_, bytes(1, 2), last_use(kB, 1));
  EXPECT_THAT(ranges(list_), ElementsAre(bytes(1, 2)));
}

TEST_F(FreedRangesTest, FencesAreAddedOnlyWhereBytesAreShared) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    list_.append(pool_, bytes(i * 10, i * 10 + 9), last_use(kA, i));
  }
  list_.add_fences(bytes(18, 21), set_of({{kB, {9}}, {kC, {2}}}));
  EXPECT_THAT(waits(list_, bytes(0, 10), kA), IsEmpty());
  EXPECT_THAT(waits(list_, bytes(10, 11), kA),
              UnorderedElementsAre(Fence{kB, {9}}, Fence{kC, {2}}));
  EXPECT_THAT(waits(list_, bytes(28, 29), kA),
              UnorderedElementsAre(Fence{kB, {9}}, Fence{kC, {2}}));
  EXPECT_THAT(waits(list_, bytes(30, 39), kA), IsEmpty());
  list_.add_fences(bytes(9, 10), set_of({{kD, {1}}}));  // between two ranges
  list_.add_fences(bytes(39, 90), set_of({{kD, {1}}}));
  EXPECT_THAT(waits(list_, bytes(0, 1000), kA),
              UnorderedElementsAre(Fence{kB, {9}}, Fence{kC, {2}}));
}

TEST_F(FreedRangesTest, ALaterFenceReplacesAnEarlierOneOfItsStream) {
  list_.append(pool_, bytes(0, 10), last_use(kA, 1, {{kB, {5}}}));
  list_.add_fences(bytes(0, 10), set_of({{kB, {4}}}));
  EXPECT_THAT(waits(list_, bytes(0, 10), kA), ElementsAre(Fence{kB, {5}}));
  list_.add_fences(bytes(0, 10), set_of({{kB, {6}}}));
  EXPECT_THAT(waits(list_, bytes(0, 10), kA), ElementsAre(Fence{kB, {6}}));
}

TEST_F(FreedRangesTest, RecordsThatWereClearedServeAgainWithoutWhatTheySaid) {
  std::set<const FreedRange*> records;
  for (std::uint64_t round = 0; round < 100; ++round) {
    list_.append(pool_, bytes(0, 10),
                 last_use(kA, 1, {{kB, {1}}, {kC, {1}}, {kD, {1}}, {TimelineId{4}, {1}}}));
    list_.append(pool_, bytes(10, 20), last_use(kB, 1));
    list_.visit(bytes(0, 20), [&](const FreedRange& range) {
      records.insert(&range);
      return true;
    });
    list_.clear(pool_);
    EXPECT_TRUE(list_.empty());
    EXPECT_EQ(list_.size(), 0u);
    list_.append(pool_, bytes(0, 10), last_use(kD, 2));
    ASSERT_THAT(waits(list_, bytes(0, 10), kA), ElementsAre(Fence{kD, {2}}));
    list_.clear(pool_);
  }
  EXPECT_LE(records.size(), 32u) << "100 rounds of two ranges each took more than one batch";
}

TEST_F(FreedRangesTest, BeyondTheMostTheTwoSmallestNeighboursOfOneStreamAreJoined) {
  // Of many pairs of streams: only two neighbours were freed by one stream, and not the smallest.
  for (std::uint64_t i = 0; i <= FreedRanges::kMost; ++i) {
    const TimelineId by{i == 7 ? 6 : static_cast<std::uint32_t>(i)};
    const std::uint64_t wide = i == 6 || i == 7 ? 30 : 20;
    list_.append(pool_, bytes(i * 30, i * 30 + wide), last_use(by, 100 + i));
  }
  EXPECT_EQ(list_.size(), FreedRanges::kMost);
  const std::vector<Range> all = ranges(list_);
  EXPECT_EQ(all.at(6), bytes(6 * 30, 8 * 30));
  // One point of the stream stands for both: the later.
  EXPECT_THAT(waits(list_, bytes(6 * 30, 6 * 30 + 1), TimelineId{50}),
              ElementsAre(Fence{{6}, {107}}));
  EXPECT_THAT(waits(list_, bytes(6 * 30, 6 * 30 + 1), TimelineId{6}), IsEmpty());
}

TEST_F(FreedRangesTest, JoinedRangesOfTwoStreamsMakeEachWaitForTheOther) {
  // Every range is another stream's: the two that cover the fewest bytes are joined.
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i <= FreedRanges::kMost; ++i) {
    const std::uint64_t wide = i == 11 ? 1 : i == 12 ? 2 : 30;
    list_.append(pool_, bytes(at, at + wide), last_use(TimelineId{i}, 100 + i, {{{90}, {i + 1}}}));
    at += wide;
  }
  EXPECT_EQ(list_.size(), FreedRanges::kMost);
  const Range both = bytes(11 * 30, 11 * 30 + 3);
  EXPECT_THAT(ranges(list_, both), ElementsAre(both));
  EXPECT_THAT(waits(list_, both, TimelineId{11}),
              UnorderedElementsAre(Fence{{12}, {112}}, Fence{{90}, {13}}));
  EXPECT_THAT(waits(list_, both, TimelineId{60}),
              UnorderedElementsAre(Fence{{11}, {111}}, Fence{{12}, {112}}, Fence{{90}, {13}}));
  const std::vector<Fence> of_second = waits(list_, both, TimelineId{12});
  EXPECT_THAT(of_second, testing::Contains(Fence{{11}, {111}}));
  EXPECT_EQ(use_at(list_, 11 * 30).freed_at, 112u);
}

// Where uses need not be told, every stream's releases are points of one timeline: that of the work
// of all streams.
TEST_F(FreedRangesTest, JoinedRangesOfTwoStreamsMakeEachWaitForAllStreamsWhereThoseStandForBoth) {
  constexpr TimelineId kAll{90};
  for (std::uint32_t i = 0; i <= FreedRanges::kMost; ++i) {
    const std::uint64_t begin = i * std::uint64_t{30}, wide = i == 11 ? 30 : i == 12 ? 1 : 29;
    list_.append(pool_, bytes(begin, begin + wide), {TimelineId{i}, {kAll, {100 + i}}, {}, i});
  }
  EXPECT_EQ(list_.size(), FreedRanges::kMost);
  const Range both = bytes(11 * 30, 12 * 30 + 1);
  EXPECT_THAT(ranges(list_, both), ElementsAre(both));
  EXPECT_THAT(waits(list_, both, TimelineId{11}), ElementsAre(Fence{kAll, {112}}));
  EXPECT_THAT(waits(list_, both, TimelineId{12}), ElementsAre(Fence{kAll, {112}}));
}

TEST_F(FreedRangesTest, TwoFullListsAreOneOfTheMost) {
  FreedRanges later;
  for (std::uint64_t i = 0; i < FreedRanges::kMost; ++i) {
    list_.append(pool_, bytes(i * 10, i * 10 + 5), last_use(kA, i));
    later.append(pool_, bytes(500 + i * 10, 500 + i * 10 + 5), last_use(kB, i));
  }
  EXPECT_EQ(list_.size(), FreedRanges::kMost);
  list_.append(pool_, later);
  EXPECT_EQ(list_.size(), FreedRanges::kMost);
  EXPECT_EQ(list_.validate(bytes(0, 1000)), std::nullopt);
  // What was whose is still known: the streams' halves were not joined with one another.
  EXPECT_THAT(waits(list_, bytes(0, 500), kA), IsEmpty());
  EXPECT_THAT(waits(list_, bytes(0, 500), kB), ElementsAre(Fence{kA, {FreedRanges::kMost - 1}}));
  EXPECT_THAT(waits(list_, bytes(500, 1000), kB), IsEmpty());
}

TEST_F(FreedRangesTest, ValidateNamesRangesBeyondTheirChunk) {
  list_.append(pool_, bytes(10, 20), last_use(kA, 1));
  EXPECT_EQ(list_.validate(bytes(10, 20)), std::nullopt);
  EXPECT_THAT(list_.validate(bytes(11, 20)), Optional(Eq("a freed range lies beyond its chunk")));
  EXPECT_THAT(list_.validate(bytes(10, 19)), Optional(Eq("a freed range lies beyond its chunk")));
}

}  // namespace
}  // namespace weir
