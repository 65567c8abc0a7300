// SPDX-License-Identifier: Apache-2.0
// The backend itself, on two simulated devices: what goes from one device to the other, and errors
// of frees.
#include "torch/backend.h"

#include <c10/cuda/CUDAGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/temporary_folder.h"
#include "tests/torch/fake_runtime.h"
#include "tests/torch/fake_source.h"
#include "tests/torch/own_process.h"
#include "torch/c10d/collective_fences.h"
#include "weir/recording.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

using testing::HasSubstr;

class Backends : public testing::Test {
 protected:
  void SetUp() override { backend_.init(2); }
  void TearDown() override {
    EXPECT_THAT(allocator_.validate(), testing::IsEmpty());
    for (const int device : {0, 1}) EXPECT_EQ(sim(device).race_count(), 0u);
  }

  SimDevice& sim(int device) { return dynamic_cast<SimDevice&>(allocator_.device(device)); }
  // PyTorch takes a handle with its last bit set for a number of its own streams.
  Stream new_stream(int device) {
    Stream stream = sim(device).new_stream();
    if ((reinterpret_cast<std::uintptr_t>(stream.handle) & 1) != 0) {
      stream = sim(device).new_stream();
    }
    return stream;
  }
  static c10::cuda::CUDAStream of_pytorch(Stream stream, int device) {
    return c10::cuda::CUDAStream(
        c10::cuda::CUDAStream::UNCHECKED,
        c10::Stream(c10::Stream::UNSAFE,
                    c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)),
                    static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(stream.handle))));
  }
  // As tensor.record_stream(stream) does.
  void record_stream(void* block, Stream user, int device) {
    const c10::DataPtr pointer(block, block, backend_.raw_deleter(), c10::Device(c10::kCUDA, 0));
    backend_.recordStream(pointer, of_pytorch(user, device));
    (void)const_cast<c10::DataPtr&>(pointer).release_context();
  }

  static std::vector<std::unique_ptr<Device>> two_devices() {
    std::vector<std::unique_ptr<Device>> devices;
    for (int i = 0; i < 2; ++i) devices.push_back(std::make_unique<SimDevice>());
    return devices;
  }
  weir::Allocator allocator_{two_devices()};
  Backend backend_{allocator_};
};

TEST_F(Backends, AStreamOfAnotherDeviceThatIsCapturedHoldsABlockBackUntilItsCaptureHasEnded) {
  const Stream own = new_stream(0), user = new_stream(1);
  void* const block = backend_.memory(0).allocate(8_MiB, own);
  record_stream(block, user, 1);
  ASSERT_TRUE(sim(1).begin_capture(user, CaptureMode::global).ok());
  backend_.raw_delete(block);
  void* const meanwhile = backend_.memory(0).allocate(8_MiB, own);
  EXPECT_NE(meanwhile, block);
  const Result<GraphHandle> graph = sim(1).end_capture(user);
  ASSERT_TRUE(graph.ok());                                       // nobody broke it
  backend_.raw_delete(backend_.memory(0).allocate(8_MiB, own));  // recorded now
  sim(1).advance(1_ms);
  void* const then = backend_.memory(0).allocate(8_MiB, own);
  void* const more = backend_.memory(0).allocate(8_MiB, own);
  EXPECT_TRUE(then == block || more == block);
  for (void* const each : {meanwhile, then, more}) backend_.raw_delete(each);
  ASSERT_TRUE(sim(1).destroy_graph(*graph).ok());
}

// The pool's state says who is live; a free from before must not free the block's next owner.
TEST_F(Backends, AFreeThatWaitsIsForgottenWhenItsPoolGoesBackToAnEarlierState) {
  const Stream own = new_stream(0), user = new_stream(1);
  const c10::MempoolId_t pool{0, 3};
  check(backend_.memory(0).pools().begin(
      pool, [own](cudaStream_t asking) { return asking == own.handle; }, own));
  void* const block = backend_.memory(0).allocate(8_MiB, own);
  const auto state = backend_.getCheckpointState(0, pool);
  record_stream(block, user, 1);
  ASSERT_TRUE(sim(1).begin_capture(user, CaptureMode::global).ok());
  backend_.raw_delete(block);  // waits for the end of the capture
  auto delta = backend_.setCheckpointPoolState(0, state);
  ASSERT_EQ(delta.dataptrs_allocd.size(), 1u);
  (void)delta.dataptrs_allocd[0].release_context();  // the test frees it itself
  const Result<GraphHandle> graph = sim(1).end_capture(user);
  ASSERT_TRUE(graph.ok());
  for (int i = 0; i < 3; ++i) {
    backend_.raw_delete(backend_.memory(0).allocate(1_MiB, own));
    sim(1).advance(1_ms);
  }
  ASSERT_EQ(check(backend_.memory(0).pools().blocks(pool)).size(), 1u);
  backend_.raw_delete(block);
  check(backend_.memory(0).pools().end(pool));
  backend_.releasePool(0, pool);
  ASSERT_TRUE(sim(1).destroy_graph(*graph).ok());
}

TEST_F(Backends, ADeviceThatIsOpenedLaterHasWhatWasSetBefore) {
  using native::TraceEntry;
  EXPECT_TRUE(backend_.isEnabled());
  backend_.enable(false);
  EXPECT_FALSE(backend_.isEnabled());
  EXPECT_FALSE(backend_.isHistoryEnabled());
  backend_.recordHistory(true, nullptr, 100, {}, false, {});
  EXPECT_TRUE(backend_.isHistoryEnabled());
  std::vector<std::size_t> short_of_memory;
  std::vector<int> tracked;
  backend_.attachOutOfMemoryObserver(
      [&](std::int64_t device, std::size_t asked, std::size_t allowed, std::size_t free) {
        short_of_memory = {static_cast<std::size_t>(device), asked, allowed, free};
      });
  backend_.attachAllocatorTraceTracker(
      [&](const TraceEntry& entry) { tracked.push_back(entry.device_); });

  const Stream stream = new_stream(1);
#if WEIR_TORCH_SINCE(12)
  std::vector<std::size_t> rejected;
  backend_.attachOomRejectionObserver(
      [&](std::int64_t device, std::size_t asked, std::size_t reserved, std::size_t total) {
        rejected = {static_cast<std::size_t>(device), asked, reserved, total};
      });
  c10::CachingAllocator::setAllocatorSettings("throw_on_cudamalloc_oom:True");
  EXPECT_THROW((void)backend_.memory(1).allocate(Bytes{1} * (1ull << 49), stream),
               c10::OutOfMemoryError);
  c10::CachingAllocator::setAllocatorSettings("throw_on_cudamalloc_oom:False");
  EXPECT_THAT(rejected,
              testing::ElementsAre(1, 1ull << 49, 0, sim(1).memory_info().value().total.count));
  EXPECT_THAT(short_of_memory, testing::IsEmpty());
  EXPECT_EQ(backend_.getDeviceStats(1).num_oom_rejections, 1);
  EXPECT_EQ(backend_.getDeviceStats(1).num_ooms, 0);
#endif
  EXPECT_THROW((void)backend_.memory(1).allocate(Bytes{1} * (1ull << 50), stream),
               c10::OutOfMemoryError);
  const MemoryInfo memory = sim(1).memory_info().value();
  EXPECT_THAT(short_of_memory,
              testing::ElementsAre(1, 1ull << 50, memory.total.count, memory.free.count));
  EXPECT_THAT(tracked, testing::ElementsAre(1));
  const std::vector<TraceEntry> entries = backend_.memory(1).history().entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].action_, TraceEntry::OOM);
  EXPECT_EQ(entries[0].addr_, memory.free.count);
  EXPECT_EQ(entries[0].size_, 1ull << 50);
  EXPECT_EQ(entries[0].stream_, stream.handle);
  backend_.raw_delete(backend_.memory(1).allocate(4_MiB, stream));
  EXPECT_EQ(sim(1).physical_bytes(), 0_B);  // nothing was cached
  backend_.enable(true);
  backend_.raw_delete(backend_.memory(1).allocate(4_MiB, stream));
  EXPECT_EQ(sim(1).physical_bytes(), 4_MiB);
  backend_.recordHistory(false, nullptr, 1, {}, true, {});
}

// Several streams, of both devices.
TEST_F(Backends, ABlockWaitsForAllStreamsThatWereRecorded) {
  const Stream own = new_stream(0), near = new_stream(0), first = new_stream(1),
               second = new_stream(1);
  void* const block = backend_.memory(0).allocate(8_MiB, own);
  ASSERT_TRUE(sim(0).launch(near, Writes(block, 8_MiB), 20_ms).ok());
  ASSERT_TRUE(sim(1).launch(first, 5_ms).ok());
  ASSERT_TRUE(sim(1).launch(second, 10_ms).ok());
  record_stream(block, near, 0);
  record_stream(block, first, 1);
  record_stream(block, second, 1);
  backend_.raw_delete(block);
  sim(0).advance(30_ms);
  sim(1).advance(7_ms);  // `first` is done
  void* const meanwhile = backend_.memory(0).allocate(8_MiB, own);
  EXPECT_NE(meanwhile, block);
  sim(1).advance(7_ms);
  void* const then = backend_.memory(0).allocate(8_MiB, own);
  EXPECT_EQ(then, block);
  ASSERT_TRUE(sim(0).launch(own, Writes(then, 8_MiB), 1_ms).ok());
  backend_.raw_delete(meanwhile);
  backend_.raw_delete(then);
}

TEST_F(Backends, EmptyingTheCacheWaitsForStreamsOfOtherDevices) {
  const Stream own = new_stream(0), user = new_stream(1);
  void* const block = backend_.memory(0).allocate(8_MiB, own);
  ASSERT_TRUE(sim(1).launch(user, 5_ms).ok());
  record_stream(block, user, 1);
  backend_.raw_delete(block);
  backend_.emptyCache({0, 0});
  EXPECT_EQ(sim(0).physical_bytes(), 0_B);
  EXPECT_EQ(sim(1).host_waits(), 1u);
}

// A free happens in destructors, where nothing may throw.
TEST_F(Backends, AFreeThatTheDeviceRefusesIsToldAtTheNextAllocation) {
  const Stream own = new_stream(0), user = new_stream(1);
  void* const block = backend_.memory(0).allocate(8_MiB, own);
  record_stream(block, user, 1);
  sim(1).fail(DeviceCall::record, 1);
  EXPECT_NO_THROW(backend_.raw_delete(block));
  try {
    (void)backend_.memory(0).allocate(4_MiB, own);
    ADD_FAILURE() << "the error was not told";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("record"));
    char address[32];
    std::snprintf(address, sizeof address, "%p", block);
    EXPECT_THAT(error.what(), HasSubstr(address));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("invalid device pointer")));
  }
  backend_.raw_delete(backend_.memory(0).allocate(4_MiB, own));  // once
  backend_.raw_delete(backend_.memory(1).allocate(4_MiB, user));
}

TEST_F(Backends, WhatIsNoBlockIsAnErrorAtOnceAsInPyTorchsOwn) {
  int none = 0;
  EXPECT_THROW(backend_.raw_delete(&none), c10::Error);
  const Stream own = new_stream(0);
  backend_.raw_delete(backend_.memory(0).allocate(4_MiB, own));
}

// An error of the device, of whatever call in a free, is never an "invalid device pointer".
TEST_F(Backends, AFreeInWhichACallOfTheDeviceFailsThrowsNothing) {
  const Stream own = new_stream(0);
  void* const block = backend_.memory(0).allocate(8_MiB, own);
  check(backend_.memory(0).pools().begin(
      {0, 3}, [](cudaStream_t) { return false; }, own));
  sim(0).fail(DeviceCall::capture_info, 1);
  EXPECT_NO_THROW(backend_.raw_delete(block));
  sim(0).fail(DeviceCall::capture_info, 1'000'000);
  try {
    backend_.raw_delete(backend_.memory(0).allocate(8_MiB, own));
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("an earlier free of the block at"));
  }
  check(backend_.memory(0).pools().end({0, 3}));
  check(backend_.memory(0).pools().release({0, 3}));
}

TEST_F(Backends, WhatPyTorchAsksOfADevicesMemory) {
  const Stream stream = new_stream(1);
  const auto handle = static_cast<cudaStream_t>(stream.handle);
  EXPECT_TRUE(backend_.initialized());
  Backend of_one_device(allocator_);
  EXPECT_FALSE(of_one_device.initialized());
  of_one_device.init(1);
  EXPECT_TRUE(of_one_device.initialized());
  EXPECT_THAT(backend_.name(), "native");
  char* const block = static_cast<char*>(backend_.raw_alloc_with_stream(0, handle));
  EXPECT_EQ(block, nullptr);
  DeviceMemory& memory = backend_.memory(1);
  char* const first =
      static_cast<char*>(memory.allocate(4_MiB, check(memory.streams().of(handle))));
  std::size_t size = 1;
  EXPECT_EQ(backend_.getBaseAllocation(first + 1000, &size), first);
  EXPECT_EQ(size, (4_MiB).count);
  EXPECT_EQ(backend_.getBaseAllocation(first, nullptr), first);
  EXPECT_THROW((void)backend_.getBaseAllocation(this, &size), c10::Error);

  const auto segments = backend_.getExpandableSegmentSizes(1);
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].stream, handle);
  EXPECT_EQ(segments[0].total_size, (4_MiB).count);
  EXPECT_FALSE(segments[0].is_small_pool);
  EXPECT_THAT(backend_.getExpandableSegmentSizes(0), testing::IsEmpty());

  std::size_t largest = 0;
  backend_.cacheInfo(1, &largest);
  EXPECT_EQ(largest, sim(1).memory_info()->free.count);
  backend_.raw_delete(first);
  backend_.raw_delete(memory.allocate(200_MiB, stream));
  backend_.cacheInfo(1, &largest);
  EXPECT_GE(largest, (sim(1).memory_info()->free + 190_MiB).count);  // what idles could go
  const std::size_t before = ++largest;
  backend_.cacheInfo(1, &largest);
  EXPECT_EQ(largest, before);  // the largest of those that were asked

  EXPECT_EQ(backend_.getMemoryFraction(1), 1);
  backend_.setMemoryFraction(0.25, 1);
  EXPECT_EQ(backend_.getMemoryFraction(1), 0.25);
  EXPECT_EQ(backend_.getMemoryFraction(0), 1);
  EXPECT_EQ(memory.heap().options().limit.count, sim(1).memory_info()->total.count / 4);
  backend_.setMemoryFraction(0, 1);
  EXPECT_EQ(memory.heap().options().limit, 1_B);
  backend_.setMemoryFraction(1, 1);
  EXPECT_EQ(memory.heap().options().limit, 0_B);

  EXPECT_EQ(backend_.getDeviceStats(1).allocated_bytes[0].peak, 200 << 20);
  backend_.resetPeakStats(1);
  backend_.resetAccumulatedStats(1);
  EXPECT_EQ(backend_.getDeviceStats(1).allocated_bytes[0].peak, 0);
  EXPECT_EQ(backend_.getDeviceStats(1).allocation[0].freed, 0);
}

// Loggers look at all GPUs. The allocator's recording shows when the device is opened.
TEST(BackendOfAnUnusedDevice, WhoeverLooksAtItSeesZerosAndOpensNothing) {
  const test::TemporaryFolder folder;
  Config config;
  for (const auto& [name, value] : {std::pair<std::string, std::string>{"WEIR_DEVICE", "sim"},
                                    {"WEIR_LOG", "off"},
                                    {"WEIR_RECORD", folder / "opened.weir"}}) {
    ASSERT_TRUE(config.set(name, value).ok());
  }
  weir::Allocator allocator(std::move(config));
  Backend backend(allocator);
  backend.init(1);
  const c10::MempoolId_t pool{0, 3};

  const auto stats = backend.getDeviceStats(0);
  EXPECT_EQ(stats.allocated_bytes[0].current, 0);
  EXPECT_EQ(stats.reserved_bytes[0].peak, 0);
  EXPECT_EQ(stats.max_split_size, -1);
  EXPECT_EQ(allocator.statistics(0), Statistics{});
  backend.resetPeakStats(0);
  backend.resetAccumulatedStats(0);
  EXPECT_EQ(backend.getMemoryFraction(0), 1);
  EXPECT_THAT(backend.getExpandableSegmentSizes(0), testing::IsEmpty());
  std::size_t largest = 0;
  backend.cacheInfo(0, &largest);
  EXPECT_EQ(largest, fake_runtime().free_bytes);
  largest = 5;
  backend.cacheInfo(0, &largest);
  EXPECT_EQ(largest, 5u);
  EXPECT_EQ(backend.getPoolUseCount(0, pool), 0);
  EXPECT_TRUE(backend.checkPoolLiveAllocations(0, pool, {}));
  EXPECT_FALSE(backend.checkPoolLiveAllocations(0, pool, {&largest}));
  EXPECT_NE(backend.getCheckpointState(0, pool), nullptr);
  EXPECT_THAT(backend.snapshot({0, 0}, true).segments, testing::IsEmpty());
  backend.emptyCache({0, 0});
  backend.recordHistory(true, nullptr, 1, {}, true, {});
  EXPECT_THAT(folder.names(), testing::IsEmpty());

  (void)backend.memory(0);
  EXPECT_THAT(folder.names(), testing::ElementsAre("opened.weir"));
}

TEST_F(Backends, ADeviceThatDoesNotExistHasNoStatistics) {
  for (const c10::DeviceIndex device : {-1, 2}) {
    EXPECT_THROW((void)backend_.getDeviceStats(device), c10::Error);
    EXPECT_THROW(backend_.resetPeakStats(device), c10::Error);
  }
}

TEST_F(Backends, LiveBlocksOfAPoolAreThoseThatAreExpectedOrNot) {
  const Stream own = new_stream(0);
  const c10::MempoolId_t pool{0, 8};
  check(backend_.memory(0).pools().begin(
      pool, [own](cudaStream_t asking) { return asking == own.handle; }, own));
  void* const first = backend_.memory(0).allocate(4_MiB, own);
  void* const second = backend_.memory(0).allocate(4_MiB, own);
  backend_.endAllocateToPool(0, pool);
  void* const outside = backend_.memory(0).allocate(4_MiB, own);
  EXPECT_EQ(backend_.getPoolUseCount(0, pool), 1);
  EXPECT_TRUE(backend_.checkPoolLiveAllocations(0, pool, {first, second}));
  EXPECT_FALSE(backend_.checkPoolLiveAllocations(0, pool, {first}));
  EXPECT_FALSE(backend_.checkPoolLiveAllocations(0, pool, {first, outside}));
  EXPECT_FALSE(backend_.checkPoolLiveAllocations(0, pool, {first, second, outside}));
  EXPECT_THROW((void)backend_.setCheckpointPoolState(0, nullptr), c10::Error);
  auto delta = backend_.setCheckpointPoolState(0, backend_.getCheckpointState(0, pool));
  EXPECT_THAT(delta.ptrs_freed, testing::UnorderedElementsAre(first, second));
  ASSERT_EQ(delta.dataptrs_allocd.size(), 2u);
  for (c10::DataPtr& each : delta.dataptrs_allocd) {
    EXPECT_EQ(each.get_deleter(), backend_.raw_deleter());
    EXPECT_EQ(each.device(), c10::Device(c10::kCUDA, 0));
    (void)each.release_context();  // the test frees it itself
  }
  for (void* const each : {first, second, outside}) backend_.raw_delete(each);
  backend_.releasePool(0, pool);
}

// Memory of another allocator's, and empty tensors, are nothing to Weir.
TEST_F(Backends, OnlyItsOwnBlocksAreRecorded) {
  const Stream own = new_stream(0), user = new_stream(0);
  int others = 0;
  const c10::Device device(c10::kCUDA, 0);
  EXPECT_NO_THROW(backend_.recordStream(c10::DataPtr(nullptr, device), of_pytorch(user, 0)));
  EXPECT_NO_THROW(backend_.recordStream(c10::DataPtr(
                                            &others, &others, +[](void*) {}, device),
                                        of_pytorch(user, 0)));
  void* const block = backend_.memory(0).allocate(8_MiB, own);
  backend_.raw_delete(block);
  EXPECT_THROW(backend_.record_stream(block, of_pytorch(user, 0)), c10::Error);
  EXPECT_THROW(backend_.record_stream(&others, of_pytorch(user, 1)), c10::Error);
}

TEST_F(Backends, AFenceOfTheProgramsHoldsTheNextOwnerBack) {
  const Stream own = new_stream(0), user = new_stream(0);
  char* const block = static_cast<char*>(backend_.memory(0).allocate(8_MiB, own));
  ASSERT_TRUE(sim(0).launch(user, Writes(block, 8_MiB), 5_ms).ok());
  void* const pointers[] = {nullptr, block + 5};
  backend_.fence(pointers, 0, static_cast<cudaStream_t>(user.handle));
  backend_.raw_delete(block);
  void* const next = backend_.memory(0).allocate(8_MiB, own);
  ASSERT_TRUE(sim(0).launch(own, Writes(next, 8_MiB), 1_ms).ok());
  backend_.raw_delete(next);
  void* const gone[] = {block};
  EXPECT_THROW(backend_.fence(gone, 0, static_cast<cudaStream_t>(user.handle)), c10::Error);
}

// torch.cuda.MemPool(allocator): the base of a block is what the source gave, as with PyTorch's
// own.
TEST_F(Backends, MemoryOfAPoolsOwnSourceIsBasedAndFencedLikeAnyOther) {
  const Stream own = new_stream(0), user = new_stream(0);
  const c10::MempoolId_t pool{0, 1};
  const auto source = std::make_shared<FakeSource>(sim(0));
  backend_.createOrIncrefPool(0, pool, source);
  DeviceMemory& memory = backend_.memory(0);
  check(memory.pools().begin(
      pool, [](cudaStream_t) { return true; }, own));
  void* const first = memory.allocate(4_MiB, own);
  char* const block = static_cast<char*>(memory.allocate(8_MiB, own));
  std::size_t bytes = 0;
  EXPECT_EQ(backend_.getBaseAllocation(block + 7, &bytes), first);
  EXPECT_EQ(bytes, (20_MiB).count);
  ASSERT_TRUE(sim(0).launch(user, Writes(block, 8_MiB), 5_ms).ok());
  void* const pointers[] = {block + 5};
  backend_.fence(pointers, 0, static_cast<cudaStream_t>(user.handle));
  backend_.raw_delete(block);
  EXPECT_THROW(backend_.fence(pointers, 0, static_cast<cudaStream_t>(user.handle)), c10::Error);
  void* const next = memory.allocate(8_MiB, own);
  ASSERT_TRUE(sim(0).launch(own, Writes(next, 8_MiB), 1_ms).ok());
  check(memory.pools().end(pool));
  for (void* const each : {first, next}) backend_.raw_delete(each);
  backend_.releasePool(0, pool);
  backend_.releasePool(0, pool);
}

TEST_F(Backends, SnapshotsHaveWhatTheThreadNotedAndEachIsAnEntryOfTheNext) {
  using native::TraceEntry;
  const Stream stream = new_stream(0);
  EXPECT_THAT(backend_.snapshot({0, 0}, true).device_traces, testing::SizeIs(2));
  backend_.recordHistory(true, nullptr, 100, {}, false, {"segment_map"});
  backend_.setUserMetadata("phase 1");
  EXPECT_EQ(backend_.getUserMetadata(), "phase 1");
  std::string frame = "frame 7";
  backend_.pushCompileContext(frame);
  void* const block = backend_.memory(0).allocate(4_MiB, stream);
  backend_.popCompileContext();
  backend_.popCompileContext();  // there is none
  backend_.setUserMetadata("");
  fake_runtime() = {};
  for (const char* const value : {"a", "b"}) backend_.recordAnnotation({{"step", value}});

  const auto first = backend_.snapshot({0, 0}, true);
  ASSERT_EQ(first.device_traces.size(), 2u);
  EXPECT_THAT(first.device_traces[1], testing::IsEmpty());
  ASSERT_EQ(first.device_traces[0].size(), 1u);
  const TraceEntry& allocation = first.device_traces[0][0];
  EXPECT_EQ(allocation.action_, TraceEntry::ALLOC);
  EXPECT_EQ(allocation.user_metadata_, "phase 1");
  EXPECT_EQ(allocation.compile_context_, "frame 7");
  ASSERT_EQ(first.external_annotations.size(), 2u);
  EXPECT_EQ(first.external_annotations[1].metadata_.at("step"), "b");
  ASSERT_EQ(first.segments.size(), 1u);
  EXPECT_EQ(first.segments[0].total_size, (4_MiB).count);
  // Microseconds, of today.
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  EXPECT_NEAR(static_cast<double>(allocation.time_.t_), static_cast<double>(now.count()), 60e6);
  EXPECT_NEAR(static_cast<double>(first.external_annotations[0].time_.t_),
              static_cast<double>(now.count()), 60e6);

  backend_.raw_delete(block);
  EXPECT_THAT(backend_.snapshot({0, 0}, false).device_traces, testing::Each(testing::IsEmpty()));
  std::vector<TraceEntry::Action> actions;
  const auto last = backend_.snapshot({0, 0}, true);
  for (const TraceEntry& entry : last.device_traces[0]) {
    actions.push_back(entry.action_);
    if (entry.action_ != TraceEntry::ALLOC) {
      EXPECT_EQ(entry.user_metadata_, "");
      EXPECT_EQ(entry.compile_context_, "N/A");
    }
  }
  EXPECT_THAT(actions, testing::ElementsAre(TraceEntry::ALLOC, TraceEntry::SNAPSHOT,
                                            TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED,
                                            TraceEntry::SNAPSHOT));
  EXPECT_THAT(backend_.snapshot({0, 9}, false).segments, testing::IsEmpty());
  backend_.recordHistory(false, nullptr, 1, {}, true, {});
  backend_.recordAnnotation({{"step", "c"}});
  EXPECT_THAT(backend_.snapshot({0, 0}, true).external_annotations, testing::IsEmpty());
}

// As PyTorch tells of record_function().
TEST_F(Backends, RangesThatBeginAreMarksOfRecordings) {
  const test::TemporaryFolder folder;
  backend_.raw_delete(backend_.memory(0).allocate(4_MiB, new_stream(0)));
  allocator_.record_start(folder / "run.weir");
  backend_.recordAnnotation({{"name", "forward"}, {"stage", "START"}});  // nobody asked for them
  backend_.recordHistory(true, nullptr, 100, {}, false, {});
  for (const char* const stage : {"START", "END"}) {
    backend_.recordAnnotation({{"name", "forward"}, {"stage", stage}});
  }
  allocator_.record_stop();
  const Result<Recording> recording = read_recording(folder / "run.weir");
  ASSERT_TRUE(recording.ok());
  EXPECT_EQ(std::ranges::count(recording->marks, "forward", &RecordedMark::text), 1);
}

// Fields that PyTorch has from some version on are no garbage, and no warning comes of them.
TEST_F(Backends, SnapshotsSayWhichSettingsHold) {
  struct Warnings final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { all.push_back(warning.msg()); }
    std::vector<std::string> all;
  } warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  const auto settings = backend_.snapshot({0, 0}, false).config_metadata;
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
  EXPECT_TRUE(settings.expandable_segments);
  EXPECT_THAT(warnings.all, testing::IsEmpty());
#if WEIR_TORCH_SINCE(13)
  EXPECT_EQ(settings.max_round_threshold, ~std::size_t{0}) << "none, as PyTorch has it";
  EXPECT_EQ(settings.max_cached_size, ~std::size_t{0});
#endif
}

#if WEIR_TORCH_SINCE(14)
TEST_F(Backends, AnAnnotationIsAnEntryOfTheBlockItIsOf) {
  using native::TraceEntry;
  const Stream stream = new_stream(0);
  EXPECT_TRUE(backend_.supportsUserMetadata());
  const auto context = [] { return std::make_shared<c10::GatheredContext>(); };
  backend_.recordHistory(true, context, 100, native::RecordContext::ALL, false, {});
  void* const block = backend_.memory(0).allocate(3_MiB, stream);
  backend_.setUserMetadata("the thread's");
  backend_.annotateMemory(block, "weights");
  backend_.setUserMetadata("");
  const TraceEntry entry = backend_.snapshot({0, 0}, true).device_traces[0].back();
  EXPECT_EQ(entry.action_, TraceEntry::ANNOTATE);
  EXPECT_EQ(entry.addr_, Address::of(block).value);
  EXPECT_EQ(entry.size_, (3_MiB).count);
  EXPECT_EQ(entry.user_metadata_, "weights");
  EXPECT_NE(entry.context_, nullptr);
  EXPECT_NE(backend_.getContextForPointer(static_cast<char*>(block) + 1), nullptr);
  EXPECT_EQ(backend_.getContextForPointer(&backend_), nullptr);
  EXPECT_THROW(backend_.annotateMemory(static_cast<char*>(block) + 1, ""), c10::Error);
  EXPECT_THROW(backend_.annotateMemory(&backend_, ""), c10::Error);
  backend_.raw_delete(block);
  EXPECT_EQ(backend_.getContextForPointer(block), nullptr);
  backend_.recordHistory(false, nullptr, 1, {}, true, {});
}
#endif

// --- What goes to the CUDA runtime.

class BackendsOnARuntime : public Backends {
 protected:
  void SetUp() override {
    Backends::SetUp();
    fake_runtime() = {};
  }
  void TearDown() override {
    Backends::TearDown();
    fake_runtime() = {};
    EXPECT_EQ(current_device_of_fake_runtime(), 0);
  }
};

TEST_F(BackendsOnARuntime, ACopyIsQueuedOnTheCurrentStream) {
  std::array<char, 8> to{}, from{};
  const Stream stream = new_stream(0);
  backend_.copy_data(to.data(), from.data(), 8);
  {
    const c10::cuda::CUDAStreamGuard current(of_pytorch(stream, 0));
    backend_.copy_data(to.data(), from.data(), 5);
  }
  const auto handle = static_cast<cudaStream_t>(stream.handle);
  EXPECT_THAT(fake_runtime().copies,
              testing::ElementsAre(FakeRuntime::Copy{to.data(), -1, from.data(), -1, 8, nullptr},
                                   FakeRuntime::Copy{to.data(), -1, from.data(), -1, 5, handle}));
  fake_runtime().answer = cudaErrorInvalidValue;
  EXPECT_THROW(backend_.copy_data(to.data(), from.data(), 8), c10::Error);
}

TEST_F(BackendsOnARuntime, ACopyBetweenDevicesNamesThemUnlessOneReachesTheOther) {
  std::array<char, 8> to{}, from{};
  const auto stream = static_cast<cudaStream_t>(new_stream(0).handle);
  const auto copy = [&](int to_device, bool p2p) {
    return backend_.memcpyAsync(to.data(), to_device, from.data(), 0, 8, stream, p2p);
  };
  EXPECT_EQ(copy(0, false), cudaSuccess);
  EXPECT_EQ(copy(1, false), cudaSuccess);
  EXPECT_EQ(copy(1, true), cudaSuccess);
  const FakeRuntime::Copy plain{to.data(), -1, from.data(), -1, 8, stream},
      between{to.data(), 1, from.data(), 0, 8, stream};
  EXPECT_THAT(fake_runtime().copies, testing::ElementsAre(plain, between, plain));
  fake_runtime().answer = cudaErrorInvalidValue;
  for (const int to_device : {0, 1}) EXPECT_EQ(copy(to_device, false), cudaErrorInvalidValue);
}

TEST_F(BackendsOnARuntime, PeerAccessIsAskedForOnceOrTwiceAndAnErrorIsToldWhereItIsOne) {
  backend_.enablePeerAccess(1, 0);  // device 1 shall reach the memory of 0
  EXPECT_THAT(fake_runtime().peers, testing::ElementsAre(std::pair(1, 0)));
  EXPECT_EQ(fake_runtime().errors_taken, 0);
  fake_runtime().answer = cudaErrorPeerAccessAlreadyEnabled;
  EXPECT_NO_THROW(backend_.enablePeerAccess(0, 1));
  EXPECT_THAT(fake_runtime().peers, testing::ElementsAre(std::pair(1, 0), std::pair(0, 1)));
  EXPECT_EQ(fake_runtime().errors_taken, 1);  // PyTorch's next check must not find it
  fake_runtime().answer = cudaErrorInvalidDevice;
  EXPECT_THROW(backend_.enablePeerAccess(1, 0), c10::Error);
}

TEST_F(BackendsOnARuntime, MemoryIsOfTheCurrentDeviceAndOfItsCurrentStream) {
  // Of the block, which the backend finds and frees.
  const auto expect_on = [&](void* block, int device, const void* stream) {
    DeviceMemory& memory = backend_.memory(device);
    const std::optional<BlockInfo> info = memory.heap().find(block);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(memory.streams().handle_of(info->stream), stream);
    backend_.raw_delete(block);
    EXPECT_FALSE(memory.heap().find(block).has_value());
  };
  constexpr std::size_t kSize = 4096;
  expect_on(backend_.raw_alloc(kSize), 0, nullptr);
  {
    const Stream stream = new_stream(1), other = new_stream(1);
    const c10::cuda::CUDAStreamGuard current(of_pytorch(stream, 1));
    for (int i = 0; i < 2; ++i) expect_on(backend_.raw_alloc(kSize), 1, stream.handle);
    expect_on(backend_.raw_alloc_with_stream(kSize, nullptr), 1, nullptr);
    for (int i = 0; i < 2; ++i) expect_on(backend_.raw_alloc(kSize), 1, stream.handle);
    const auto handle = static_cast<cudaStream_t>(other.handle);
    expect_on(backend_.raw_alloc_with_stream(kSize, handle), 1, handle);
  }
  EXPECT_EQ(backend_.raw_alloc(0), nullptr);
  EXPECT_EQ(backend_.raw_alloc_with_stream(0, nullptr), nullptr);
  backend_.raw_delete(nullptr);
}

// The streams that joins run on: PyTorch's current one is such a stream meanwhile, and no other
// thing of the program's uses it.
TEST_F(BackendsOnARuntime, AJoinRunsOnAStreamOfItsOwnThatIsMadeAlsoWithinACapture) {
  const Stream made = new_stream(1), current = new_stream(1);
  fake_runtime().make_stream = [&] { return static_cast<cudaStream_t>(made.handle); };
  const c10::cuda::CUDAStreamGuard guard(of_pytorch(current, 1));
  const auto now = [] { return c10::cuda::getCurrentCUDAStream(1).stream(); };
  CollectiveFences fences(backend_);
  void* const block = backend_.raw_alloc(4096);
  const auto is_fenced = [&](bool fails) {
    Operation operation;
    operation.memory.push_back(block);
    int runs = 0;
    const bool fenced = fences
                            .fence({&fences, 1}, operation,
                                   [&] {
                                     ++runs;
                                     EXPECT_EQ(now(), made.handle);
                                     TORCH_CHECK(!fails, "no");
                                   })
                            .has_value();
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(now(), current.handle);
    return fenced;
  };
  EXPECT_TRUE(is_fenced(false));
  EXPECT_FALSE(is_fenced(true));
  EXPECT_THAT(fake_runtime().capture_modes, testing::ElementsAre(cudaStreamCaptureModeRelaxed));
  backend_.raw_delete(block);
}

// A thread that holds a lock of the backend's, that of the pools, while the process forks.
class Holder {
 public:
  Holder(Backend& backend, SimDevice& device, Stream stream) : backend_(backend) {
    backend.createOrIncrefPool(0, {0, 9}, std::make_shared<FakeSource>(device));
    check(backend.memory(0).pools().begin(
        {0, 9},
        [this](cudaStream_t) {
          std::unique_lock lock(mutex_);
          if (std::this_thread::get_id() != thread_.get_id() || over_) return false;
          inside_ = true;
          changed_.notify_all();
          changed_.wait(lock, [this] { return over_; });
          return false;
        },
        stream));
    const std::lock_guard lock(mutex_);
    thread_ = std::thread(
        [this, stream] { backend_.raw_delete(backend_.memory(0).allocate(1_MiB, stream)); });
  }
  void wait_until_it_holds() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return inside_; });
  }
  ~Holder() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
      changed_.notify_all();
    }
    thread_.join();
    backend_.endAllocateToPool(0, {0, 9});
    for (int use = 0; use < 2; ++use) backend_.releasePool(0, {0, 9});
  }

 private:
  Backend& backend_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool inside_ = false, over_ = false;
  std::thread thread_;
};

TEST_F(Backends, AChildOfForkIsToldThatItHasNoMemoryWhateverThreadsHeldAtTheFork) {
  const Stream own = new_stream(0);
  void* const block = backend_.memory(0).allocate(4_MiB, own);
  {
    Holder holder(backend_, sim(0), own);
    holder.wait_until_it_holds();
    const c10::MempoolId_t all{0, 0}, pool{0, 9};
    const std::vector<std::pair<const char*, std::function<void()>>> refused = {
        {"recordStream", [&] { record_stream(block, own, 0); }},
        {"allocate", [&] { (void)backend_.raw_alloc_with_stream(512, nullptr); }},
        {"memory", [&] { (void)backend_.memory(0); }},
        {"statistics", [&] { (void)backend_.getDeviceStats(0); }},
        {"snapshot", [&] { (void)backend_.snapshot(all, true); }},
        {"history", [&] { (void)backend_.isHistoryEnabled(); }},
        {"recordHistory", [&] { backend_.recordHistory(false, nullptr, 1, {}, true, {}); }},
        {"begin",
         [&] { backend_.beginAllocateToPool(0, pool, [](cudaStream_t) { return false; }); }},
        {"create", [&] { backend_.createOrIncrefPool(0, pool, nullptr); }},
        {"uses", [&] { (void)backend_.getPoolUseCount(0, pool); }},
        {"base", [&] { (void)backend_.getBaseAllocation(block, nullptr); }},
        {"share", [&] { (void)backend_.shareIpcHandle(block); }},
        {"open", [&] { (void)backend_.getIpcDevPtr("x"); }},
        {"tracker", [&] { backend_.attachAllocatorTraceTracker({}); }},
        {"observer", [&] { backend_.attachOutOfMemoryObserver({}); }},
        {"enable", [&] { backend_.enable(true); }},
        {"fence", [&] { backend_.fence({}, 0, nullptr); }},
    };
    for (const auto& [name, call] : refused) {
      SCOPED_TRACE(name);
      EXPECT_EQ(0, in_a_child([&] {
                  try {
                    call();
                  } catch (const c10::Error& error) {
                    const std::string message = error.what();
                    return message.find("after fork") == std::string::npos ? 2 : 0;
                  }
                  return 1;
                }));
    }
    // What destructors call does nothing.
    EXPECT_EQ(0, in_a_child([&] {
                backend_.raw_delete(block);
                backend_.endAllocateToPool(0, {0, 9});
                backend_.releasePool(0, {0, 9});
                backend_.emptyCache({0, 0});
                return 0;
              }));
  }
  backend_.raw_delete(block);
}

}  // namespace
}  // namespace weir::pytorch
