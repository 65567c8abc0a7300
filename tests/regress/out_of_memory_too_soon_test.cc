// SPDX-License-Identifier: Apache-2.0
// Requests that were refused, or broke the heap, while memory was there. Found by random programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weir/device_heap.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using ::testing::IsEmpty;

SimOptions with_memory(Bytes memory) {
  SimOptions options;
  options.memory = memory;
  return options;
}

class NearlyFull : public ::testing::Test {
 protected:
  SimDevice device_{with_memory(56_MiB)};
  DeviceHeap heap_{device_, {.limit = {}}};
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream(), c_ = device_.new_stream();

  void* allocate(Bytes bytes, Stream stream) {
    const Result<void*> block = heap_.allocate(bytes, stream);
    EXPECT_TRUE(block.ok()) << block.error().message();
    return block.ok() ? *block : nullptr;
  }
};

TEST_F(NearlyFull, IdlePagesAndTheDevicesLastRoomServeOneRequestTogether) {
  void* const idle = allocate(2_MiB, a_);
  allocate(52_MiB, b_);
  ASSERT_TRUE(heap_.deallocate(idle).ok());
  EXPECT_NE(allocate(4_MiB, b_), nullptr);  // 2 MiB are idle, and 2 MiB are still the device's
  EXPECT_EQ(device_.physical_bytes(), 56_MiB);
}

TEST_F(NearlyFull, ARequestLargerThanTheDeviceSpoilsNothingForTheNext) {
  ASSERT_TRUE(heap_.deallocate(allocate(15124076_B, b_)).ok());
  allocate(19573418_B, c_);
  allocate(14_B, a_);
  const Result<void*> absurd = heap_.allocate(4_TiB, c_);
  ASSERT_FALSE(absurd.ok());
  EXPECT_EQ(absurd.error().code(), ErrorCode::out_of_memory);
  EXPECT_NE(allocate(19573418_B, a_), nullptr);
}

// Where mappings ran short in the middle of putting pages side by side, those just mapped were
// given up again, and the block lay on nothing.
TEST(FewMappings, AreNeverTakenFromTheBlockBeingMade) {
  for (std::uint64_t most = 6; most <= 30; ++most) {
    SimDevice device(with_memory(64_MiB));
    DeviceHeap heap(device, {.limit = {}, .reuse = ReusePolicy::balanced, .most_mappings = most});
    const Stream streams[] = {device.new_stream(), device.new_stream(), device.new_stream()};
    std::uint64_t served = 0;
    for (std::uint64_t round = 0; round < 60; ++round) {
      const Stream stream = streams[round % 3];
      const Bytes bytes = 6_MiB + 2_MiB * (round * 7 % 27);
      const Result<void*> block = heap.allocate(bytes, stream);
      if (!block.ok()) {
        ASSERT_EQ(block.error().code(), ErrorCode::out_of_memory) << block.error().message();
        continue;
      }
      ++served;
      ASSERT_TRUE(device.launch(stream, Writes(*block, bytes), 1_ms).ok());
      ASSERT_TRUE(heap.deallocate(*block).ok());
      if (round % 2 == 0) device.advance(10_ms);  // what is done may be unmapped
      ASSERT_THAT(heap.validate(), IsEmpty());
    }
    EXPECT_GT(served, 10u) << most << " mappings";
    EXPECT_LE(device.live().mappings, most);
    EXPECT_THAT(device.races(), IsEmpty());
  }
}

}  // namespace
}  // namespace weir
