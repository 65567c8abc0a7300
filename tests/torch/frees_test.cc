// SPDX-License-Identifier: Apache-2.0
#include "torch/frees.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

TEST(Frees, EachBlockIsReturnedToOneThreadOnce) {
  SimDevice device;
  const Stream user = device.new_stream();
  Frees frees;
  std::vector<int> blocks(4000);
  std::atomic<int> returned{0};
  std::vector<std::thread> threads;
  for (std::size_t first : {0, 1, 2, 3}) {
    threads.emplace_back([&, first] {
      for (std::size_t i = first; i < blocks.size(); i += 4) {
        frees.add_user(&blocks[i], device, user);
        EXPECT_TRUE(frees.defer(&blocks[i]));
        for (void* const done : frees.take_done()) {
          ++*static_cast<int*>(done);
          ++returned;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (void* const done : frees.wait_and_take_done()) {
    ++*static_cast<int*>(done);
    ++returned;
  }
  EXPECT_EQ(returned, 4000);
  EXPECT_THAT(blocks, testing::Each(1));
  EXPECT_FALSE(frees.any());
  EXPECT_EQ(device.live().events, 0u);
}

// Whichever call the device refuses, at the free or when it is looked at again.
TEST(Frees, AFreeThatFailsIsReportedOnceAndForgotten) {
  SimDevice device;
  const Stream user = device.new_stream();
  Frees frees;
  int block = 0;
  EXPECT_FALSE(frees.defer(&block)) << "it has no users";
  for (const DeviceCall call : {DeviceCall::capture_info, DeviceCall::create_event,
                                DeviceCall::record, DeviceCall::query}) {
    frees.add_user(&block, device, user);
    ASSERT_TRUE(device.launch(user, 5_ms).ok());
    device.fail(call, 1);
    EXPECT_TRUE(frees.defer(&block));
    EXPECT_THAT(frees.take_done(), testing::IsEmpty());
    EXPECT_FALSE(frees.is_waiting(&block));
    ASSERT_TRUE(frees.any());
    EXPECT_EQ(frees.take_failure()->code(), ErrorCode::device);
    EXPECT_FALSE(frees.any());
  }
  frees.add_user(&block, device, user);
  frees.forget(&block);
  EXPECT_FALSE(frees.any());
  EXPECT_EQ(device.live().events, 0u);
}

TEST(Frees, OfSeveralFailuresTheFirstIsToldAndTheOthersAreCounted) {
  Frees frees;
  int block = 0;
  for (const char* const what : {"second", "third", "fourth"}) {
    frees.note_failed(&block, {ErrorCode::device, what});
  }
  EXPECT_THAT(frees.take_failure()->message(),
              testing::AllOf(testing::HasSubstr("second"), testing::HasSubstr("2 later")));
  EXPECT_FALSE(frees.take_failure().has_value());
}

// Numbers of streams count from the same one on each device.
TEST(Frees, StreamsOfTwoDevicesWithOneNumberAreBothWaitedFor) {
  SimDevice first, second;
  const Stream of_first = first.new_stream(), of_second = second.new_stream();
  ASSERT_EQ(of_first, of_second);
  Frees frees;
  int block = 0;
  frees.add_user(&block, first, of_first);
  frees.add_user(&block, second, of_second);
  ASSERT_TRUE(second.launch(of_second, 5_ms).ok());
  EXPECT_TRUE(frees.defer(&block));
  EXPECT_THAT(frees.take_done(), testing::IsEmpty());
  second.finish();
  EXPECT_THAT(frees.take_done(), testing::SizeIs(1));
}

}  // namespace
}  // namespace weir::pytorch
