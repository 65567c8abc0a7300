// SPDX-License-Identifier: Apache-2.0
// Captures as PyTorch's programs have them: pools that are paused and resumed, captures that fail,
// and streams that are known by their handles alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "tests/torch/fake_runtime.h"
#include "torch/device_memory.h"
#include "torch/errors.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

constexpr std::array<std::uint64_t, kContextEventsLost> kNoneLost{};

class Captures : public testing::Test {
 protected:
  static constexpr c10::MempoolId_t kPool{0, 1};

  void TearDown() override {
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
    EXPECT_EQ(device_.race_count(), 0u);
  }

  // CUDAGraph's filter, before its capture and in it; and the one of
  // _cuda_beginAllocateCurrentThreadToPool.
  void begin_for_a_capture(Stream stream) {
    auto id = std::make_shared<std::uint64_t>(0);
    check(memory_.pools().begin(
        kPool,
        [this, id, stream](cudaStream_t asking) {
          const CaptureInfo info = *device_.capture_info(Stream::of_captured(asking));
          if (info.status != CaptureInfo::Status::active) return false;
          if (*id == 0) *id = device_.capture_info(stream)->id;
          return info.id == *id;
        },
        stream));
  }
  void begin_for_this_thread(c10::MempoolId_t pool, Stream stream) {
    const auto me = std::this_thread::get_id();
    check(memory_.pools().begin(
        pool, [me](cudaStream_t) { return std::this_thread::get_id() == me; }, stream));
  }
  void capture(Stream stream) {
    ASSERT_TRUE(device_.begin_capture(stream, CaptureMode::relaxed).ok());
  }
  void end(Stream stream) {
    const Result<GraphHandle> graph = device_.end_capture(stream);
    ASSERT_TRUE(graph.ok());
    EXPECT_TRUE(device_.destroy_graph(*graph).ok());
  }
  void* written(Bytes bytes, Stream stream) {
    void* const block = memory_.allocate(bytes, stream);
    EXPECT_TRUE(device_.launch(stream, Writes(block, bytes), 10_us).ok());
    return block;
  }
  void free(void* block) { EXPECT_TRUE(memory_.deallocate(block)); }
  // Eight streams use the same memory, one after the other.
  void expect_memory_to_move() {
    const Bytes before = device_.physical_bytes();
    for (int i = 0; i < 8; ++i) {
      free(written(256_MiB, device_.new_stream()));
      device_.advance(1_ms);
    }
    EXPECT_LE(device_.physical_bytes() - before, 300_MiB);
    EXPECT_EQ(heap_.statistics().context_events_lost, kNoneLost);
  }

  SimDevice device_;
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream();
  DeviceHeap heap_{device_, {.trust = Trust::context}};
  DeviceMemory memory_{0, device_, heap_};
};

// Of a stream that PyTorch was given: it can't be asked later whether its capture goes on.
TEST_F(Captures, ACaptureOfAnOutsideStreamStaysWholeWhileItsPoolIsPaused) {
  Stream outside = a_;
  outside.may_end = true;
  void* const x = written(128_MiB, b_);
  begin_for_a_capture(outside);
  capture(outside);
  check(memory_.pools().end(kPool, outside));
  free(x);
  free(written(128_MiB, device_.new_stream()));
  begin_for_this_thread(kPool, outside);
  end(outside);
  check(memory_.pools().end(kPool, outside));
  while (memory_.pools().uses(kPool) > 0) check(memory_.pools().release(kPool));
  expect_memory_to_move();
}

// The capture fails before it asks for memory, or can't begin.
TEST_F(Captures, ACaptureThatFailedIsClosed) {
  for (const bool began : {false, true}) {
    begin_for_a_capture(a_);
    if (began) {
      capture(a_);
      end(a_);
    }
    memory_.pools().close_failed({b_});
    EXPECT_EQ(memory_.pools().uses(kPool), 1) << "another stream's";
    memory_.pools().close_failed({a_});
    EXPECT_EQ(memory_.pools().uses(kPool), 0);
    EXPECT_THROW(check(memory_.pools().end(kPool)), c10::Error);
    expect_memory_to_move();
  }
}

// use_mem_pool() within the capture: the thread has yet to leave that pool.
TEST_F(Captures, APoolThatWasEnteredInACaptureThatFailedIsNotClosed) {
  constexpr c10::MempoolId_t kEntered{0, 2};
  memory_.pools().retain(kEntered);
  begin_for_a_capture(a_);
  capture(a_);
  begin_for_this_thread(kEntered, a_);
  end(a_);
  memory_.pools().close_failed({a_});
  EXPECT_EQ(memory_.pools().uses(kPool), 0);
  EXPECT_EQ(memory_.pools().uses(kEntered), 2);
  check(memory_.pools().end(kEntered));
  for (int uses = 2; uses > 0; --uses) check(memory_.pools().release(kEntered));
  expect_memory_to_move();
}

TEST_F(Captures, ACaptureThatGoesOnIsNotClosed) {
  begin_for_a_capture(a_);
  capture(a_);
  free(written(1_MiB, a_));
  memory_.pools().close_failed({a_});
  EXPECT_EQ(memory_.pools().uses(kPool), 1);
  free(written(1_MiB, a_));
  end(a_);
  check(memory_.pools().end(kPool));
  check(memory_.pools().release(kPool));
}

// What a failed capture asked for, and still has, is the pool's until it is freed.
TEST_F(Captures, AFailedCapturesMemoryGoesBack) {
  begin_for_a_capture(a_);
  capture(a_);
  void* const x = written(64_MiB, a_);
  end(a_);
  memory_.pools().close_failed({a_});
  free(x);
  (void)heap_.trim(0_B, Trim::waits);
  EXPECT_EQ(device_.physical_bytes(), 0_B);
}

// PyTorch's own streams are made once in a process, and on this device.
class StreamsByHandle : public testing::Test {
 protected:
  void SetUp() override {
    fake_runtime().make_stream = [] {
      return static_cast<cudaStream_t>(device().new_stream().handle);
    };
    of_pytorch_.emplace(c10::cuda::getStreamFromPool(/*priority=*/0, /*device=*/0));
    fake_runtime().stream_flags = cudaStreamNonBlocking;
  }
  void TearDown() override { fake_runtime().stream_flags = cudaStreamDefault; }

  static SimDevice& device() {
    static auto* const device = new SimDevice;
    return *device;
  }
  // Another library captures the stream while other streams' requests need an event of the context.
  void expect_its_capture_to_be_whole(Stream stream) {
    const Stream a = device().new_stream(), b = device().new_stream();
    void* const x = *heap_.allocate(512_MiB, a);
    EXPECT_TRUE(device().launch(a, Writes(x, 512_MiB), 10_ms).ok());
    EXPECT_TRUE(device().begin_capture(stream, CaptureMode::relaxed).ok());
    EXPECT_TRUE(heap_.deallocate(x).ok());
    void* const y = *heap_.allocate(512_MiB, b);
    const Result<GraphHandle> graph = device().end_capture(stream);
    EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message());
    if (graph.ok()) (void)device().destroy_graph(*graph);
    EXPECT_TRUE(heap_.deallocate(y).ok());
    device().finish();
  }
  std::uint64_t lost_to_external_streams() const {
    return heap_.statistics()
        .context_events_lost[static_cast<std::size_t>(ContextEventsLost::external_stream)];
  }

  std::optional<c10::cuda::CUDAStream> of_pytorch_;
  DeviceHeap heap_{device(), {.trust = Trust::context}};
};

TEST_F(StreamsByHandle, AStreamOfPyTorchsIsKnownByItsHandle) {
  Streams streams(heap_, device(), c10::DeviceIndex{0});
  const cudaStream_t handle = of_pytorch_->stream();
  for (int i = 0; i < 2; ++i) {
    const Result<Stream> found = streams.of(handle);
    ASSERT_TRUE(found.ok());
    EXPECT_FALSE(found->may_end);
  }
  EXPECT_TRUE(heap_.deallocate(*heap_.allocate(64_MiB, *streams.of(handle))).ok());
  expect_its_capture_to_be_whole(*streams.of(handle));
  EXPECT_EQ(heap_.statistics().context_events_lost[0], 0u);
  EXPECT_EQ(lost_to_external_streams(), 0u);
}

// PyTorch's next stream is the one that it would be, had nobody looked.
TEST_F(StreamsByHandle, LookingForAStreamTakesNoneOfPyTorchs) {
  std::vector<cudaStream_t> in_turn;
  for (int i = 0; i < 32; ++i) in_turn.push_back(c10::cuda::getStreamFromPool(0, 0).stream());
  Streams streams(heap_, device(), c10::DeviceIndex{0});
  EXPECT_FALSE(streams.of(c10::cuda::getStreamFromPool(-1, 0).stream())->may_end);
  for (const cudaStream_t each : in_turn) {
    EXPECT_EQ(c10::cuda::getStreamFromPool(0, 0).stream(), each);
  }
}

TEST_F(StreamsByHandle, ALibrarysNonBlockingStreamEndsEventsOfTheContext) {
  Streams streams(heap_, device(), c10::DeviceIndex{0});
  const Stream made = device().new_stream();
  const auto handle = static_cast<cudaStream_t>(made.handle);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(streams.of(handle)->may_end);
  EXPECT_EQ(lost_to_external_streams(), 1u);
  expect_its_capture_to_be_whole(made);
}

// What a capture permits to be asked of its streams is not known.
TEST_F(StreamsByHandle, AStreamThatIsCapturedIsLookedAtAfterwards) {
  Streams streams(heap_, device(), c10::DeviceIndex{0});
  const Stream made = device().new_stream();
  const auto handle = static_cast<cudaStream_t>(made.handle);
  const int asked = fake_runtime().flags_asked;
  EXPECT_TRUE(device().begin_capture(made, CaptureMode::relaxed).ok());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(streams.of(handle)->may_end);
  EXPECT_EQ(fake_runtime().flags_asked, asked);
  (void)device().destroy_graph(*device().end_capture(made));
  EXPECT_EQ(lost_to_external_streams(), 0u);
  EXPECT_TRUE(streams.of(handle)->may_end);
  EXPECT_EQ(fake_runtime().flags_asked, asked + 1);
  EXPECT_EQ(lost_to_external_streams(), 1u);
}

TEST_F(StreamsByHandle, ABlockingStreamEndsNone) {
  fake_runtime().stream_flags = cudaStreamDefault;
  Streams streams(heap_, device(), c10::DeviceIndex{0});
  EXPECT_TRUE(streams.of(static_cast<cudaStream_t>(device().new_stream().handle))->may_end);
  EXPECT_EQ(lost_to_external_streams(), 0u);
}

// Of a stream that was met by its handle, and then named by PyTorch.
TEST_F(StreamsByHandle, AStreamIsAskedAboutOncePyTorchNamesIt) {
  const cudaStream_t handle = of_pytorch_->stream();
  const Stream by_handle = *heap_.stream(handle);
  ASSERT_TRUE(by_handle.may_end);
  EXPECT_TRUE(heap_.deallocate(*heap_.allocate(64_MiB, by_handle)).ok());
  Streams streams(heap_, device(), c10::DeviceIndex{0});
  const Result<Stream> named = streams.of(*of_pytorch_);
  ASSERT_TRUE(named.ok());
  EXPECT_FALSE(named->may_end);
  expect_its_capture_to_be_whole(*named);
}

}  // namespace
}  // namespace weir::pytorch
