// SPDX-License-Identifier: Apache-2.0
// Memory of other processes, on a simulated device: this process shares with itself.
#include "torch/ipc.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

class OpenedMemory : public testing::Test {
 protected:
  ~OpenedMemory() override { ::close(descriptor_); }
  // Of a block of 3 MiB, 1 MiB into the first of two pages.
  std::string handle() const {
    return SharedBlock{.process = ::getpid(),
                       .skipped = 1_MiB,
                       .bytes = 3_MiB,
                       .pages = {{descriptor_, 2_MiB}, {descriptor_, 2_MiB}}}
        .encode();
  }
  Result<std::shared_ptr<void>> open() {
    return opened_.open(
        device_, [this](int) { return device_.create(2_MiB); }, handle());
  }

  const int descriptor_ = ::open("/dev/null", O_RDONLY);
  SimDevice device_;
  OpenedBlocks opened_;
};

TEST_F(OpenedMemory, IsMappedOnceAndUntilTheLastHolderLetsItGo) {
  std::shared_ptr<void> first = open().value(), second = open().value();
  EXPECT_EQ(first, second);
  EXPECT_EQ(device_.live_mappings(), 2u);
  EXPECT_EQ(device_.translate(Address::of(first.get()), 3_MiB).size(), 2u);
  first = nullptr;
  EXPECT_EQ(device_.live_mappings(), 2u);
  second = nullptr;
  EXPECT_EQ(device_.live_mappings(), 0u);
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  EXPECT_EQ(device_.live_reservations(), 0u);
}

TEST_F(OpenedMemory, ADeviceThatMayReachTheMemoryLaterReachesWhatIsOpenAlready) {
  const std::shared_ptr<void> memory = open().value();
  const std::uint64_t before = device_.calls(DeviceCall::set_access);
  SimDevice other;
  EXPECT_TRUE(opened_.renew_access(other).ok());
  EXPECT_EQ(device_.calls(DeviceCall::set_access), before);
  EXPECT_TRUE(opened_.renew_access(device_).ok());
  EXPECT_GT(device_.calls(DeviceCall::set_access), before);
}

TEST_F(OpenedMemory, WhatIsNoHandleIsRefused) {
  const auto opened = opened_.open(
      device_, [this](int) { return device_.create(2_MiB); }, "x");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), ErrorCode::invalid_input);
}

TEST_F(OpenedMemory, IsUnmappedOnceTheWorkOfAllStreamsIsDone) {
  const Stream stream = device_.new_stream();
  std::shared_ptr<void> memory = open().value();
  ASSERT_TRUE(device_.launch(stream, Reads(memory.get(), 3_MiB), 5_ms).ok());
  memory = nullptr;
  EXPECT_EQ(device_.race_count(), 0u);
}

}  // namespace
}  // namespace weir::pytorch
