// SPDX-License-Identifier: Apache-2.0
#include "weir/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/temporary_folder.h"
#include "tests/unit/core_test_access.h"
#include "weir/graph_pool.h"
#include "weir/log.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config quiet() {
  Config config;
  config.log = LogLevel::off;
  return config;
}

// The call must throw a T; returns what() of it.
template <class T, class Call>
std::string thrown_by(Call call) {
  try {
    call();
  } catch (const T& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

class AllocatorTest : public ::testing::Test {
 protected:
  SimDevice device_;
  Allocator allocator_{device_, quiet()};
  void* const compute_ = device_.new_stream().handle;
  void* const copy_ = device_.new_stream().handle;
  Stream stream(void* handle) { return device_.stream(handle).value(); }
};

// Its recording shows when a device is opened.
TEST(AllocatorOfAnUnusedDevice, WhoeverLooksAtItSeesNothingAndOpensNothing) {
  const test::TemporaryFolder folder;
  Config config = quiet();
  config.device = DeviceKind::sim;
  config.record = folder / "opened.weir";
  Allocator allocator(std::move(config));
  EXPECT_EQ(allocator.statistics(0), Statistics{});
  EXPECT_EQ(allocator.statistics(), Statistics{});
  EXPECT_THAT(allocator.snapshot().blocks, IsEmpty());
  EXPECT_THAT(allocator.tags(), IsEmpty());
  EXPECT_THAT(thrown_by<Exception>([&] { (void)allocator.statistics(1); }), HasSubstr("device 1"));
  EXPECT_THAT(folder.names(), IsEmpty());
  allocator.deallocate(allocator.allocate(1_MiB, nullptr));
  EXPECT_THAT(folder.names(), testing::ElementsAre("opened.weir"));
  EXPECT_GT(allocator.statistics().live_bytes.peak, 0u);
}

TEST_F(AllocatorTest, GivesOutPlainMemoryWhereThatIsAskedFor) {
  const Buffer paged = allocator_.make_buffer(40_MiB, compute_);
  const std::uint64_t pages = device_.calls(DeviceCall::create);
  {
    Buffer plain = allocator_.make_buffer(40_MiB, compute_, {.plain = true});
    EXPECT_EQ(device_.calls(DeviceCall::allocate_segment), 1u);
    EXPECT_EQ(device_.calls(DeviceCall::create), pages);
    EXPECT_EQ(allocator_.heap().parts(plain.data()).size(), 1u);
    EXPECT_TRUE(device_.launch(stream(copy_), Writes(plain.data(), 40_MiB), 1_ms).ok());
    plain.fence(copy_);
  }
  // Plain memory serves plain requests only, after what still uses it.
  const Buffer more = allocator_.make_buffer(40_MiB, compute_);
  EXPECT_GT(device_.calls(DeviceCall::create), pages);
  const Buffer plain = allocator_.make_buffer(40_MiB, compute_, {.plain = true});
  EXPECT_EQ(device_.calls(DeviceCall::allocate_segment), 1u);
  EXPECT_TRUE(device_.launch(stream(compute_), Writes(plain.data(), 40_MiB), 1_ms).ok());
  EXPECT_EQ(device_.race_count(), 0u);
  EXPECT_THAT(allocator_.validate(), IsEmpty());
  device_.finish();
}

// Whatever others have of it.
TEST(Allocators, TakeALimitThatIsAShareOfAllThatTheDeviceHas) {
  SimDevice device({.memory = 1_GiB});
  const Stream stream = device.new_stream();
  const auto asked = [&] { return device.calls(DeviceCall::memory_info); };
  Allocator first(device, quiet());
  const std::uint64_t asked_without = asked();
  void* const block = first.allocate(512_MiB, stream.handle);
  Config config = quiet();
  ASSERT_TRUE(config.set("WEIR_LIMIT", "25%").ok());
  const std::uint64_t before = asked();
  Allocator second(device, config);
  EXPECT_EQ(asked() - before, asked_without + 1) << "how much that is";
  EXPECT_EQ(second.heap(0).options().limit, 256_MiB);
  first.deallocate(block);
}

TEST_F(AllocatorTest, NothingIsNull) {
  EXPECT_EQ(allocator_.allocate(0_B, compute_), nullptr);
  allocator_.deallocate(nullptr);
  EXPECT_FALSE(allocator_.make_buffer(0_B, compute_));
}

TEST_F(AllocatorTest, OutOfMemoryIsABadAllocThatSaysWhatHoldsTheMemory) {
  allocator_.set_limit(16_MiB);
  void* const held = allocator_.allocate(12_MiB, compute_);
  const std::string why =
      thrown_by<std::bad_alloc>([&] { (void)allocator_.allocate(8_MiB, compute_); });
  EXPECT_THAT(why, AllOf(HasSubstr("8"), HasSubstr("12"), HasSubstr("16")));
  EXPECT_EQ(thrown_by<OutOfMemory>([&] { (void)allocator_.allocate(8_MiB, compute_); }), why);
  allocator_.deallocate(held);
  EXPECT_NE(allocator_.allocate(8_MiB, compute_), nullptr);
}

TEST_F(AllocatorTest, WhatIsNoBlockIsAnErrorThatChangesNothing) {
  void* const block = allocator_.allocate(1_MiB, compute_);
  void* const inside = static_cast<char*>(block) + 512;
  std::ostringstream begin;
  begin << block;
  EXPECT_THAT(thrown_by<Exception>([&] { allocator_.deallocate(inside); }),
              HasSubstr("inside the one that begins at " + begin.str()));
  EXPECT_THROW(allocator_.fence(std::array{block, inside}, copy_), Exception);
  EXPECT_THROW(allocator_.record_stream(inside, copy_), Exception);
  EXPECT_EQ(allocator_.statistics().fences, 0u);
  allocator_.deallocate(block);
  EXPECT_THAT(thrown_by<Exception>([&] { allocator_.deallocate(block); }),
              HasSubstr("is not the start of a live block"));
}

TEST_F(AllocatorTest, AStreamThatIsNoneIsAnError) {
  void* const nonsense = reinterpret_cast<void*>(0x123456789);
  EXPECT_THROW((void)allocator_.allocate(1_MiB, nonsense), Exception);
  EXPECT_EQ(allocator_.statistics().live_blocks.total, 0u);
}

TEST_F(AllocatorTest, ADeviceThatIsNotThereIsAnErrorThatSaysHowManyThereAre) {
  EXPECT_THAT(thrown_by<Exception>([&] { (void)allocator_.allocate(1_MiB, compute_, 1); }),
              AllOf(HasSubstr("there is no device 1: the only one is device 0")));
  EXPECT_THROW((void)allocator_.statistics(-2), Exception);
}

TEST(AllocatorLifetime, EverythingGoesBackToTheDevice) {
  SimDevice device;
  {
    Allocator allocator(device, quiet());
    void* const stream = device.new_stream().handle;
    allocator.deallocate(allocator.allocate(64_MiB, stream));
    (void)allocator.allocate(1_MiB, stream);  // left live on purpose
    device.finish();
  }
  EXPECT_EQ(device.physical_bytes(), 0_B);
  EXPECT_EQ(device.live().handles + device.live().mappings, 0u);
  EXPECT_EQ(device.live().events + device.live().reservations, 0u);
}

class BufferTest : public AllocatorTest {
 protected:
  std::uint64_t live() const { return allocator_.statistics().live_blocks.current; }
};

TEST_F(BufferTest, MovingPassesTheBlockOn) {
  Buffer first = allocator_.make_buffer(1_MiB, compute_);
  void* const block = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), block);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that it is empty is the promise
  second = allocator_.make_buffer(2_MiB, compute_);
  EXPECT_EQ(live(), 1u);
  EXPECT_EQ(second.bytes(), 2_MiB);
}

TEST_F(BufferTest, ReleaseLeavesTheBlockToTheCaller) {
  Buffer buffer = allocator_.make_buffer(1_MiB, compute_);
  void* const block = buffer.release();
  buffer.reset();
  EXPECT_EQ(live(), 1u);
  allocator_.deallocate(block);
  EXPECT_EQ(live(), 0u);
}

// A destructor throws nothing.
TEST_F(BufferTest, WhoseBlockIsGoneIsLogged) {
  const test::TemporaryFolder folder;
  ASSERT_TRUE(configure_log(LogLevel::error, folder / "log").ok());
  {
    const Buffer buffer = allocator_.make_buffer(1_MiB, compute_);
    allocator_.deallocate(buffer.data());
  }
  ASSERT_TRUE(configure_log(LogLevel::warn).ok());  // closes the file
  EXPECT_THAT(test::content_of(folder / "log"), HasSubstr("error: "));
  EXPECT_EQ(live(), 0u);
}

// An allocator that validates after every call, with a block.
class Validating : public ::testing::Test {
 protected:
  static Config validating() {
    Config config = quiet();
    config.validate = true;
    return config;
  }
  SimDevice device_;
  Allocator allocator_{device_, validating()};
  void* const stream_ = device_.new_stream().handle;
  void* const block_ = allocator_.allocate(1_MiB, stream_);
};
using ValidatingAllocator = Validating;
using ValidatingAllocatorDeathTest = Validating;

TEST_F(ValidatingAllocator, GoesOnWhereNothingIsBroken) {
  allocator_.fence(block_, stream_);
  allocator_.deallocate(block_);
  EXPECT_EQ(allocator_.statistics().live_blocks.total, 1u);
}

// Whichever call broke it, or found it broken: the process ends, and says what is wrong and what
// happened last. (Suites of this name run first, when there is no thread yet.)
TEST_F(ValidatingAllocatorDeathTest, ABrokenHeapEndsTheProcessAfterEachCallThatValidates) {
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"allocate", [&] { (void)allocator_.allocate(1_MiB, stream_); }},
      {"allocate", [&] { (void)allocator_.allocate(1_MiB, stream_, {.tag = "weights"}); }},
      {"fence", [&] { allocator_.fence(block_, stream_); }},
      {"record_stream", [&] { allocator_.record_stream(block_, stream_); }},
      {"deallocate", [&] { allocator_.deallocate(block_); }},
      {"retire", [&] { allocator_.retire(stream_); }},
      {"trim", [&] { (void)allocator_.trim(); }},
      {"set_limit", [&] { allocator_.set_limit(1_GiB); }},
      {"sleep", [&] { (void)allocator_.sleep(); }},
      {"wake", [&] { (void)allocator_.wake(); }}};
  const auto end_of_life = [&](const std::function<void()>& call) {
    TestAccess::tables(allocator_.heap()).keeps_any = true;
    call();
    std::fputs("the call returned", stderr);
    std::abort();
  };
  for (const auto& [name, call] : calls) {
    EXPECT_DEATH(end_of_life(call), "weir: after " + std::string(name) +
                                        ", broken:\n  pages: none is kept, yet it is said that one "
                                        "is\nThe latest events, oldest "
                                        "first:\n(.*\n)*allocate heap=0")
        << name;
  }
  allocator_.deallocate(block_);
}

TEST(AllocatorConfig, ADeviceThatIsNullIsNamed) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<SimDevice>());
  devices.push_back(nullptr);
  EXPECT_THAT(thrown_by<Exception>([&] { const Allocator allocator(std::move(devices)); }),
              HasSubstr("device 1 of those given is null"));
}

TEST(AllocatorConfig, ALimitOfLessThanAPageIsWarnedOf) {
  const test::TemporaryFolder folder;
  Config config;
  config.log_file = folder / "log";
  SimDevice device;
  const std::string says = " bytes on " + device.name() + ", less than one page of " +
                           std::to_string(device.granularity().count) + " bytes";
  for (const Bytes limit : {device.granularity() - 1_B, device.granularity()}) {
    config.limit.bytes = limit;
    { const Allocator allocator(device, config); }
    ASSERT_TRUE(configure_log(LogLevel::warn).ok());  // closes the file
    const std::string line = "WEIR_LIMIT leaves " + std::to_string(limit.count) + says;
    EXPECT_EQ(test::content_of(config.log_file).find(line) != std::string::npos,
              limit < device.granularity());
  }
}

// Devices whose addresses differ, as those of one machine's do.
class TwoDevices : public ::testing::Test {
 protected:
  TwoDevices() {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::make_unique<SimDevice>());
    devices.push_back(std::make_unique<SimDevice>());
    first_ = static_cast<SimDevice*>(devices[0].get());
    second_ = static_cast<SimDevice*>(devices[1].get());
    EXPECT_TRUE(second_->reserve(66_TiB, 2_MiB).ok());  // keeps the low addresses from its heap
    allocator_ = std::make_unique<Allocator>(std::move(devices), quiet());
  }
  SimDevice* first_ = nullptr;
  SimDevice* second_ = nullptr;
  std::unique_ptr<Allocator> allocator_;
};

TEST_F(TwoDevices, ABlockGoesBackToTheDeviceThatItCameFrom) {
  void* const one = allocator_->allocate(4_MiB, first_->new_stream().handle, 0);
  void* const two = allocator_->allocate(8_MiB, second_->new_stream().handle, 1);
  EXPECT_EQ(allocator_->device_count(), 2);
  EXPECT_EQ(allocator_->statistics(0).live_bytes.current, (4_MiB).count);
  EXPECT_EQ(allocator_->statistics(1).live_bytes.current, (8_MiB).count);
  allocator_->deallocate(two);
  EXPECT_EQ(allocator_->statistics(0).live_bytes.current, (4_MiB).count);
  EXPECT_EQ(allocator_->statistics(1).live_bytes.current, 0u);
  allocator_->deallocate(one);
  EXPECT_EQ(allocator_->statistics(0).live_bytes.current, 0u);
  EXPECT_THROW(allocator_->deallocate(one), Exception);
}

TEST_F(TwoDevices, OneFenceMayNameBlocksOfBoth) {
  const Stream on_first = first_->new_stream(), on_second = second_->new_stream();
  void* const one = allocator_->allocate(4_MiB, on_first.handle, 0);
  void* const two = allocator_->allocate(4_MiB, on_second.handle, 1);
  // The same handle names a stream on each of these devices.
  ASSERT_EQ(first_->new_stream().handle, second_->new_stream().handle);
  void* const user = first_->stream(reinterpret_cast<void*>(3 << 12)).value().handle;
  allocator_->fence(std::array{one, two}, user);
  EXPECT_EQ(allocator_->statistics(0).fences, 1u);
  EXPECT_EQ(allocator_->statistics(1).fences, 1u);
  int nothing = 0;
  EXPECT_THROW(allocator_->fence(std::array{one, static_cast<void*>(&nothing)}, user), Exception);
  EXPECT_EQ(allocator_->statistics(0).fences, 1u);
}

TEST_F(TwoDevices, NullIsNoBlockToFence) {
  const Stream own = first_->new_stream(), user = first_->new_stream();
  void* const block = allocator_->allocate(4_MiB, own.handle, 0);
  allocator_->fence(std::array{static_cast<void*>(nullptr), block}, user.handle);
  EXPECT_EQ(allocator_->statistics(0).fences, 1u);
  allocator_->record_stream(nullptr, user.handle);
  allocator_->deallocate(block);
}

TEST_F(TwoDevices, WhatIsBrokenInEitherIsFound) {
  for (const int device : {0, 1}) {
    EXPECT_THAT(allocator_->validate(), IsEmpty());
    bool& keeps_any = TestAccess::tables(allocator_->heap(device)).keeps_any;
    keeps_any = true;
    EXPECT_THAT(allocator_->validate(),
                testing::ElementsAre(HasSubstr("none is kept, yet it is said that one is")));
    keeps_any = false;
  }
}

TEST_F(TwoDevices, TrimCoversBoth) {
  allocator_->deallocate(allocator_->allocate(4_MiB, first_->new_stream().handle, 0));
  allocator_->deallocate(allocator_->allocate(8_MiB, second_->new_stream().handle, 1));
  first_->finish();
  second_->finish();
  EXPECT_GE(allocator_->trim(), 12_MiB);
  EXPECT_EQ(first_->physical_bytes() + second_->physical_bytes(), 0_B);
}

}  // namespace
}  // namespace weir
