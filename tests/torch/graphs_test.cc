// SPDX-License-Identifier: Apache-2.0
// Captures as PyTorch makes them, on a simulated device: streams of its own, and a filter that
// knows the capture.
#include <c10/cuda/CUDAGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/torch/fake_runtime.h"
#include "tests/torch/fake_source.h"
#include "torch/backend.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

class OnSimDevice : public testing::Test {
 protected:
  // PyTorch makes its streams once in a process, so all tests' devices have the same.
  static constexpr std::size_t kMostStreams = 512;
  static constexpr c10::MempoolId_t kPool{0, 7};

  OnSimDevice()
      : allocator_(one_device(),
                   Config{.trust = Trust::context, .graph_scratch = GraphScratch::lend}) {
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
  // torch.cuda.graph.
  GraphHandle capture(CUDAStream stream, const std::function<void()>& work) {
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
    work();
    const Result<GraphHandle> graph = device_.end_capture(of);
    EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message());
    backend_.endAllocateToPool(0, kPool);
    return graph.ok() ? *graph : GraphHandle{};
  }
  weir::Allocator allocator_;
  SimDevice& device_ = dynamic_cast<SimDevice&>(allocator_.device(0));
  Backend backend_{allocator_};
  std::vector<Stream> made_;
};

// Requests of stream_ are captured, those of other_ eager.
class GraphsThatLendScratch : public OnSimDevice {
 protected:
  static constexpr Bytes kScratch = 64_MiB, kEager = 60_MiB;

  GraphsThatLendScratch() { backend_.createOrIncrefPool(0, kPool, nullptr); }
  void TearDown() override {
    device_.finish();
    for (const ExecutableHandle each : executables_) {
      EXPECT_TRUE(device_.destroy_executable(each).ok());
      backend_.releasePool(0, kPool);  // the capture's
    }
    backend_.releasePool(0, kPool);
    OnSimDevice::TearDown();
  }

  void* written(CUDAStream stream, Bytes bytes) {
    const CUDAStreamGuard current(stream);
    void* const block = backend_.raw_alloc(bytes.count);
    EXPECT_TRUE(device_.launch(of_device(stream), Writes(block, bytes), 1_ms).ok());
    return block;
  }
  void read(CUDAStream stream, const void* block, Bytes bytes) {
    EXPECT_TRUE(device_.launch(of_device(stream), Reads(block, bytes), 1_ms).ok());
  }
  // A graph that writes its scratch, and reads it.
  ExecutableHandle graph(bool told = true) {
    tell_of_launches(told);
    const GraphHandle graph = capture(stream_, [&] {
      void* const scratch = written(stream_, kScratch);
      read(stream_, scratch, kScratch);
      backend_.raw_delete(scratch);
    });
    tell_of_launches(false);
    executables_.push_back(*device_.instantiate(graph));
    EXPECT_TRUE(device_.destroy_graph(graph).ok());
    return executables_.back();
  }
  Result<std::unique_ptr<GraphLaunch>> begin_launch(PoolId pool, CUDAStream stream) {
    return pytorch::begin_launch(backend_.memory(0).pools(), pool, of_device(stream));
  }
  // As CUDAGraph.replay() in the package.
  void replay(ExecutableHandle graph) {
    const auto launch = begin_launch(kPool, stream_);
    ASSERT_TRUE(launch.ok());
    EXPECT_TRUE(device_.launch_graph(graph, of_device(stream_)).ok());
  }
  // Does a block of eager work need new memory?
  bool takes_new_memory() {
    const auto before = heap().statistics().reserved_bytes.current;
    backend_.raw_delete(written(other_, kEager));
    return heap().statistics().reserved_bytes.current > before;
  }
  DeviceHeap& heap() { return backend_.memory(0).pools().heap(); }

  const CUDAStream stream_ = c10::cuda::getStreamFromPool(false, 0);
  const CUDAStream other_ = c10::cuda::getStreamFromPool(false, 0);
  std::vector<ExecutableHandle> executables_;
};

TEST_F(GraphsThatLendScratch, LeaveABlockAloneThatLivesAcrossAReplay) {
  const ExecutableHandle step = graph();
  replay(step);
  const auto before = heap().statistics().reserved_bytes.current;
  void* const block = written(other_, kEager);
  EXPECT_EQ(heap().statistics().reserved_bytes.current, before);
  replay(step);
  EXPECT_GT(heap().statistics().reserved_bytes.current, before);
  read(other_, block, kEager);
  backend_.raw_delete(block);
}

TEST_F(GraphsThatLendScratch, KeepItOnceOneIsCapturedWhoseReplaysAreNotTold) {
  const ExecutableHandle told = graph();
  replay(told);
  EXPECT_FALSE(takes_new_memory());
  const ExecutableHandle untold = graph(/*told=*/false);
  replay(told);
  EXPECT_TRUE(takes_new_memory());
  EXPECT_TRUE(device_.launch_graph(untold, of_device(stream_)).ok());
}

TEST_F(GraphsThatLendScratch, KeepItOnceOneBecomesPartOfAnother) {
  const ExecutableHandle inner = graph();
  replay(inner);
  EXPECT_FALSE(takes_new_memory());
  ASSERT_TRUE(device_.begin_capture(of_device(other_), CaptureMode::thread_local_).ok());
  {
    const auto launch = begin_launch(kPool, other_);
    ASSERT_TRUE(launch.ok());
    EXPECT_EQ(*launch, nullptr);
  }
  const Result<GraphHandle> outer = device_.end_capture(of_device(other_));
  ASSERT_TRUE(outer.ok());
  EXPECT_TRUE(device_.destroy_graph(*outer).ok());
  EXPECT_TRUE(takes_new_memory());
}

TEST_F(GraphsThatLendScratch, KeepItWhileTheProgramHasAHandle) {
  Pools& pools = backend_.memory(0).pools();
  const ExecutableHandle step = graph();
  replay(step);
  EXPECT_TRUE(keep_scratch(pools, kPool, true).ok());
  EXPECT_TRUE(keep_scratch(pools, kPool, false).ok());
  EXPECT_FALSE(takes_new_memory());
  EXPECT_TRUE(keep_scratch(pools, kPool, true).ok());
  EXPECT_TRUE(takes_new_memory());
}

// torch.cuda.MemPool(use_on_oom=True).
TEST_F(GraphsThatLendScratch, GetOtherMemoryWhileABlockLivesOrAreNotLaunched) {
  backend_.setUseOnOOM(0, kPool, true);
  const ExecutableHandle step = graph();
  replay(step);
  void* const block = written(other_, kEager);
  heap().set_limit(Bytes{heap().statistics().reserved_bytes.current});
  EXPECT_THROW((void)backend_.raw_alloc(kEager.count), c10::OutOfMemoryError);
  const auto refused = begin_launch(kPool, stream_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
  read(other_, block, kEager);
  backend_.raw_delete(block);
  replay(step);
}

// torch.cuda.MemPool(allocator).
TEST_F(GraphsThatLendScratch, OfMemoryThatIsNotWeirsAreLaunchedWithoutAWord) {
  constexpr PoolId kCustom{0, 8}, kUnknown{0, 99};
  Pools& pools = backend_.memory(0).pools();
  const auto source = std::make_shared<FakeSource>(device_);
  pools.retain(kCustom, source_of(source));
  for (const PoolId& pool : {kCustom, kUnknown}) {
    const auto launch = begin_launch(pool, stream_);
    ASSERT_TRUE(launch.ok());
    EXPECT_EQ(*launch, nullptr);
    EXPECT_TRUE(keep_scratch(pools, pool, true).ok());
  }
  check(pools.release(kCustom));
}

// As torch.cuda.memory._snapshot() has it.
TEST_F(GraphsThatLendScratch, NameItInTheHistoryOfSegments) {
  const ExecutableHandle step = graph();
  replay(step);
  backend_.recordHistory(true, nullptr, 100, {}, false, {});
  backend_.raw_delete(written(other_, kScratch + kEager));
  const auto snapshot = backend_.snapshot({0, 0}, true);
  std::set<std::string> said;
  for (const auto& entry : snapshot.device_traces.at(0)) {
    if (entry.action_ == native::TraceEntry::SEGMENT_MAP) said.insert(entry.user_metadata_);
  }
  EXPECT_THAT(said, testing::ElementsAre("", "scratch lent by pool (0, 7)"));
  backend_.recordHistory(false, nullptr, 1, {}, true, {});
}

// As torch.cuda.memory_stats() and memory_snapshot() have it.
TEST_F(GraphsThatLendScratch, AreCountedOnceInStatisticsAndSegments) {
  const ExecutableHandle step = graph();
  replay(step);
  void* const block = written(other_, kEager);
  const auto reserved = [&] { return backend_.getDeviceStats(0).reserved_bytes[0].current; };
  const auto in_segments = [&] {
    std::int64_t total = 0;
    for (const auto& segment : backend_.snapshot({0, 0}, false).segments) {
      total += static_cast<std::int64_t>(segment.total_size);
    }
    return total;
  };
  EXPECT_EQ(in_segments(), reserved());
  replay(step);
  EXPECT_EQ(in_segments(), reserved());
  backend_.raw_delete(block);
  EXPECT_EQ(in_segments(), reserved());
}

}  // namespace
}  // namespace weir::pytorch
