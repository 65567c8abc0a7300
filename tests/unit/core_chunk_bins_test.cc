// SPDX-License-Identifier: Apache-2.0
// ChunkBins: free chunks by size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <random>
#include <set>
#include <vector>

#include "core/memory/chunks.h"

namespace weir {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

class ChunkBinsTest : public testing::Test {
 protected:
  Chunk* add(Bytes size) {
    Chunk& chunk = chunks_.emplace_back();
    chunk.size = size;
    chunk.state = Chunk::State::free;
    bins_.add(&chunk);
    return &chunk;
  }
  std::vector<Chunk*> fitting(Bytes size, std::size_t most = 10'000) {
    std::vector<Chunk*> visited;
    bins_.visit_fitting(size, [&](Chunk& chunk) {
      visited.push_back(&chunk);
      return visited.size() < most;
    });
    return visited;
  }
  std::vector<Chunk*> down(std::size_t most = 10'000) {
    std::vector<Chunk*> visited;
    bins_.visit_down([&](Chunk& chunk) {
      visited.push_back(&chunk);
      return visited.size() < most;
    });
    return visited;
  }

  ChunkBins bins_;
  std::deque<Chunk> chunks_;
};

TEST_F(ChunkBinsTest, EmptyBinsHaveNothing) {
  EXPECT_EQ(bins_.count(), 0u);
  EXPECT_THAT(fitting(kGrain), IsEmpty());
  EXPECT_THAT(down(), IsEmpty());
  EXPECT_THAT(bins_.validate(), IsEmpty());
}

// At all the places where one list ends and another begins, up to 512 TiB.
TEST_F(ChunkBinsTest, AChunkIsFoundForItsOwnSizeAndNotForMore) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t grains = 1; grains < 300; ++grains) sizes.push_back(grains);
  for (int bits = 9; bits < 41; ++bits) {
    const std::uint64_t power = std::uint64_t{1} << bits;
    for (std::uint64_t step = 0; step < 32; step += 5) {
      const std::uint64_t begin = power + step * (power / 32);
      sizes.insert(sizes.end(), {begin - 1, begin, begin + 1});
    }
  }
  for (const std::uint64_t grains : sizes) {
    Chunk* const only = add(kGrain * grains);
    ASSERT_THAT(fitting(kGrain), ElementsAre(only)) << grains << " grains";
    ASSERT_THAT(fitting(kGrain * grains), ElementsAre(only)) << grains << " grains";
    ASSERT_THAT(fitting(kGrain * (grains + 1)), IsEmpty()) << grains << " grains";
    ASSERT_THAT(down(), ElementsAre(only)) << grains << " grains";
    ASSERT_THAT(bins_.validate(), IsEmpty());
    bins_.remove(only);
    ASSERT_THAT(fitting(kGrain), IsEmpty()) << grains << " grains";
  }
}

TEST_F(ChunkBinsTest, SmallerListsComeFirst) {
  Chunk* const large = add(64_MiB);
  Chunk* const small = add(2_MiB);
  Chunk* const middle = add(3_MiB);
  EXPECT_THAT(fitting(1_MiB), ElementsAre(small, middle, large));
  EXPECT_THAT(fitting(2_MiB + kGrain), ElementsAre(middle, large));
  EXPECT_THAT(fitting(4_MiB), ElementsAre(large));
}

TEST_F(ChunkBinsTest, OfOneListTheLastAddedComesFirst) {
  Chunk* const first = add(5_MiB);
  Chunk* const second = add(5_MiB);
  Chunk* const third = add(5_MiB);
  EXPECT_THAT(fitting(5_MiB), ElementsAre(third, second, first));
  bins_.remove(second);
  EXPECT_THAT(fitting(5_MiB), ElementsAre(third, first));
  bins_.add(second);
  EXPECT_THAT(fitting(5_MiB), ElementsAre(second, third, first));
}

TEST_F(ChunkBinsTest, ChunksMayBeRemovedFromAnyPlaceOfTheirList) {
  std::vector<Chunk*> all;
  for (int i = 0; i < 5; ++i) all.push_back(add(5_MiB));
  for (const int index : {4, 0, 2, 1, 3}) {  // the first of the list, the last, the middle, ...
    Chunk* const gone = all[static_cast<std::size_t>(index)];
    bins_.remove(gone);
    EXPECT_THAT(fitting(5_MiB), Not(Contains(gone)));
    EXPECT_THAT(bins_.validate(), IsEmpty());
  }
  EXPECT_EQ(bins_.count(), 0u);
  EXPECT_THAT(fitting(kGrain), IsEmpty());
}

TEST_F(ChunkBinsTest, AVisitEndsWhereTheVisitorSaysSo) {
  for (std::uint64_t i = 1; i <= 20; ++i) add(1_MiB * i);
  EXPECT_EQ(fitting(3_MiB, 4).size(), 4u);
  EXPECT_EQ(down(7).size(), 7u);
}

TEST_F(ChunkBinsTest, SmallerChunksOfTheRequestsOwnListArePassedOver) {
  // One list: sizes from 1024 to 1055 grains.
  Chunk* const fits = add(kGrain * 1055);
  for (int i = 0; i < 31; ++i) add(kGrain * 1030);
  EXPECT_THAT(fitting(kGrain * 1050), ElementsAre(fits));
  EXPECT_THAT(fitting(kGrain * 1055), ElementsAre(fits));
}

TEST_F(ChunkBinsTest, AListOfManySmallerChunksIsLeftForTheNextOne) {
  Chunk* const behind = add(kGrain * 1055);
  for (int i = 0; i < 100; ++i) add(kGrain * 1030);
  Chunk* const before = add(kGrain * 1054);
  Chunk* const larger = add(kGrain * 1056);
  EXPECT_THAT(fitting(kGrain * 1050), ElementsAre(before, larger));
  EXPECT_THAT(fitting(kGrain * 1030, 1), ElementsAre(before));
  // All are found where none is smaller.
  EXPECT_THAT(fitting(kGrain * 1024), Contains(behind));
  EXPECT_EQ(fitting(kGrain * 1024).size(), 103u);
}

TEST_F(ChunkBinsTest, DownwardLargerListsComeFirst) {
  Chunk* const small = add(kGrain);
  Chunk* const large = add(1_TiB);
  Chunk* const middle = add(3_MiB);
  Chunk* const middle_too = add(3_MiB);
  EXPECT_THAT(down(), ElementsAre(large, middle_too, middle, small));
  bins_.remove(large);
  EXPECT_THAT(down(), ElementsAre(middle_too, middle, small));
}

TEST_F(ChunkBinsTest, VisitsAllThatFitInTheOrderOfTheirListsOverRandomPrograms) {
  std::mt19937_64 random(5);
  const auto size = [&] { return kGrain * (1 + random() % (std::uint64_t{2} << random() % 36)); };
  std::vector<Chunk*> all;
  for (int step = 0; step < 4000; ++step) {
    if (all.empty() || random() % 5 < 3) {
      all.push_back(add(size()));
    } else {
      std::swap(all[random() % all.size()], all.back());
      bins_.remove(all.back());
      all.pop_back();
    }
    ASSERT_EQ(bins_.count(), all.size());
    if (step % 64 != 0) continue;
    const Bytes least = size();
    const std::vector<Chunk*> visited = fitting(least);
    // Less than one in 32 lies between the sizes of a list, so that is all that the order is off
    // by.
    for (std::size_t i = 1; i < visited.size(); ++i) {
      ASSERT_GT(visited[i]->size.count * 33, visited[i - 1]->size.count * 32);
    }
    for (const Chunk* const chunk : visited) ASSERT_GE(chunk->size, least);
    ASSERT_EQ(std::set<Chunk*>(visited.begin(), visited.end()).size(), visited.size());
    // Only in the list of `least` itself may one be missed.
    const std::uint64_t next_list = least.count + least.count / 16;
    for (Chunk* const chunk : all) {
      if (chunk->size.count > next_list) {
        ASSERT_THAT(visited, Contains(chunk));
      }
    }
    const std::vector<Chunk*> downward = down();
    ASSERT_EQ(downward.size(), all.size());
    for (std::size_t i = 1; i < downward.size(); ++i) {
      ASSERT_GT(downward[i - 1]->size.count * 33, downward[i]->size.count * 32);
    }
    ASSERT_THAT(bins_.validate(), IsEmpty());
  }
}

TEST_F(ChunkBinsTest, ValidateNamesAChunkThatIsNotWhatItsListSays) {
  Chunk* const chunk = add(5_MiB);
  chunk->size = 6_MiB;
  EXPECT_THAT(bins_.validate(), ElementsAre("bins: a chunk of another size"));
  chunk->size = 5_MiB;
  chunk->state = Chunk::State::used;
  EXPECT_THAT(bins_.validate(), ElementsAre("bins: a chunk that is not free"));
  chunk->state = Chunk::State::free;
  chunk->previous = chunk;
  EXPECT_THAT(bins_.validate(), ElementsAre("bins: a list is linked wrong"));
  chunk->previous = nullptr;
  chunk->next = chunk;
  EXPECT_THAT(bins_.validate(), Contains("bins: more chunks than counted"));
  chunk->next = nullptr;
  EXPECT_THAT(bins_.validate(), IsEmpty());
}

}  // namespace
}  // namespace weir
