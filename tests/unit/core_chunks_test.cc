// SPDX-License-Identifier: Apache-2.0
// Chunks: which bytes of the home row are free, used, or without memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "core/memory/chunks.h"
#include "tests/unit/core_last_use.h"

namespace weir {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

constexpr TimelineId kA{0}, kB{1}, kC{2};
constexpr auto kVacant = Chunk::State::vacant, kFree = Chunk::State::free,
               kUsed = Chunk::State::used;
constexpr Address kRow{(1_TiB).count};
constexpr Bytes kRegion = 1_GiB;

Range mib(std::uint64_t begin, std::uint64_t end) {
  return {kRow + 1_MiB * begin, 1_MiB * (end - begin)};
}

class ChunksTest : public testing::Test {
 protected:
  using Seen = std::tuple<Range, Chunk::State>;

  void SetUp() override { chunks_.add_region({kRow, kRegion}); }
  void TearDown() override { EXPECT_THAT(chunks_.validate(), IsEmpty()); }

  // All but the vacant end of the region.
  std::vector<Seen> seen() const {
    std::vector<Seen> seen;
    for (const Chunk* at = chunks_.first(); at != nullptr; at = at->after) {
      if (at->end() != kRow + kRegion || at->state != kVacant) {
        seen.emplace_back(at->range(), at->state);
      }
    }
    return seen;
  }
  std::vector<Range> free_listed() const {
    std::vector<Range> free;
    chunks_.free().visit_down([&](const Chunk& chunk) {
      free.push_back(chunk.range());
      return true;
    });
    return free;
  }
  std::vector<Range> vacant_listed() const {
    std::vector<Range> vacant;
    for (const Chunk* at = chunks_.vacant(); at != nullptr; at = at->next) {
      vacant.push_back(at->range());
    }
    return vacant;
  }
  // What a request of `taker`'s for these free bytes waits for.
  std::vector<Fence> waits(Range range, TimelineId taker) const {
    FenceSet all;
    chunks_.visit_freed(range, [&](const FreedRange& freed) {
      collect(freed.use, taker, all);
      return true;
    });
    return {all.begin(), all.end()};
  }

  Chunks chunks_;
};

TEST_F(ChunksTest, ANewRegionIsVacant) {
  EXPECT_THAT(vacant_listed(), ElementsAre(Range{kRow, kRegion}));
  EXPECT_THAT(free_listed(), IsEmpty());
  EXPECT_FALSE(chunks_.is_free({kRow, kGrain}));
}

TEST_F(ChunksTest, AnAddressIsFoundInItsChunkAndNowhereOutsideARegion) {
  chunks_.fill(mib(0, 8));
  chunks_.use(mib(2, 4));
  EXPECT_EQ(chunks_.at(kRow)->range(), mib(0, 2));
  EXPECT_EQ(chunks_.at(kRow + 2_MiB - 1_B)->range(), mib(0, 2));
  EXPECT_EQ(chunks_.at(kRow + 2_MiB)->range(), mib(2, 4));
  EXPECT_EQ(chunks_.at(kRow + 4_MiB)->range(), mib(4, 8));
  EXPECT_EQ(chunks_.at(kRow + kRegion - 1_B)->state, kVacant);
  EXPECT_EQ(chunks_.at(kRow - 1_B), nullptr);
  EXPECT_EQ(chunks_.at(kRow + kRegion), nullptr);
  EXPECT_EQ(chunks_.at(Address{}), nullptr);
}

TEST_F(ChunksTest, FilledMemoryIsFreeAndWasNeverUsed) {
  chunks_.fill(mib(0, 4));
  EXPECT_THAT(seen(), ElementsAre(Seen{mib(0, 4), kFree}));
  EXPECT_THAT(free_listed(), ElementsAre(mib(0, 4)));
  EXPECT_THAT(vacant_listed(), ElementsAre(mib(4, 1024)));
  EXPECT_THAT(waits(mib(0, 4), kA), IsEmpty());
}

TEST_F(ChunksTest, MemoryMayBeFilledInTheMiddleOfWhatIsVacant) {
  chunks_.fill(mib(10, 20));
  EXPECT_THAT(seen(), ElementsAre(Seen{mib(0, 10), kVacant}, Seen{mib(10, 20), kFree}));
  EXPECT_THAT(vacant_listed(), UnorderedElementsAre(mib(0, 10), mib(20, 1024)));
}

TEST_F(ChunksTest, MemoryFilledBesideFreeMemoryIsOneChunkWithIt) {
  chunks_.fill(mib(0, 4));
  chunks_.fill(mib(8, 12));
  chunks_.fill(mib(4, 6));  // at the end of one
  EXPECT_THAT(free_listed(), ElementsAre(mib(0, 6), mib(8, 12)));
  chunks_.fill(mib(6, 8));  // between two
  EXPECT_THAT(free_listed(), ElementsAre(mib(0, 12)));
  EXPECT_THAT(vacant_listed(), ElementsAre(mib(12, 1024)));
}

TEST_F(ChunksTest, MemoryFilledBesideUsedMemoryStaysApart) {
  chunks_.fill(mib(0, 4));
  chunks_.use(mib(0, 4));
  chunks_.fill(mib(4, 8));
  EXPECT_THAT(seen(), ElementsAre(Seen{mib(0, 4), kUsed}, Seen{mib(4, 8), kFree}));
}

TEST_F(ChunksTest, UsedBytesAreCutOutOfAFreeChunk) {
  chunks_.fill(mib(0, 12));
  chunks_.use(mib(4, 8));
  EXPECT_THAT(seen(),
              ElementsAre(Seen{mib(0, 4), kFree}, Seen{mib(4, 8), kUsed}, Seen{mib(8, 12), kFree}));
  chunks_.use(mib(0, 2));    // the begin of a chunk
  chunks_.use(mib(10, 12));  // the end of one
  chunks_.use(mib(2, 4));    // all of one
  EXPECT_THAT(free_listed(), ElementsAre(mib(8, 10)));
  EXPECT_THAT(seen(),
              ElementsAre(Seen{mib(0, 2), kUsed}, Seen{mib(2, 4), kUsed}, Seen{mib(4, 8), kUsed},
                          Seen{mib(8, 10), kFree}, Seen{mib(10, 12), kUsed}));
}

TEST_F(ChunksTest, OnlyBytesOfOneFreeChunkAreFree) {
  chunks_.fill(mib(0, 8));
  chunks_.use(mib(2, 4));
  EXPECT_TRUE(chunks_.is_free(mib(0, 2)));
  EXPECT_TRUE(chunks_.is_free({kRow + 1_MiB, kGrain}));
  EXPECT_TRUE(chunks_.is_free(mib(4, 8)));
  EXPECT_FALSE(chunks_.is_free({kRow, 2_MiB + kGrain}));  // the last grain is used
  EXPECT_FALSE(chunks_.is_free(mib(2, 3)));
  EXPECT_FALSE(chunks_.is_free({kRow + 4_MiB - kGrain, kGrain * 2}));  // the first is
  EXPECT_FALSE(chunks_.is_free(mib(7, 9)));                            // the end has no memory
  EXPECT_FALSE(chunks_.is_free(mib(8, 9)));
  EXPECT_FALSE(chunks_.is_free({kRow - kGrain, kGrain}));
}

TEST_F(ChunksTest, ReleasedBytesAreOneChunkWithFreeNeighboursOnBothSides) {
  chunks_.fill(mib(0, 12));
  for (const Range run : {mib(0, 4), mib(4, 8), mib(8, 12)}) chunks_.use(run);
  chunks_.release(mib(0, 4), last_use(kA, 1));
  chunks_.release(mib(8, 12), last_use(kB, 2));
  EXPECT_THAT(free_listed(), UnorderedElementsAre(mib(0, 4), mib(8, 12)));
  chunks_.release(mib(4, 8), last_use(kC, 3));
  EXPECT_THAT(free_listed(), ElementsAre(mib(0, 12)));
  // Each byte's own last user is still known.
  EXPECT_THAT(waits(mib(0, 4), kB), ElementsAre(Fence{kA, {1}}));
  EXPECT_THAT(waits(mib(4, 8), kB), ElementsAre(Fence{kC, {3}}));
  EXPECT_THAT(waits(mib(8, 12), kB), IsEmpty());
  EXPECT_THAT(waits(mib(3, 9), kC), UnorderedElementsAre(Fence{kA, {1}}, Fence{kB, {2}}));
}

TEST_F(ChunksTest, WhatIsLeftOfAChunkKeepsItsUsersAndTheRestForgetsThem) {
  chunks_.fill(mib(0, 12));
  chunks_.use(mib(0, 12));
  chunks_.release(mib(0, 12), last_use(kA, 5, {{kB, {2}}}));
  chunks_.use(mib(4, 8));
  for (const Range left : {mib(0, 4), mib(8, 12)}) {
    EXPECT_THAT(waits(left, kC), UnorderedElementsAre(Fence{kA, {5}}, Fence{kB, {2}}));
  }
  // The taker has waited: only its own use counts from now on.
  chunks_.release(mib(4, 8), last_use(kC, 1));
  EXPECT_THAT(waits(mib(4, 8), kA), ElementsAre(Fence{kC, {1}}));
  EXPECT_THAT(waits(mib(4, 8), kC), IsEmpty());
}

TEST_F(ChunksTest, MemoryThatIsNewAgainHasNoUsers) {
  chunks_.fill(mib(0, 12));
  chunks_.use(mib(0, 12));
  chunks_.release(mib(0, 12), last_use(kA, 5));
  chunks_.vacate(mib(4, 8));
  EXPECT_THAT(seen(), ElementsAre(Seen{mib(0, 4), kFree}, Seen{mib(4, 8), kVacant},
                                  Seen{mib(8, 12), kFree}));
  EXPECT_THAT(waits(mib(0, 4), kB), ElementsAre(Fence{kA, {5}}));
  EXPECT_THAT(waits(mib(8, 12), kB), ElementsAre(Fence{kA, {5}}));
  chunks_.fill(mib(4, 8));
  EXPECT_THAT(free_listed(), ElementsAre(mib(0, 12)));
  EXPECT_THAT(waits(mib(4, 8), kB), IsEmpty());
  EXPECT_THAT(waits(mib(0, 12), kB), ElementsAre(Fence{kA, {5}}));
}

TEST_F(ChunksTest, VacatedMemoryIsOneHoleWithItsNeighbours) {
  chunks_.fill(mib(0, 12));
  chunks_.vacate(mib(2, 4));
  chunks_.vacate(mib(6, 8));
  chunks_.vacate(mib(4, 6));
  EXPECT_THAT(vacant_listed(), UnorderedElementsAre(mib(2, 8), mib(12, 1024)));
  chunks_.vacate(mib(8, 12));
  chunks_.vacate(mib(0, 2));
  EXPECT_THAT(vacant_listed(), ElementsAre(Range{kRow, kRegion}));
  EXPECT_THAT(free_listed(), IsEmpty());
}

TEST_F(ChunksTest, FencesAddedToUsedBytesAreWaitedForOnceTheyAreFree) {
  chunks_.fill(mib(0, 8));
  chunks_.use(mib(2, 4));
  chunks_.add_fences(mib(2, 4), set_of({{kB, {3}}}));
  chunks_.add_fences(mib(2, 4), set_of({{kB, {4}}, {kC, {1}}}));
  chunks_.release(mib(2, 4), last_use(kA, 5, {{kC, {2}}}));
  EXPECT_THAT(waits(mib(2, 4), kA), UnorderedElementsAre(Fence{kB, {4}}, Fence{kC, {2}}));
  EXPECT_THAT(waits(mib(0, 2), kA), IsEmpty());
  // Not by whoever has the bytes after the next one.
  chunks_.use(mib(2, 4));
  chunks_.release(mib(2, 4), last_use(kA, 6));
  EXPECT_THAT(waits(mib(2, 4), kA), IsEmpty());
}

TEST_F(ChunksTest, FencesAddedToAPartOfAUsedChunkHoldForAllOfIt) {
  chunks_.fill(mib(0, 8));
  chunks_.use(mib(0, 8));
  chunks_.add_fences(mib(7, 8), set_of({{kB, {3}}}));
  chunks_.release(mib(0, 8), last_use(kA, 5));
  EXPECT_THAT(waits(mib(0, 1), kA), ElementsAre(Fence{kB, {3}}));
}

TEST_F(ChunksTest, FencesAddedToFreeBytesLeaveOutWhatWasNeverUsed) {
  chunks_.fill(mib(0, 12));
  chunks_.use(mib(4, 6));
  chunks_.release(mib(4, 6), last_use(kA, 1));
  chunks_.add_fences(mib(0, 12), set_of({{kB, {3}}}));
  EXPECT_THAT(waits(mib(0, 4), kA), IsEmpty());
  EXPECT_THAT(waits(mib(4, 6), kA), ElementsAre(Fence{kB, {3}}));
  EXPECT_THAT(waits(mib(6, 12), kA), IsEmpty());
}

TEST_F(ChunksTest, FencesAreAddedToAllChunksOfARangeAndToNoOthers) {
  chunks_.fill(mib(0, 16));
  for (const Range run : {mib(0, 4), mib(4, 8), mib(8, 12), mib(12, 16)}) chunks_.use(run);
  chunks_.release(mib(4, 8), last_use(kA, 1));
  chunks_.vacate(mib(6, 8));  // a hole is passed over
  chunks_.add_fences(mib(5, 12), set_of({{kB, {3}}}));
  for (const Range run : {mib(0, 4), mib(8, 12), mib(12, 16)})
    chunks_.release(run, last_use(kA, 2));
  EXPECT_THAT(waits(mib(0, 4), kA), IsEmpty());
  EXPECT_THAT(waits(mib(4, 6), kA), ElementsAre(Fence{kB, {3}}));
  EXPECT_THAT(waits(mib(8, 12), kA), ElementsAre(Fence{kB, {3}}));
  EXPECT_THAT(waits(mib(12, 16), kA), IsEmpty());
}

TEST_F(ChunksTest, AVisitOfFreedRangesEndsWhereTheVisitorSaysSo) {
  chunks_.fill(mib(0, 4));
  for (std::uint64_t i = 0; i < 4; ++i) chunks_.use(mib(i, i + 1));
  for (std::uint64_t i = 0; i < 4; ++i) chunks_.release(mib(i, i + 1), last_use(kA, i + 1));
  int visited = 0;
  EXPECT_FALSE(chunks_.visit_freed(mib(0, 4), [&](const FreedRange&) { return ++visited < 3; }));
  EXPECT_EQ(visited, 3);
  EXPECT_TRUE(chunks_.visit_freed(mib(0, 4), [](const FreedRange&) { return true; }));
  // Where nothing is reserved nothing was used.
  EXPECT_TRUE(chunks_.visit_freed({kRow - 1_MiB, 1_MiB}, [](const FreedRange&) { return false; }));
}

TEST_F(ChunksTest, RegionsAreFoundByAddressInWhateverOrderTheyCame) {
  const Address below = kRow - 1_TiB + 2_MiB, above = kRow + 8_TiB;
  chunks_.add_region({above, 64_MiB});
  chunks_.add_region({below, 64_MiB});
  for (const Address region : {below, kRow, above}) {
    chunks_.fill({region, 4_MiB});
    EXPECT_TRUE(chunks_.is_free({region, 4_MiB}));
  }
  EXPECT_EQ(chunks_.first()->begin, below);
  EXPECT_EQ(chunks_.at(below + 64_MiB), nullptr);
  EXPECT_EQ(chunks_.at(above - 1_B), nullptr);
  EXPECT_EQ(free_listed().size(), 3u);
}

TEST_F(ChunksTest, ChunksOfTwoRegionsAreNotMergedAcrossTheGap) {
  chunks_.add_region({kRow + kRegion + 2_MiB, 64_MiB});
  chunks_.fill({kRow + kRegion - 2_MiB, 2_MiB});
  chunks_.fill({kRow + kRegion + 2_MiB, 2_MiB});
  EXPECT_THAT(free_listed(), UnorderedElementsAre(Range{kRow + kRegion - 2_MiB, 2_MiB},
                                                  Range{kRow + kRegion + 2_MiB, 2_MiB}));
  EXPECT_FALSE(chunks_.is_free({kRow + kRegion - 2_MiB, 6_MiB}));
}

TEST_F(ChunksTest, AProgramThatRepeatsTakesNoNewRecords) {
  std::set<const Chunk*> records;
  chunks_.fill(mib(0, 64));
  for (std::uint64_t round = 0; round < 200; ++round) {
    for (std::uint64_t i = 0; i < 8; ++i) chunks_.use(mib(i * 8, i * 8 + 4));
    for (const Chunk* at = chunks_.first(); at != nullptr; at = at->after) records.insert(at);
    for (std::uint64_t i = 0; i < 8; ++i) {
      chunks_.release(mib(i * 8, i * 8 + 4), last_use(kA, round));
    }
    ASSERT_THAT(free_listed(), ElementsAre(mib(0, 64)));
  }
  EXPECT_LE(records.size(), 32u) << "17 chunks at a time took more than one batch";
}

TEST_F(ChunksTest, ValidateNamesBrokenRules) {
  chunks_.fill(mib(0, 12));
  chunks_.use(mib(4, 8));
  Chunk* const free = chunks_.at(kRow);
  Chunk* const used = chunks_.at(kRow + 4_MiB);
  Chunk* const vacant = chunks_.at(kRow + 12_MiB);
  EXPECT_THAT(chunks_.validate(), IsEmpty());

  used->state = kFree;
  EXPECT_THAT(chunks_.validate(), Contains("chunks: neighbours of one state were not merged"));
  EXPECT_THAT(chunks_.validate(), Contains("chunks: the free ones are listed wrong"));
  used->state = kVacant;
  EXPECT_THAT(chunks_.validate(), Contains("chunks: the vacant ones are listed wrong"));
  used->state = kUsed;

  vacant->state = kUsed;
  EXPECT_THAT(chunks_.validate(), Contains("chunks: one listed as vacant is not"));
  vacant->state = kVacant;

  free->size += kGrain;
  EXPECT_THAT(chunks_.validate(), Contains("chunks: they overlap, or are linked wrong"));
  free->size -= kGrain;

  used->size = 0_B;
  EXPECT_THAT(chunks_.validate(), Contains("chunks: one is empty"));
  used->size = 4_MiB;

  FreedRangePool pool;
  vacant->freed.append(pool, mib(12, 13), last_use(kA, 1));
  EXPECT_THAT(chunks_.validate(), Contains("chunks: what has no memory has users"));
  vacant->freed.clear(pool);
  used->freed.append(pool, mib(12, 13), last_use(kA, 1));
  EXPECT_THAT(chunks_.validate(), Contains("chunks: a freed range lies beyond its chunk"));
  used->freed.clear(pool);

  used->before = vacant;
  EXPECT_THAT(chunks_.validate(), Contains("chunks: the index by address is wrong"));
  used->before = free;
}

// Plain memory: what lies in two segments is two pieces, however near they are.
TEST_F(ChunksTest, RegionsSideBySideAreNotMergedAndGoOneByOne) {
  const Range first{kRow + kRegion, 4_MiB}, second{first.end(), 2_MiB}, third{second.end(), 8_MiB};
  for (const Range each : {second, first, third}) {
    chunks_.add_region(each);
    chunks_.fill(each);
  }
  EXPECT_THAT(free_listed(), UnorderedElementsAre(first, second, third));
  chunks_.use({second.begin, 1_MiB});
  chunks_.use({first.end() - 1_MiB, 1_MiB});
  chunks_.release({second.begin, 1_MiB}, last_use(kA, 1));
  chunks_.release({first.end() - 1_MiB, 1_MiB}, last_use(kA, 2));
  EXPECT_THAT(free_listed(), UnorderedElementsAre(first, second, third));
  EXPECT_THAT(chunks_.validate(), IsEmpty());

  chunks_.remove_region(second);
  EXPECT_EQ(chunks_.at(second.begin), nullptr);
  EXPECT_THAT(free_listed(), UnorderedElementsAre(first, third));
  EXPECT_THAT(chunks_.validate(), IsEmpty());
  chunks_.add_region(second);  // the device has given out the same addresses again
  chunks_.fill(second);
  EXPECT_THAT(free_listed(), UnorderedElementsAre(first, second, third));
}

}  // namespace
}  // namespace weir
