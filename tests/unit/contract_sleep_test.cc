// SPDX-License-Identifier: Apache-2.0
// Host memory of tags that sleep: which bytes have a copy, and what is kept for the next sleep.
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/core_heap_fixture.h"

namespace weir {
namespace {

class HostMemory : public test::CoreHeap {
 protected:
  static constexpr Bytes kBlock = 32_MiB;

  DeviceHeap heap_{device_};
};

TEST_F(HostMemory, ABlockThatWasAllocatedSinceTheSleepHasNoCopy) {
  void* const x = allocate(heap_, kBlock, a_);
  write(a_, x, kBlock);
  ASSERT_TRUE(heap_.tags().sleep({.contents = SleepContents::immutable}).ok());
  ASSERT_TRUE(heap_.tags().wake().ok());
  void* const y = allocate(heap_, kBlock, a_);
  ASSERT_GT(y, x) << "behind what has a copy";
  EXPECT_TRUE(heap_.tags().host_copy(x, kBlock).ok());
  const Result<std::vector<HostPart>> none = heap_.tags().host_copy(y, kBlock);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), ErrorCode::invalid_argument);
  free(heap_, x);
  free(heap_, y);
}

}  // namespace
}  // namespace weir
