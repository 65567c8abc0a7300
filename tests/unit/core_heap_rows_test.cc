// Stitched rows in the long run: a program whose sizes never repeat keeps no more of them than in
// proportion to its pages, and none goes whose addresses somebody may still use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "core_heap_fixture.h"
#include "tests/unit/core_test_access.h"

namespace weir::test {
namespace {

using testing::IsEmpty;

class HeapRows : public CoreHeap {
 protected:
  // Of mappings a page: 16 that are kept in any case, and those that were used not long ago.
  static constexpr std::uint64_t kMostAPage = 40;

  static std::size_t mappings(DeviceHeap& heap) { return TestAccess::rows(heap).mappings(); }
  static std::size_t retired(DeviceHeap& heap) { return TestAccess::rows_retired(heap).size(); }
  std::uint64_t unmaps() const { return device_.calls(DeviceCall::unmap); }

  // Blocks of 64 KiB to 16 MiB, of which always about as many bytes are in use. They are a's;
  // `user` may be another stream, and reads them then.
  void replace_at_random(DeviceHeap& heap, int requests = 6000) {
    replace_at_random(heap, requests, a_, 1_us);
  }
  void replace_at_random(DeviceHeap& heap, int requests, Stream user, Nanoseconds kernel) {
    std::vector<std::pair<void*, Bytes>> live;
    Bytes in_use;
    for (int i = 0; i < requests; ++i) {
      const Bytes size = 64_KiB * (1 + random_() % 256);
      for (; in_use + size > 192_MiB; live.pop_back()) {
        std::swap(live[random_() % live.size()], live.back());
        in_use -= live.back().second;
        free(heap, live.back().first);
      }
      void* const block = allocate(heap, size, a_);
      live.emplace_back(block, size);
      const Access access = user == a_ ? Writes(block, size) : Reads(block, size);
      ASSERT_TRUE(device_.launch(user, access, kernel).ok());
      in_use += size;
      device_.advance(100_us);
    }
    for (const auto& [block, size] : live) free(heap, block);
  }
  std::mt19937_64 random_{7};
};

TEST_F(HeapRows, Measure) {
  DeviceHeap heap(device_, {});
  for (int i = 0; i < 20; ++i) {
    replace_at_random(heap);
    printf("%d: pages %zu row mappings %zu rows %zu retired %zu unmaps %zu requests %zu held %.1f\n", i, TestAccess::home(heap).all().size(), mappings(heap),
           TestAccess::rows(heap).count(), retired(heap), unmaps(), TestAccess::requests(heap), device_.physical_bytes().count/1048576.);
  }
  EXPECT_THAT(heap.validate(), IsEmpty());
}
}  // namespace
}  // namespace weir::test
