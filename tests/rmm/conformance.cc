// SPDX-License-Identifier: Apache-2.0
// RMM's own tests of memory resources, run over Weir's. tests/rmm/run builds and runs this.
#include <cuda/memory_resource>
#include <rmm/cuda_stream.hpp>
#include <rmm/resource_ref.hpp>

#include "weir/rmm_resource.h"

// Of RMM's sources, cpp/tests/mr.
#include <cccl_mr_ref_test_allocation.hpp>
#include <cccl_mr_ref_test_basic.hpp>
#include <cccl_mr_ref_test_mt.hpp>

namespace {

static_assert(cuda::mr::resource_with<weir::RmmResource, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<weir::MemoryResource, cuda::mr::device_accessible>);

// For the process: what RMM holds for a device is let go at its end.
weir::Allocator& allocator() {
  static auto* const the = new weir::Allocator(weir::Config{.trust = weir::Trust::context});
  return *the;
}

struct Weir : ::testing::Test {
  ~Weir() override {
    EXPECT_TRUE(allocator().validate().empty());
    EXPECT_EQ(allocator().statistics().live_blocks.current, live_before_);
  }

  const std::uint64_t live_before_ = allocator().statistics().live_blocks.current;
  weir::RmmResource resource{allocator()};
  rmm::device_async_resource_ref ref{resource};
  rmm::cuda_stream stream{};
};

}  // namespace

namespace rmm::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Weir, CcclMrRefTest, Weir);
INSTANTIATE_TYPED_TEST_SUITE_P(Weir, CcclMrRefAllocationTest, Weir);
INSTANTIATE_TYPED_TEST_SUITE_P(Weir, CcclMrRefTestMT, Weir);

}  // namespace rmm::test
