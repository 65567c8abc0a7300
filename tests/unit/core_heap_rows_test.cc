// SPDX-License-Identifier: Apache-2.0
// Stitched rows in the long run: a program whose sizes never repeat keeps no more of them than in
// proportion to its pages, and none goes whose addresses somebody may still use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "tests/unit/core_test_access.h"

namespace weir::test {
namespace {

using testing::IsEmpty;

class HeapRows : public CoreHeap {
 protected:
  HeapRows() = default;
  explicit HeapRows(SimOptions options) : CoreHeap(options) {}

  // What was not used for so many requests is long unused, when it was looked at, too.
  static constexpr std::uint64_t kLong = 12'000;

  // Of stitched rows.
  static std::size_t mappings(DeviceHeap& heap) { return TestAccess::tables(heap).rows.mappings(); }
  static std::size_t retired(DeviceHeap& heap) { return TestAccess::retired(heap).size(); }
  std::uint64_t unmaps() const { return device_.calls(DeviceCall::unmap); }
  // Kept in any case.
  static std::size_t most_kept(DeviceHeap& heap) {
    return std::max<std::size_t>(256, 16 * heap.statistics().pages.current);
  }
  static std::size_t long_unused(DeviceHeap& heap) {
    std::size_t found = 0;
    TestAccess::tables(heap).rows.visit_all([&](const StitchedRow& row) {
      if (TestAccess::tables(heap).requests - row.used_at > kLong) found += row.pages.size();
    });
    return found;
  }

  // Blocks of 64 KiB to 16 MiB, of which always about as many bytes are in use. They are
  // `home`'s; `user` may be another stream, and is named as such.
  void replace_at_random(DeviceHeap& heap, int requests) {
    replace_at_random(heap, requests, a_, a_);
  }
  void replace_at_random(DeviceHeap& heap, int requests, Stream home, Stream user) {
    std::vector<std::pair<void*, Bytes>> live;
    Bytes in_use;
    for (int i = 0; i < requests; ++i) {
      const Bytes size = 64_KiB * (1 + random_() % 256);
      for (; in_use + size > 192_MiB; live.pop_back()) {
        std::swap(live[random_() % live.size()], live.back());
        in_use -= live.back().second;
        free(heap, live.back().first);
      }
      void* const block = allocate(heap, size, home);
      live.emplace_back(block, size);
      write(home, block, size, 1_us);
      if (!(user == home)) {
        write_after(user, home, block, size, 1_us);
        ASSERT_TRUE(heap.fence(block, user).ok());
      }
      in_use += size;
      device_.advance(100_us);
    }
    for (const auto& [block, size] : live) free(heap, block);
  }
  // Twenty blocks of 3 MiB, each in two pieces of the home row. All else is free, and no new memory
  // may be had.
  std::vector<void*> blocks_in_rows(DeviceHeap& heap) {
    heap.set_limit({heap.statistics().reserved_bytes.current});
    std::vector<void*> small, in_rows, in_one_piece;
    for (;;) {
      const Result<void*> block = heap.allocate(2_MiB, a_);
      if (!block.ok()) break;
      small.push_back(*block);
    }
    for (std::size_t i = 0; i < small.size(); i += 2) free(heap, small[i]);
    while (in_rows.size() < 20) {
      void* const block = allocate(heap, 3_MiB, a_);
      const bool stitched = TestAccess::tables(heap).rows.at(Address::of(block)) != nullptr;
      (stitched ? in_rows : in_one_piece).push_back(block);
    }
    for (std::size_t i = 1; i < small.size(); i += 2) free(heap, small[i]);
    for (void* const block : in_one_piece) free(heap, block);
    return in_rows;
  }
  // More requests than blocks are cached, so that each asks for pages; they fit in one piece.
  void ask(DeviceHeap& heap, int requests) {
    for (int i = 0; i < requests; i += 12) {
      std::vector<void*> blocks;
      for (int k = 0; k < 12; ++k) blocks.push_back(allocate(heap, 300_KiB, a_));
      for (void* const block : blocks) free(heap, block);
    }
  }
  // All rows are long unused, and nobody is at work.
  void age(DeviceHeap& heap) {
    TestAccess::tables(heap).requests += kLong;
    device_.finish();
  }

  std::mt19937_64 random_{7};
};

class HeapRowsCoarse : public HeapRows, public testing::WithParamInterface<Bytes> {
 protected:
  HeapRowsCoarse() : HeapRows({.granularity = GetParam()}) {}
};

// A device may map in larger steps than pages need: rows begin where it can map.
TEST_P(HeapRowsCoarse, BeginWhereTheDeviceCanMap) {
  DeviceHeap heap(device_, {.limit = 512_MiB});
  replace_at_random(heap, 2'000);
  std::size_t rows = 0;
  TestAccess::tables(heap).rows.visit_all([&](const StitchedRow& row) {
    EXPECT_EQ(Bytes{row.begin.value} % GetParam(), 0_B);
    ++rows;
  });
  EXPECT_GT(rows, 1u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  EXPECT_THAT(device_.races(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Granularities, HeapRowsCoarse, testing::Values(2_MiB, 4_MiB, 8_MiB),
                         [](const auto& info) {
                           return "of_" + std::to_string(info.param.count >> 20) + "_mib";
                         });

TEST_F(HeapRows, AProgramOfEverNewSizesKeepsThemInProportionToItsPages) {
  DeviceHeap heap(device_, {});
  for (int part = 0; part < 10; ++part) {
    replace_at_random(heap, 6000);
    if (part >= 4) {
      EXPECT_LE(long_unused(heap), most_kept(heap)) << part;
    }
    EXPECT_THAT(heap.validate(), IsEmpty());
  }
  EXPECT_GT(heap.statistics().mappings.total, 3 * mappings(heap)) << "the program makes too few";
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_EQ(heap.statistics().host_waits, 0u);
  EXPECT_EQ(device_.live().mappings, heap.statistics().mappings.current);
}

// Where uses need not be told, they may be of any stream.
TEST_F(HeapRows, NoneGoesBeforeItsUsersWorkIsDone) {
  const Stream unknown = device_.new_stream();
  for (const auto& [trust, user] : {std::pair(Trust::told, a_), std::pair(Trust::told, b_),
                                    std::pair(Trust::context, unknown)}) {
    for (const bool done : {false, true}) {
      DeviceHeap heap(device_, {.trust = trust});
      replace_at_random(heap, 12'000);
      ASSERT_GT(mappings(heap), most_kept(heap)) << "the program makes too few";
      std::vector<void*> in_rows = blocks_in_rows(heap);
      for (void* const block : in_rows) {
        write_after(user, a_, block, 3_MiB, 1'000'000_ms);
        if (trust == Trust::told) {
          ASSERT_TRUE(heap.fence(block, user).ok());
        }
        free(heap, block);
      }
      (void)heap.snapshot();  // gives back what is cached
      heap.set_limit(0_B);
      TestAccess::tables(heap).requests += kLong;
      if (done) device_.finish();
      ask(heap, 24'000);
      const auto is_there = [&](void* block) {
        return TestAccess::tables(heap).rows.at(Address::of(block)) != nullptr;
      };
      const auto left = std::count_if(in_rows.begin(), in_rows.end(), is_there);
      if (done) {
        EXPECT_LE(mappings(heap), most_kept(heap)) << "then rows go";
      } else {
        EXPECT_EQ(left, 20);
      }
      EXPECT_THAT(heap.validate(), IsEmpty());
      device_.finish();
    }
  }
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_F(HeapRows, ADriverThatRefusesToUnmapIsAskedAgain) {
  DeviceHeap heap(device_, {});
  replace_at_random(heap, 6000);
  age(heap);
  for (std::uint64_t nth = 1; nth < 400; nth += 37) {
    device_.fail(DeviceCall::unmap, nth);
    ask(heap, 2400);
    EXPECT_THAT(heap.validate(), IsEmpty());
    EXPECT_EQ(device_.live().mappings, heap.statistics().mappings.current);
  }
  ask(heap, 24'000);
  EXPECT_LE(mappings(heap), most_kept(heap));
  EXPECT_EQ(retired(heap), 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// Its earlier work can't be asked about.
TEST_F(HeapRows, OnesThatACapturedStreamUsedStayWhereMappingsRunShort) {
  DeviceHeap heap(device_, {.most_mappings = 400});
  replace_at_random(heap, 300);
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::relaxed).ok());
  const std::uint64_t before = unmaps();
  replace_at_random(heap, 600, b_, b_);
  EXPECT_GT(unmaps(), before) << "mappings did not run short";
  EXPECT_TRUE(device_.end_capture(a_).ok()) << "the capture was disturbed";
  EXPECT_THAT(heap.validate(), IsEmpty());
}

}  // namespace
}  // namespace weir::test
