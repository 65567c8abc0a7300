// SPDX-License-Identifier: Apache-2.0
// Stitched rows in the long run: a program whose sizes never repeat keeps no more of them than in
// proportion to its pages, and none goes whose addresses somebody may still use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core_heap_fixture.h"

namespace weir::test {
namespace {

using testing::IsEmpty;

class HeapRows : public CoreHeap {
 protected:
  HeapRows() = default;
  explicit HeapRows(SimOptions options) : CoreHeap(options) {}

  // What was not used for so many requests is long unused, when it was looked at, too.
  static constexpr int kLong = 12'000;

  // Of stitched rows, where no page is idle and unmapped.
  static std::uint64_t mappings(const DeviceHeap& heap) {
    const Statistics now = heap.statistics();
    return now.mappings.current - now.pages.current;
  }
  // Kept in any case.
  static std::uint64_t most_kept(const DeviceHeap& heap) {
    return std::max<std::uint64_t>(256, 16 * heap.statistics().pages.current);
  }
  std::uint64_t unmaps() const { return device_.calls(DeviceCall::unmap); }

  // Blocks of 64 KiB to 16 MiB, of which always about as many bytes are in use. They are
  // `home`'s; `user` may be another stream, which works on each for `duration`.
  void replace_at_random(DeviceHeap& heap, int requests, Stream home, Stream user,
                         Nanoseconds duration = 1_us) {
    const bool is_told = heap.options().trust == Trust::told;
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
        write_after(user, home, block, size, duration);
        if (is_told) {
          ASSERT_TRUE(heap.fence(block, user).ok());
        } else {
          write_after(home, user, block, size, 1_us);
        }
      }
      in_use += size;
      device_.advance(100_us);
    }
    for (const auto& [block, size] : live) free(heap, block);
  }
  void replace_at_random(DeviceHeap& heap, int requests) {
    replace_at_random(heap, requests, a_, a_);
  }
  // More requests than blocks are cached, so that each asks for pages; they fit in one piece.
  void ask(DeviceHeap& heap, int requests) {
    for (int i = 0; i < requests; i += 12) {
      std::vector<void*> blocks;
      for (int k = 0; k < 12; ++k) blocks.push_back(allocate(heap, 300_KiB, a_));
      for (void* const block : blocks) free(heap, block);
    }
  }

  std::mt19937_64 random_{7};
};

class HeapRowsCoarse : public HeapRows, public testing::WithParamInterface<Bytes> {
 protected:
  HeapRowsCoarse() : HeapRows({.granularity = GetParam()}) {}
};

// A device may map in larger steps than pages need, and refuses to map elsewhere.
TEST_P(HeapRowsCoarse, BeginWhereTheDeviceCanMap) {
  DeviceHeap heap(device_, {.limit = 512_MiB});
  replace_at_random(heap, 2'000);
  EXPECT_GT(mappings(heap), 1u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  EXPECT_THAT(device_.races(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Granularities, HeapRowsCoarse, testing::Values(2_MiB, 4_MiB, 8_MiB),
                         [](const auto& info) {
                           return "of_" + std::to_string(info.param.count >> 20) + "_mib";
                         });

// Where uses need not be told, they may be of any stream.
TEST_F(HeapRows, GoOnceTheyAreLongUnusedAndTheirUsersWorkIsDone) {
  for (const auto& [trust, user] :
       {std::pair(Trust::told, a_), std::pair(Trust::told, b_), std::pair(Trust::context, c_)}) {
    DeviceHeap heap(device_, {.trust = trust});
    replace_at_random(heap, 6'000);
    replace_at_random(heap, 300, a_, user, 1'000_ms);
    ASSERT_GT(mappings(heap), most_kept(heap)) << "the program makes too few";
    ask(heap, 2 * kLong);
    EXPECT_EQ(device_.race_count(), 0u) << "the work goes on";
    device_.finish();
    ask(heap, 2 * kLong);
    EXPECT_LE(mappings(heap), most_kept(heap));
    EXPECT_THAT(heap.validate(), IsEmpty());
    EXPECT_EQ(device_.live().mappings, heap.statistics().mappings.current);
    EXPECT_EQ(heap.statistics().host_waits, 0u);
  }
}

TEST_F(HeapRows, ADriverThatRefusesToUnmapIsAskedAgain) {
  DeviceHeap heap(device_, {});
  replace_at_random(heap, 6000);
  ask(heap, kLong);
  device_.finish();
  for (std::uint64_t nth = 1; nth < 400; nth += 37) {
    device_.fail(DeviceCall::unmap, nth);
    ask(heap, 2400);
    EXPECT_THAT(heap.validate(), IsEmpty());
    EXPECT_EQ(device_.live().mappings, heap.statistics().mappings.current);
  }
  ask(heap, 2 * kLong);
  EXPECT_LE(mappings(heap), most_kept(heap));
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
