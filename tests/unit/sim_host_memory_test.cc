// SPDX-License-Identifier: Apache-2.0
// Host memory of the simulated device: what copies do to it, what is refused, and who still uses
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/sim_memory_helpers.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using test::MappedPage;
using test::new_page;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SimHostMemory : public testing::Test {
 protected:
  void copy_out() {
    ASSERT_TRUE(device_.launch(out_, Writes(page_.at(), 2_MiB), 10_us).ok());
    ASSERT_TRUE(device_.copy_to_host(host_, page_.address, 2_MiB, out_).ok());
  }

  SimDevice device_{{.track_contents = true}};
  const MappedPage page_ = new_page(device_);
  void* const host_ = *device_.allocate_host(4_MiB);
  const Stream out_ = *device_.copy_stream(Device::Direction::to_host);
  const Stream in_ = *device_.copy_stream(Device::Direction::to_device);
};

TEST_F(SimHostMemory, ToFreeMemoryThatACopyStillFillsOrReadsIsARace) {
  copy_out();
  ASSERT_TRUE(device_.free_host(host_, 4_MiB).ok());
  ASSERT_THAT(device_.races(), SizeIs(1));
  EXPECT_EQ(device_.races()[0].kind, Race::Kind::host);
  EXPECT_THAT(device_.races()[0].describe(),
              HasSubstr("stream " + std::to_string(out_.id) + ", which writes 2097152 bytes"));
  device_.finish();
  void* const other = *device_.allocate_host(4_MiB);
  ASSERT_TRUE(device_.copy_to_device(page_.address, other, 2_MiB, in_).ok());
  ASSERT_TRUE(device_.free_host(other, 4_MiB).ok());
  EXPECT_EQ(device_.race_count(), 2u);
}

TEST_F(SimHostMemory, HostMemoryIsOfWhole2MiBAndEndsWhereTheHostHasNoMore) {
  SimDevice device({.host_memory = 8_MiB});
  for (const Bytes size : {0_B, 1_B, 1_MiB, 3_MiB}) {
    const Result<void*> refused = device.allocate_host(size);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::device);
    EXPECT_THAT(refused.error().message(), HasSubstr("not a multiple of 2 MiB"));
  }
  const Nanoseconds before = device.now();
  void* const first = *device.allocate_host(2_MiB);
  const Nanoseconds two = device.now() - before;
  EXPECT_GT(two, 0_ns);
  void* const second = *device.allocate_host(4_MiB);
  EXPECT_EQ(device.now() - before, two + two + two) << "by its bytes";
  EXPECT_EQ(device.live().host_bytes, 6_MiB);
  const Result<void*> too_large = device.allocate_host(4_MiB);
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.error().code(), ErrorCode::out_of_memory);
  void* const third = *device.allocate_host(2_MiB);
  for (const Bytes wrong : {2_MiB, 6_MiB}) EXPECT_FALSE(device.free_host(second, wrong).ok());
  EXPECT_FALSE(device.free_host((Address::of(second) + 2_MiB).pointer(), 2_MiB).ok());
  EXPECT_EQ(device.live().host_bytes, 8_MiB);
  ASSERT_TRUE(device.free_host(second, 4_MiB).ok());
  EXPECT_EQ(*device.allocate_host(4_MiB), second) << "where there is room";
  for (void* const memory : {first, third}) EXPECT_TRUE(device.free_host(memory, 2_MiB).ok());
  EXPECT_EQ(device.live().host_bytes, 4_MiB);
}

TEST_F(SimHostMemory, CopiesNeedHostMemoryThatIsThereAndDeviceMemoryThatIsMapped) {
  const auto refused = [&](const Status& status, const char* says) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::device);
    EXPECT_THAT(status.error().message(), HasSubstr(says));
  };
  void* const late = (Address::of(host_) + 3_MiB).pointer();
  void* const early = Address{Address::of(host_).value - 4096}.pointer();
  for (void* const host : {late, early}) {
    refused(device_.copy_to_host(host, page_.address, 2_MiB, out_), "copy_to_host: invalid value");
    refused(device_.copy_to_device(page_.address, host, 2_MiB, in_),
            "copy_to_device: invalid value");
  }
  const Address behind = page_.address + 1_MiB;
  refused(device_.copy_to_host(host_, behind, 2_MiB, out_), "copy_to_host: launch");
  refused(device_.copy_to_device(behind, host_, 2_MiB, in_), "copy_to_device: launch");
  refused(device_.fill_with_zeros(behind, 2_MiB, in_), "fill_with_zeros: launch");
  EXPECT_TRUE(device_.copy_to_host(late, page_.address, 1_MiB, out_).ok());
}

// Bytes of one write that lie side by side are one piece, across pages and after a copy in parts.
TEST_F(SimHostMemory, WhatTheBytesHoldIsSaidInAsFewPiecesAsThereAreWrites) {
  const Address row = *device_.reserve(4_MiB, 2_MiB);
  for (const Bytes at : {0_B, 2_MiB}) {
    ASSERT_TRUE(device_.map(row + at, 2_MiB, *device_.create(2_MiB)).ok());
  }
  ASSERT_TRUE(device_.set_access(row, 4_MiB).ok());
  ASSERT_TRUE(device_.launch(in_, Writes((row + 1_MiB).pointer(), 2_MiB), 1_us).ok());
  const auto contents = [&](Bytes bytes) { return device_.contents(row, bytes); };
  EXPECT_THAT(contents(4_MiB), ElementsAre(SimContent{1_MiB, 2_MiB, 1, 0}));
  EXPECT_THAT(contents(2_MiB), ElementsAre(SimContent{1_MiB, 1_MiB, 1, 0}));
  ASSERT_TRUE(device_.fill_with_zeros(row + 3_MiB, 512_KiB, in_).ok());
  ASSERT_TRUE(device_.fill_with_zeros(row + 3_MiB + 512_KiB, 512_KiB, in_).ok());
  const SimContent zeros{3_MiB, 1_MiB, SimContent::kZeros, 0};
  EXPECT_THAT(contents(4_MiB), ElementsAre(SimContent{1_MiB, 2_MiB, 1, 0}, zeros));
  // The second half of the write goes before the first: the two are no whole any more.
  ASSERT_TRUE(device_.copy_to_host(host_, row + 2_MiB, 1_MiB, in_).ok());
  ASSERT_TRUE(device_.copy_to_device(row, host_, 1_MiB, in_).ok());
  EXPECT_THAT(contents(4_MiB), ElementsAre(SimContent{0_B, 1_MiB, 1, (1_MiB).count},
                                           SimContent{1_MiB, 2_MiB, 1, 0}, zeros));
  EXPECT_THAT(device_.races(), IsEmpty());
}

}  // namespace
}  // namespace weir
