// SPDX-License-Identifier: Apache-2.0
// Memory that is not cached: a free waits for all work, and leaves nothing behind.
#include "torch/uncached.h"

#include <gtest/gtest.h>

#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

TEST(Uncached, AFreeWaitsForWorkThatNobodyToldOf) {
  SimDevice device;
  const Stream stream = device.new_stream(), reader = device.new_stream();
  DeviceHeap cache(device);
  Uncached uncached(device, cache);
  void* const beside = *uncached.allocate(512_KiB, stream);
  void* const x = *uncached.allocate(512_KiB, stream);
  ASSERT_TRUE(device.launch(reader, Reads(x, 512_KiB), 50_ms).ok());
  EXPECT_TRUE(uncached.deallocate(x).ok());
  void* const y = *uncached.allocate(512_KiB, stream);
  ASSERT_TRUE(device.launch(stream, Writes(y, 512_KiB), 1_ms).ok());
  EXPECT_TRUE(uncached.deallocate(y).ok());
  EXPECT_TRUE(uncached.deallocate(beside).ok());
  EXPECT_EQ(device.physical_bytes(), 0_B);
  EXPECT_EQ(device.race_count(), 0u);
}

TEST(Uncached, IdleMemoryOfTheCacheGoesBackWhereTheDeviceHasNoMore) {
  SimDevice device({.memory = 64_MiB});
  const Stream stream = device.new_stream();
  DeviceHeap cache(device);
  Uncached uncached(device, cache);
  EXPECT_TRUE(cache.deallocate(*cache.allocate(60_MiB, stream)).ok());
  device.finish();
  const Result<void*> block = uncached.allocate(30_MiB, stream);
  ASSERT_TRUE(block.ok()) << block.error().message();
  EXPECT_TRUE(uncached.deallocate(*block).ok());
}

}  // namespace
}  // namespace weir::pytorch
