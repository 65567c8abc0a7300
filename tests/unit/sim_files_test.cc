// SPDX-License-Identifier: Apache-2.0
// Files of the simulated device: what they hold and refuse, and host memory that a copy still uses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/sim_memory_helpers.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using test::MappedPage;
using test::new_page;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SimFiles : public testing::Test {
 protected:
  void copy_out() {
    ASSERT_TRUE(device_.launch(out_, Writes(page_.at(), 2_MiB), 10_us).ok());
    ASSERT_TRUE(device_.copy_to_host(host_, page_.address, 2_MiB, out_).ok());
  }

  SimDevice device_{{.track_contents = true, .disk = 8_MiB}};
  const MappedPage page_ = new_page(device_);
  void* const host_ = *device_.allocate_host(4_MiB);
  const Stream out_ = *device_.copy_stream(Device::Direction::to_host);
  const Stream in_ = *device_.copy_stream(Device::Direction::to_device);
  const FileHandle file_ = device_.open_file("/folder", 4_MiB)->handle;
};

TEST_F(SimFiles, AFileHoldsWhatWasWrittenToIt) {
  copy_out();
  device_.finish();
  const std::vector<SimContent> before = device_.contents(page_.address, 2_MiB);
  ASSERT_THAT(before, SizeIs(1));
  void* const behind = (Address::of(host_) + 2_MiB).pointer();
  ASSERT_TRUE(device_.write_file(file_, 1_MiB, host_, 2_MiB).ok());
  ASSERT_TRUE(device_.read_file(file_, 1_MiB, behind, 2_MiB).ok());
  ASSERT_TRUE(device_.fill_with_zeros(page_.address, 2_MiB, in_).ok());
  ASSERT_TRUE(device_.copy_to_device(page_.address, behind, 2_MiB, in_).ok());
  EXPECT_EQ(device_.contents(page_.address, 2_MiB), before);
  // What was never written is nothing, whatever was in the memory that it is read to.
  device_.finish();
  ASSERT_TRUE(device_.read_file(file_, 3_MiB, behind, 1_MiB).ok());
  ASSERT_TRUE(device_.copy_to_device(page_.address, behind, 1_MiB, in_).ok());
  EXPECT_THAT(device_.contents(page_.address, 1_MiB), IsEmpty());
}

TEST_F(SimFiles, ToWriteMemoryThatACopyStillFillsIsARace) {
  copy_out();
  ASSERT_TRUE(device_.write_file(file_, 0_B, host_, 1_MiB).ok());
  ASSERT_THAT(device_.races(), SizeIs(1));
  EXPECT_EQ(device_.races()[0].kind, Race::Kind::host);
  EXPECT_THAT(device_.races()[0].describe(), HasSubstr("the host itself reads 1048576 bytes"));
  EXPECT_THAT(device_.races()[0].describe(),
              HasSubstr("stream " + std::to_string(out_.id) + ", which writes 2097152 bytes"));
  // The next bytes are another's.
  ASSERT_TRUE(device_.write_file(file_, 0_B, (Address::of(host_) + 2_MiB).pointer(), 1_MiB).ok());
  EXPECT_EQ(device_.race_count(), 1u);
}

TEST_F(SimFiles, ToReadOrFreeMemoryThatACopyStillReadsIsARaceAndToWriteItIsNone) {
  device_.finish();
  ASSERT_TRUE(device_.copy_to_device(page_.address, host_, 2_MiB, in_).ok());
  ASSERT_TRUE(device_.write_file(file_, 0_B, host_, 2_MiB).ok());
  EXPECT_EQ(device_.race_count(), 0u);
  ASSERT_TRUE(device_.read_file(file_, 0_B, host_, 2_MiB).ok());
  EXPECT_EQ(device_.race_count(), 1u);
  ASSERT_TRUE(device_.free_host(host_, 4_MiB).ok());
  EXPECT_EQ(device_.race_count(), 2u);
}

TEST_F(SimFiles, AfterTheHostHasWaitedNothingRaces) {
  copy_out();
  const EventHandle event = *device_.create_event();
  ASSERT_TRUE(device_.record(event, out_).ok());
  ASSERT_TRUE(device_.synchronize(event).ok());
  ASSERT_TRUE(device_.write_file(file_, 0_B, host_, 2_MiB).ok());
  ASSERT_TRUE(device_.read_file(file_, 0_B, host_, 2_MiB).ok());
  ASSERT_TRUE(device_.free_host(host_, 4_MiB).ok());
  EXPECT_THAT(device_.races(), IsEmpty());
}

// The two directions have a stream each, and nothing orders the one after the other.
TEST_F(SimFiles, ACopyBackThatIsNotOrderedAfterTheCopyOutIsARace) {
  copy_out();
  const MappedPage other = new_page(device_);
  ASSERT_TRUE(device_.copy_to_device(other.address, host_, 2_MiB, in_).ok());
  EXPECT_EQ(device_.race_count(), 1u);
}

TEST_F(SimFiles, WhatIsGivenWrongIsRefused) {
  const auto refused = [&](const Status& status, const char* says) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::device);
    EXPECT_THAT(status.error().message(), HasSubstr(says));
  };
  refused(device_.write_file(file_, 1_KiB, host_, 4_KiB), "4 KiB");
  refused(device_.write_file(file_, 0_B, host_, 1_KiB), "4 KiB");
  refused(device_.read_file(file_, 0_B, (Address::of(host_) + 512_B).pointer(), 4_KiB), "4 KiB");
  refused(device_.read_file(file_, 4_MiB, host_, 4_KiB), "beyond");
  refused(device_.read_file(file_, 0_B, Address{(1_GiB).count}.pointer(), 4_KiB), "allocate_host");
  refused(device_.read_file({77}, 0_B, host_, 4_KiB), "read_file: invalid handle");
  refused(device_.write_file({77}, 0_B, host_, 4_KiB), "write_file: invalid handle");
  refused(device_.sync_file({77}), "sync_file: invalid handle");
  refused(device_.close_file({77}), "close_file: invalid handle");
}

TEST_F(SimFiles, TheDiskIsFullWhenAFileIsOpenedAndEmptyOnceAllAreClosed) {
  EXPECT_EQ(device_.file_bytes(), 4_MiB);
  const Result<OpenedFile> more = device_.open_file("/folder", 8_MiB);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code(), ErrorCode::invalid_input);
  EXPECT_THAT(more.error().message(), HasSubstr("'/folder' has no room"));
  ASSERT_TRUE(device_.close_file(file_).ok());
  EXPECT_EQ(device_.file_bytes(), 0_B);
  EXPECT_TRUE(device_.open_file("/folder", 8_MiB).ok());
  EXPECT_FALSE(device_.open_file("/folder", 1_KiB).ok());
}

TEST_F(SimFiles, TimeGoesByOnTheHostAsBytesAreWrittenAndRead) {
  device_.finish();
  const Nanoseconds begun = device_.now();
  ASSERT_TRUE(device_.write_file(file_, 0_B, host_, 4_MiB).ok());
  EXPECT_EQ(device_.time_in(DeviceCall::write_file), 1_ms);
  ASSERT_TRUE(device_.read_file(file_, 0_B, host_, 4_MiB).ok());
  EXPECT_EQ(device_.now() - begun, 1_ms + 640_us);
}

}  // namespace
}  // namespace weir
