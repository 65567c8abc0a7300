// SPDX-License-Identifier: Apache-2.0
// Captures as PyTorch makes them, on a simulated device: streams of its own, a filter that knows
// the capture, and a backward pass in a thread of its own.
#include <c10/cuda/CUDAGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/torch/fake_runtime.h"
#include "tests/training_step.h"
#include "torch/backend.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

enum class WarmUp { none, on_the_capture_stream, on_another_stream };

class Graphs : public testing::TestWithParam<WarmUp> {
 protected:
  // PyTorch makes its streams once in a process, so all tests' devices have the same.
  static constexpr std::size_t kMostStreams = 512;
  static constexpr c10::MempoolId_t kPool{0, 7};

  void SetUp() override {
    for (std::size_t i = 0; i < kMostStreams; ++i) made_.push_back(device_.new_stream());
    fake_runtime() = {};
    fake_runtime().make_stream = [this, next = std::size_t{0}]() mutable {
      return static_cast<cudaStream_t>(made_.at(next++).handle);
    };
    backend_.init(1);
  }
  void TearDown() override {
    fake_runtime() = {};
    EXPECT_THAT(allocator_.validate(), testing::IsEmpty());
    EXPECT_EQ(device_.race_count(), 0u);
  }

  static std::vector<std::unique_ptr<Device>> one_device() {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::make_unique<SimDevice>());
    return devices;
  }
  Stream of_device(CUDAStream stream) {
    for (const Stream each : made_) {
      if (each.handle == stream.stream()) return each;
    }
    ADD_FAILURE() << "no stream of PyTorch's";
    return {};
  }
  test::TrainingStep new_step() {
    return {[this](Bytes bytes) {
              void* const block = backend_.raw_alloc(bytes.count);
              const Stream current = of_device(c10::cuda::getCurrentCUDAStream(0));
              EXPECT_TRUE(device_.launch(current, Writes(block, bytes), 1_us).ok());
              return block;
            },
            [this](void* block) { backend_.raw_delete(block); }};
  }
  void run(test::TrainingStep& step, CUDAStream stream) {
    const CUDAStreamGuard current(stream);
    step.forward();
    std::thread autograd([&] {
      const CUDAStreamGuard of_forward(stream);
      step.backward();
    });
    autograd.join();
  }
  // torch.cuda.use_mem_pool: requests of this thread.
  void warm_up(CUDAStream stream) {
    test::TrainingStep step = new_step();
    const std::thread::id me = std::this_thread::get_id();
    backend_.beginAllocateToPool(0, kPool,
                                 [me](cudaStream_t) { return std::this_thread::get_id() == me; });
    run(step, stream);
    backend_.endAllocateToPool(0, kPool);
    step.drop_gradients();
    device_.finish();
  }
  // torch.cuda.graph.
  GraphHandle capture(test::TrainingStep& step, CUDAStream stream) {
    device_.finish();
    backend_.emptyCache({0, 0});
    const CUDAStreamGuard current(stream);
    const Stream of = of_device(stream);
    std::uint64_t id = 0;
    backend_.beginAllocateToPool(0, kPool, [&](cudaStream_t asking) {
      const CaptureInfo info = *device_.capture_info(Stream::of_captured(asking));
      return info.status == CaptureInfo::Status::active && info.id == id;
    });
    EXPECT_TRUE(device_.begin_capture(of, CaptureMode::thread_local_).ok());
    id = device_.capture_info(of)->id;
    run(step, stream);
    const Result<GraphHandle> graph = device_.end_capture(of);
    EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message());
    backend_.endAllocateToPool(0, kPool);
    return graph.ok() ? *graph : GraphHandle{};
  }
  // What a snapshot says of the pool.
  double held() {
    std::size_t held = 0;
    for (const auto& segment : backend_.memory(0).segments(kPool)) held += segment.total_size;
    return static_cast<double>(held);
  }

  weir::Allocator allocator_{one_device(), Config{.trust = Trust::context}};
  SimDevice& device_ = dynamic_cast<SimDevice&>(allocator_.device(0));
  Backend backend_{allocator_};
  std::vector<Stream> made_;
};

TEST_P(Graphs, OfATrainingStepHoldWhatItsCaptureNeedsWhateverTheWarmUp) {
  const CUDAStream stream = c10::cuda::getStreamFromPool(false, 0);
  const CUDAStream other = c10::cuda::getStreamFromPool(false, 0);
  backend_.createOrIncrefPool(0, kPool, nullptr);
  if (GetParam() != WarmUp::none) {
    warm_up(GetParam() == WarmUp::on_the_capture_stream ? stream : other);
  }
  test::TrainingStep step = new_step();
  const GraphHandle graph = capture(step, stream);
  EXPECT_LE(held(), 1.005 * static_cast<double>(step.peak().count));
  const ExecutableHandle executable = *device_.instantiate(graph);
  EXPECT_TRUE(device_.destroy_graph(graph).ok());
  EXPECT_TRUE(device_.launch_graph(executable, of_device(other)).ok());
  device_.finish();
  step.drop_gradients();
  backend_.releasePool(0, kPool);  // the capture's
  backend_.releasePool(0, kPool);
  EXPECT_TRUE(device_.destroy_executable(executable).ok());
}

std::string name_of(const testing::TestParamInfo<WarmUp>& info) {
  constexpr std::array kNames = {"None", "OnTheCaptureStream", "OnAnotherStream"};
  return kNames[static_cast<std::size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(WarmUps, Graphs,
                         testing::Values(WarmUp::none, WarmUp::on_the_capture_stream,
                                         WarmUp::on_another_stream),
                         name_of);

}  // namespace
}  // namespace weir::pytorch
