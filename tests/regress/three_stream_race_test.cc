// SPDX-License-Identifier: Apache-2.0
// RMM's stream-ordered pools (bug #2489): stream B took stream A's free memory, with a wait for A;
// when B's memory then went to stream C, C waited for B's last recorded event, which was older than
// B's wait for A. So C wrote while A's kernel was still running.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "weir/device_heap.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using ::testing::IsEmpty;

class ThreeStreams : public ::testing::TestWithParam<ReusePolicy> {
 protected:
  // So small that every stream must use the same pages.
  SimDevice device_{SimOptions{.memory = 64_MiB,
                               .granularity = 2_MiB,
                               .mapping_ceiling = 524088,
                               .check_races = true,
                               .costs = {}}};
  DeviceHeap heap_{device_, {.limit = 64_MiB, .reuse = GetParam()}};
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream(), c_ = device_.new_stream();

  void* allocate(Bytes bytes, Stream stream) {
    const Result<void*> block = heap_.allocate(bytes, stream);
    EXPECT_TRUE(block.ok()) << block.error().message();
    return block.ok() ? *block : nullptr;
  }
  void write(void* block, Bytes bytes, Stream stream, Nanoseconds duration) {
    const Status status = device_.launch(stream, Writes(block, bytes), duration);
    EXPECT_TRUE(status.ok()) << status.error().message();
  }
  void deallocate(void* block) { EXPECT_TRUE(heap_.deallocate(block).ok()); }

  std::vector<PhysicalHandle> pages_of(const void* block, Bytes bytes) const {
    std::vector<PhysicalHandle> pages;
    for (const Segment& part : device_.translate(Address::of(block), bytes)) {
      pages.push_back(part.handle);
    }
    std::sort(pages.begin(), pages.end());
    return pages;
  }
};

TEST_P(ThreeStreams, MemoryThatPassedThroughAnUnusedBlockIsStillOrderedAfterItsFirstUser) {
  void* const first = allocate(64_MiB, a_);
  write(first, 64_MiB, a_, 50_ms);
  const std::vector<PhysicalHandle> pages = pages_of(first, 64_MiB);
  deallocate(first);

  deallocate(allocate(64_MiB, b_));  // B runs nothing: only its wait for A orders what follows

  void* const last = allocate(64_MiB, c_);
  EXPECT_EQ(pages_of(last, 64_MiB), pages);
  write(last, 64_MiB, c_, 1_ms);
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_P(ThreeStreams, AndWhenTheFirstStreamIsStalled) {
  // B has work of its own, and an event of its own, from before it takes A's memory.
  void* const own = allocate(8_MiB, b_);
  write(own, 8_MiB, b_, 1_us);
  void* const first = allocate(56_MiB, a_);
  write(first, 56_MiB, a_, 50_ms);
  deallocate(own);
  deallocate(first);

  void* const second = allocate(60_MiB, b_);
  deallocate(second);
  void* const last = allocate(62_MiB, c_);
  write(last, 62_MiB, c_, 1_ms);
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_P(ThreeStreams, AndWhenTheSecondStreamSplitsTheMemory) {
  void* const first = allocate(64_MiB, a_);
  write(first, 64_MiB, a_, 50_ms);
  deallocate(first);

  // Half stays with B, unused, while the other half goes on to C; then all of it goes to A.
  void* const kept = allocate(32_MiB, b_);
  void* const passed = allocate(32_MiB, b_);
  deallocate(passed);
  void* const last = allocate(32_MiB, c_);
  write(last, 32_MiB, c_, 1_ms);
  write(kept, 32_MiB, b_, 1_ms);
  deallocate(kept);
  deallocate(last);
  void* const again = allocate(64_MiB, a_);
  write(again, 64_MiB, a_, 1_ms);
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_P(ThreeStreams, AndWhenTheUserOnAThirdStreamIsOnlyRecorded) {
  void* const first = allocate(64_MiB, a_);
  ASSERT_TRUE(heap_.record_stream(first, c_).ok());
  write(first, 64_MiB, c_, 50_ms);  // on C, not ordered with anything on A or B
  deallocate(first);

  void* const second = allocate(64_MiB, b_);
  write(second, 64_MiB, b_, 1_ms);
  EXPECT_THAT(device_.races(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(EveryPolicy, ThreeStreams,
                         ::testing::Values(ReusePolicy::wait, ReusePolicy::balanced));

}  // namespace
}  // namespace weir
