// SPDX-License-Identifier: Apache-2.0
// A CudaDevice that is opened while nothing is left of the device's memory. The test takes all of
// it for a moment, so it runs only where WEIR_TEST_FULL_DEVICE is set.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "weir/cuda_device.h"

namespace weir::conformance {
namespace {

TEST(CudaFullDevice, OpenedThenItMakesPagesOnceThereIsRoom) {
  if (std::getenv("WEIR_TEST_FULL_DEVICE") == nullptr) {
    GTEST_SKIP() << "takes all memory of the GPU: set WEIR_TEST_FULL_DEVICE=1";
  }
  Result<std::unique_ptr<CudaDevice>> opened = CudaDevice::open(0);
  if (!opened) GTEST_SKIP() << opened.error().message();
  CudaDevice& device = **opened;
  ASSERT_TRUE(device.prepare_to_synchronize().ok());
  std::vector<PhysicalHandle> pages;
  for (const Bytes size : {1_GiB, 32_MiB, device.granularity()}) {
    for (Result<PhysicalHandle> page = device.create(size); page; page = device.create(size)) {
      pages.push_back(*page);
    }
  }
  Result<std::unique_ptr<CudaDevice>> late = CudaDevice::open(0);
  ASSERT_TRUE(late.ok()) << late.error().message();
  const Result<PhysicalHandle> refused = (*late)->create((*late)->granularity());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory) << refused.error().message();
  // What that takes was had while there was room.
  EXPECT_TRUE(device.synchronize_context().ok());
  for (const PhysicalHandle page : pages) ASSERT_TRUE(device.release(page).ok());

  const Result<PhysicalHandle> page = (*late)->create((*late)->granularity());
  ASSERT_TRUE(page.ok()) << page.error().message();
  EXPECT_TRUE((*late)->synchronize_context().ok());
  EXPECT_TRUE((*late)->release(*page).ok());
}

}  // namespace
}  // namespace weir::conformance
