// SPDX-License-Identifier: Apache-2.0
// CudaDevice's pages as other processes see them: one page, mapped twice by way of its handle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/conformance/cuda_rig.h"

namespace weir::conformance {
namespace {

class CudaExchange : public testing::Test {
 protected:
  void SetUp() override {
    RigOrReason made = make_cuda_rig();
    if (made.rig == nullptr) GTEST_SKIP() << made.reason;
    rig_ = std::move(made.rig);
    page_ = device().create(size()).value();
  }
  void TearDown() override {
    if (rig_ == nullptr) return;
    EXPECT_TRUE(device().release(page_).ok());
  }

  Device& device() { return rig_->device(); }
  MemoryExchange& exchange() { return dynamic_cast<MemoryExchange&>(device()); }
  Bytes size() { return device().granularity(); }

  // What is written through the page is seen through the other handle, which is released.
  void expect_same_memory(PhysicalHandle other) {
    const Stream stream = rig_->new_stream();
    const Address at = device().reserve(size() * 2, size()).value();
    ASSERT_TRUE(device().map(at, size(), page_).ok());
    ASSERT_TRUE(device().map(at + size(), size(), other).ok());
    ASSERT_TRUE(device().set_access(at, size() * 2).ok());
    rig_->fill(stream, at, size(), 0x51a7e11e);
    ASSERT_TRUE(device().synchronize_context().ok());
    rig_->expect_filled(at + size(), size(), 0x51a7e11e);
    EXPECT_TRUE(device().unmap(at, size()).ok());
    EXPECT_TRUE(device().unmap(at + size(), size()).ok());
    EXPECT_TRUE(device().unreserve(at, size() * 2).ok());
    EXPECT_TRUE(device().release(other).ok());
    rig_->destroy_stream(stream);
  }

  std::unique_ptr<Rig> rig_;
  PhysicalHandle page_;
};

TEST_F(CudaExchange, APageComesBackByItsDescriptor) {
  const Result<int> descriptor = exchange().export_page(page_);
  if (!descriptor) GTEST_SKIP() << descriptor.error().message();
  const Result<PhysicalHandle> other = exchange().import_page(*descriptor);
  EXPECT_EQ(::close(*descriptor), 0);
  ASSERT_TRUE(other.ok()) << other.error().message();
  expect_same_memory(*other);
}

TEST_F(CudaExchange, WhatIsNoHandleIsRefused) {
  for (const std::string& handle : {std::string{}, std::string(63, 'x'), std::string(65, 'x')}) {
    const Result<Address> segment = exchange().import_segment(handle);
    ASSERT_FALSE(segment.ok());
    EXPECT_EQ(segment.error().code(), ErrorCode::invalid_input);
    EXPECT_THAT(segment.error().message(), testing::HasSubstr("64 bytes"));
  }
}

}  // namespace
}  // namespace weir::conformance
