// SPDX-License-Identifier: Apache-2.0
// The host memory that the allocator's own records take, on the null device.
//
// The bound is for what a block adds. What a heap holds before its first block (the base) is
// constant, and has a bound of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "bench/records/host_memory.h"
#include "bench/support/mix.h"
#include "suite/null_device.h"
#include "weir/device_heap.h"

namespace weir::bench {
namespace {

constexpr std::int64_t kMostPerBlock = 200;
constexpr std::int64_t kMostPerBlockWithPages = 230;
constexpr std::int64_t kMostBase = 645'000;
// malloc gives up to 31 bytes more where the rest of a free chunk is too small for one. Whether it
// meets such a chunk depends on what was freed before, down to the length of a path.
constexpr std::int64_t kMallocSlack = 4 * 32;
// What the process's own code, stacks and unfilled pages of malloc's add to its resident memory.
constexpr std::int64_t kResidentSlack = 1 << 20;

// A heap with one stream that was used; everything is given back at the end.
class Records : public testing::Test {
 protected:
  void SetUp() override {
    const HostMemory before = HostMemory::now();
    heap_ = std::make_unique<DeviceHeap>(device_);
    for (const Bytes bytes : {512_B, 1_MiB}) {
      void* const block = allocate(bytes);
      ASSERT_TRUE(heap_->deallocate(block).ok());
    }
    base_ = HostMemory::now() - before;
  }

  void TearDown() override {
    for (void* const block : live_) ASSERT_TRUE(heap_->deallocate(block).ok());
    EXPECT_EQ(heap_->statistics().live_blocks.current, 0u);
    EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  }

  void* allocate(Bytes bytes) {
    const Result<void*> block = heap_->allocate(bytes, stream_);
    EXPECT_TRUE(block.ok()) << block.error().message();
    return block.ok() ? *block : nullptr;
  }

  // What blocks of these sizes, all live at once, add.
  HostMemory allocate_all(const std::vector<Bytes>& sizes) {
    live_.assign(sizes.size(), nullptr);  // touched now, so that it is not taken for the heap's
    const HostMemory before = HostMemory::now();
    for (std::size_t i = 0; i < sizes.size(); ++i) live_[i] = allocate(sizes[i]);
    return HostMemory::now() - before;
  }

  void expect_at_most_per_block(const HostMemory& added, const char* what,
                                std::int64_t most = kMostPerBlock) {
    const auto blocks = static_cast<std::int64_t>(live_.size());
    std::printf("%s: %lld blocks, %.1f bytes a block (resident: %.1f), base %lld bytes\n", what,
                static_cast<long long>(blocks), per(added.allocated, blocks),
                per(added.resident, blocks), static_cast<long long>(base_.allocated));
    EXPECT_GT(added.allocated + added.resident, 0) << "blocks without a record";
    EXPECT_LE(added.allocated, most * blocks + kMallocSlack);
    EXPECT_LE(added.resident, most * blocks + kResidentSlack);
  }

  static double per(std::int64_t bytes, std::int64_t blocks) {
    return static_cast<double>(bytes) / static_cast<double>(blocks);
  }

  NullDevice device_;
  const Stream stream_ = device_.stream(NullDevice::stream_handle(0)).value();
  std::unique_ptr<DeviceHeap> heap_;
  HostMemory base_;  // of the heap before it has blocks
  std::vector<void*> live_;
};

TEST(HostMemory, SeesWhatIsAllocatedInAnyWay) {
  constexpr std::int64_t kBytes = 4 << 20;
  const HostMemory before = HostMemory::now();
  // Volatile, or a compiler leaves them out.
  char* volatile by_new = new char[kBytes];
  EXPECT_GE((HostMemory::now() - before).allocated, kBytes);
  void* volatile by_calloc = std::calloc(kBytes, 1);
  EXPECT_GE((HostMemory::now() - before).allocated, 2 * kBytes);
  std::free(by_calloc);
  delete[] by_new;
  EXPECT_LT((HostMemory::now() - before).allocated, kBytes);
  std::vector<std::unique_ptr<char[]>> small;
  for (int i = 0; i < 10'000; ++i) small.push_back(std::make_unique<char[]>(100));
  EXPECT_GE((HostMemory::now() - before).allocated, 10'000 * 100);

  const HostMemory unmapped = HostMemory::now();
  void* const by_mmap = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(by_mmap, MAP_FAILED);
  EXPECT_GE((HostMemory::now() - unmapped).resident, kBytes / 2);
  munmap(by_mmap, kBytes);
}

TEST_F(Records, OfAnEmptyHeapAreConstantAndSmall) {
  std::printf("an empty heap: %lld bytes (resident: %lld)\n",
              static_cast<long long>(base_.allocated), static_cast<long long>(base_.resident));
  EXPECT_LE(base_.allocated, kMostBase);
  EXPECT_LE(base_.resident, kMostBase + kResidentSlack);
}

TEST_F(Records, OfTheRandomMixTakeFewBytesABlock) {
  // With so few blocks it matters which tables a heap begins with and which it makes later: the sum
  // counts.
  const HostMemory added = allocate_all(make_mix(kMixLive, 0).first);
  const std::int64_t later = kMostBase - base_.allocated;
  expect_at_most_per_block(added, "random mix", kMostPerBlock + later / kMixLive);
}

// Blocks of which two in five are large, each with a page or two of its own, as in a heap that only
// grows: pages weigh more than blocks here (docs/performance.md).
TEST_F(Records, OfAHundredTimesTheRandomMixTakeFewBytesABlock) {
  expect_at_most_per_block(allocate_all(make_mix(200'000, 0).first), "random mix",
                           kMostPerBlockWithPages);
}

TEST_F(Records, OfManySmallestBlocksTakeFewBytesABlock) {
  expect_at_most_per_block(allocate_all(std::vector<Bytes>(200'000, 512_B)), "512 B");
}

TEST_F(Records, OfFewLargeBlocksTakeLittleOfTheMemoryHeld) {
  const HostMemory added = allocate_all(std::vector<Bytes>(8, 256_MiB));
  const std::uint64_t reserved = heap_->statistics().reserved_bytes.current;
  ASSERT_GE(reserved, (2_GiB).count);
  const std::int64_t all = base_.allocated + added.allocated;
  std::printf("8 blocks of 256 MiB: %lld bytes, %.4f %% of the memory held\n",
              static_cast<long long>(all),
              100.0 * static_cast<double>(all) / static_cast<double>(reserved));
  EXPECT_LE(static_cast<std::uint64_t>(all) * 1000, reserved);
}

// What the allocator remembers of past requests is in this.
TEST_F(Records, OfTheRandomMixStayLittleOfTheMemoryHeldAfterManyReplacements) {
  const Mix mix = make_mix(kMixLive, 100'000);
  const HostMemory added = allocate_all(mix.first);
  const HostMemory before = HostMemory::now();
  for (const Replacement& each : mix.replacements) {
    ASSERT_TRUE(heap_->deallocate(live_[each.index]).ok());
    live_[each.index] = allocate({each.bytes});
  }
  const std::int64_t all =
      base_.allocated + added.allocated + (HostMemory::now() - before).allocated;
  const std::uint64_t reserved = heap_->statistics().reserved_bytes.current;
  std::printf("random mix after %zu replacements: %lld bytes, %.4f %% of the memory held\n",
              mix.replacements.size(), static_cast<long long>(all),
              100.0 * static_cast<double>(all) / static_cast<double>(reserved));
  EXPECT_LE(static_cast<std::uint64_t>(all) * 1000, reserved);
}

}  // namespace
}  // namespace weir::bench
