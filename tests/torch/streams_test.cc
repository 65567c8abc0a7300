// SPDX-License-Identifier: Apache-2.0
// Streams that are known by their handles alone, and captures of other libraries on them.
#include "torch/streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/torch/fake_runtime.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

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
