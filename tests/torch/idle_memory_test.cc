// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>

#include "torch/pools.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

class IdleMemories : public testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(heap_.validate(), testing::IsEmpty()); }

  // Freed while another stream reads it.
  void free_one_in_use() {
    void* const block = *heap_.allocate(4_KiB, a_);
    ASSERT_TRUE(device_.launch(b_, Reads(block, 4_KiB), 10_ms).ok());
    ASSERT_TRUE(heap_.record_stream(block, b_).ok());
    ASSERT_TRUE(heap_.deallocate(block).ok());
  }
  // What PyTorch does with the random state of its graphs: the stream that it was made on waits,
  // if need be, and another one writes it.
  void write_elsewhere(void* scalar) {
    ASSERT_TRUE(device_.launch(c_, Writes(scalar, 8_B), 1_us).ok());
    device_.finish();
  }

  SimDevice device_;
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream(), c_ = device_.new_stream();
  DeviceHeap heap_{device_, {.trust = Trust::context}};
};

TEST_F(IdleMemories, WithoutItAnotherStreamsWriteMeetsTheReader) {
  free_one_in_use();
  void* const scalar = *heap_.allocate(8_B, a_);
  write_elsewhere(scalar);
  EXPECT_GT(device_.race_count(), 0u);
  EXPECT_TRUE(heap_.deallocate(scalar).ok());
}

TEST_F(IdleMemories, IsUsedByNobodyHoweverOftenItIsAskedFor) {
  for (int i = 0; i < 3; ++i) {
    free_one_in_use();
    void* scalar = nullptr;
    {
      const Result<IdleMemory> idle = begin_idle_memory(heap_);
      ASSERT_TRUE(idle.ok());
      scalar = *heap_.allocate(8_B, a_);
    }
    write_elsewhere(scalar);
    // The next one must not be written while the last is read still.
    ASSERT_TRUE(device_.launch(b_, Reads(scalar, 8_B), 10_ms).ok());
    EXPECT_TRUE(heap_.deallocate(scalar).ok());
  }
  device_.finish();
  EXPECT_EQ(device_.race_count(), 0u);
}

TEST_F(IdleMemories, ServesItsOwnThread) {
  void* const before = *heap_.allocate(8_B, a_);
  {
    const Result<IdleMemory> idle = begin_idle_memory(heap_);
    ASSERT_TRUE(idle.ok());
    void* const other =
        std::async(std::launch::async, [&] { return *heap_.allocate(8_B, a_); }).get();
    EXPECT_EQ(heap_.find(other)->pool, 0u);
    void* const own = *heap_.allocate(8_B, a_);
    EXPECT_NE(heap_.find(own)->pool, 0u);
    EXPECT_TRUE(heap_.deallocate(other).ok());
    EXPECT_TRUE(heap_.deallocate(own).ok());
  }
  void* const after = *heap_.allocate(8_B, a_);
  EXPECT_EQ(heap_.find(after)->pool, 0u);
  EXPECT_TRUE(heap_.deallocate(after).ok());
  EXPECT_TRUE(heap_.deallocate(before).ok());
}

// The pool goes with the block, and its pages serve everybody.
TEST_F(IdleMemories, LeavesNoPageBehind) {
  void* scalar = nullptr;
  {
    const Result<IdleMemory> idle = begin_idle_memory(heap_);
    ASSERT_TRUE(idle.ok());
    scalar = *heap_.allocate(8_B, a_);
  }
  EXPECT_TRUE(heap_.deallocate(scalar).ok());
  device_.finish();
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(heap_.statistics().reserved_bytes.current, 0u);
}

}  // namespace
}  // namespace weir::pytorch
