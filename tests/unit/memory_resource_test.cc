// SPDX-License-Identifier: Apache-2.0
#include "weir/memory_resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <new>

#include "weir/sim_device.h"

// CCCL 3.1 gave the concepts, and what they ask for, other names.
#if CCCL_MAJOR_VERSION > 3 || (CCCL_MAJOR_VERSION == 3 && CCCL_MINOR_VERSION >= 1)
#define WEIR_TEST_NEW_NAMES 1
#else
#define WEIR_TEST_NEW_NAMES 0
#endif

namespace weir {
namespace {

using ::cuda::stream_ref;
using ::testing::IsEmpty;

#if WEIR_TEST_NEW_NAMES
static_assert(::cuda::mr::synchronous_resource<MemoryResource>);
static_assert(::cuda::mr::resource<MemoryResource>);
static_assert(::cuda::mr::resource_with<MemoryResource, ::cuda::mr::device_accessible>);
static_assert(!::cuda::mr::resource_with<MemoryResource, ::cuda::mr::host_accessible>);
using AnyResource = ::cuda::mr::resource_ref<::cuda::mr::device_accessible>;
void* allocate_by(AnyResource resource, stream_ref stream, std::size_t bytes) {
  return resource.allocate(stream, bytes, 256);
}
void deallocate_by(AnyResource resource, stream_ref stream, void* block, std::size_t bytes) {
  resource.deallocate(stream, block, bytes, 256);
}
#else
static_assert(::cuda::mr::resource<MemoryResource>);
static_assert(::cuda::mr::async_resource<MemoryResource>);
static_assert(::cuda::mr::async_resource_with<MemoryResource, ::cuda::mr::device_accessible>);
static_assert(!::cuda::mr::async_resource_with<MemoryResource, ::cuda::mr::host_accessible>);
using AnyResource = ::cuda::mr::async_resource_ref<::cuda::mr::device_accessible>;
void* allocate_by(AnyResource resource, stream_ref stream, std::size_t bytes) {
  return resource.allocate_async(bytes, 256, stream);
}
void deallocate_by(AnyResource resource, stream_ref stream, void* block, std::size_t bytes) {
  resource.deallocate_async(block, bytes, 256, stream);
}
#endif

class MemoryResourceTest : public ::testing::Test {
 protected:
  static Config quiet() {
    Config config;
    config.log = LogLevel::off;
    return config;
  }
  stream_ref new_stream() { return static_cast<cudaStream_t>(device_.new_stream().handle); }
  bool write(stream_ref stream, void* block, Bytes bytes, Nanoseconds time) {
    return device_.launch(device_.stream(stream.get()).value(), Writes(block, bytes), time).ok();
  }

  SimDevice device_;
  Allocator allocator_{device_, quiet()};
  MemoryResource resource_{allocator_};
  const stream_ref one_ = new_stream();
  const stream_ref other_ = new_stream();
};

TEST_F(MemoryResourceTest, ServesWhoTakesAnyResource) {
  void* const block = allocate_by(resource_, one_, 3 << 20);
  EXPECT_TRUE(write(one_, block, 3_MiB, 1_ms));
  EXPECT_EQ(allocator_.statistics().live_bytes.current, (3_MiB).count);
  deallocate_by(resource_, one_, block, 3 << 20);
  EXPECT_EQ(allocator_.statistics().live_bytes.current, 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_F(MemoryResourceTest, BlockGivenBackOnItsStreamServesTheNextRequestWithNoWait) {
  void* const block = resource_.allocate(one_, 64 << 20);
  EXPECT_TRUE(write(one_, block, 64_MiB, 5_ms));
  resource_.deallocate(one_, block, 64 << 20);
  void* const next = resource_.allocate(one_, 64 << 20);
  EXPECT_EQ(next, block);
  EXPECT_TRUE(write(one_, next, 64_MiB, 5_ms));
  EXPECT_EQ(allocator_.statistics().stream_waits, 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
  resource_.deallocate(one_, next, 64 << 20);
}

TEST_F(MemoryResourceTest, BlockGivenBackOnAnotherStreamIsUsedAgainAfterThatStreamsWork) {
  void* const block = resource_.allocate(one_, 64 << 20);
  EXPECT_TRUE(write(other_, block, 64_MiB, 5_ms));
  resource_.deallocate(other_, block, 64 << 20);
  void* const next = resource_.allocate(one_, 64 << 20);
  EXPECT_EQ(next, block);
  EXPECT_TRUE(write(one_, next, 64_MiB, 1_ms));
  EXPECT_EQ(allocator_.statistics().host_waits, 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
  resource_.deallocate(one_, next, 64 << 20);
}

TEST_F(MemoryResourceTest, SynchronousBlockMayBeUsedOnAnyStreamAtOnce) {
  void* const block = resource_.allocate(one_, 64 << 20);
  EXPECT_TRUE(write(one_, block, 64_MiB, 5_ms));
  resource_.deallocate(one_, block, 64 << 20);
  allocator_.set_limit(64_MiB);  // the same memory, or none
  void* const next = resource_.allocate_sync(64 << 20);
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(write(other_, next, 64_MiB, 1_ms));
  EXPECT_THAT(device_.races(), IsEmpty());
  device_.finish();
  resource_.deallocate_sync(next, 64 << 20);
}

TEST_F(MemoryResourceTest, TooLargeAnAlignmentIsAnErrorThatSaysWhatCanBeHad) {
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{3}, std::size_t{1024}}) {
    EXPECT_THROW(resource_.allocate(one_, 16, wrong), Exception);
    EXPECT_THROW(resource_.allocate_sync(16, wrong), Exception);
  }
  for (std::size_t alignment = 1; alignment <= MemoryResource::kAlignment; alignment *= 2) {
    void* const block = resource_.allocate(one_, alignment, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0u);
    resource_.deallocate(one_, block, alignment, alignment);
  }
}

TEST_F(MemoryResourceTest, ZeroBytesAreNullAndGoBack) {
  void* const none = resource_.allocate(one_, 0);
  EXPECT_EQ(none, nullptr);
  resource_.deallocate(one_, none, 0);
  EXPECT_EQ(resource_.allocate_sync(0), nullptr);
  resource_.deallocate_sync(nullptr, 0);
}

TEST_F(MemoryResourceTest, LackOfMemoryIsBadAlloc) {
  allocator_.set_limit(16_MiB);
  EXPECT_THROW(allocate_by(resource_, one_, 17 << 20), std::bad_alloc);
}

TEST_F(MemoryResourceTest, BlockThatIsNoneChangesNothing) {
  int on_the_stack = 0;
  resource_.deallocate(one_, &on_the_stack, sizeof on_the_stack);
  resource_.deallocate_sync(&on_the_stack, sizeof on_the_stack);
  EXPECT_THAT(allocator_.validate(), IsEmpty());
}

TEST_F(MemoryResourceTest, EqualWhereBlocksOfTheOneAreTheOthers) {
  Allocator second(device_, quiet());
  EXPECT_TRUE(resource_ == MemoryResource(allocator_));
  EXPECT_TRUE(resource_ != MemoryResource(second));
  EXPECT_TRUE(MemoryResource(allocator_, 0) != resource_);
}

TEST_F(MemoryResourceTest, NamesOfOldMeanTheSame) {
  void* const block = resource_.allocate_async(4096, 256, one_);
  resource_.deallocate_async(block, 4096, 256, one_);
  void* const next = resource_.allocate_async(4096, one_);
  EXPECT_EQ(next, block);
  resource_.deallocate_async(next, 4096, one_);
  void* const synchronous = resource_.allocate(4096);
  ASSERT_NE(synchronous, nullptr);
  resource_.deallocate(synchronous, 4096);
  EXPECT_EQ(allocator_.statistics().live_bytes.current, 0u);
}

}  // namespace
}  // namespace weir
