// SPDX-License-Identifier: Apache-2.0
// A device's streams as PyTorch has them, and a communication stream as ProcessGroupNCCL has it, on
// simulated devices.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/torch/fake_runtime.h"
#include "torch/backend.h"
#include "torch/c10d/collective_fences.h"
#include "torch/errors.h"
#include "weir/sim_device.h"

namespace weir::pytorch {

// One at a time in a thread: the current stream is PyTorch's own note of it.
class FakeStreams {
 public:
  explicit FakeStreams(SimDevice& device) : device_(device) {
    fake_runtime().make_stream = [this] {
      ++made_;
      last_made_ = add();
      return static_cast<cudaStream_t>(last_made_.handle);
    };
  }
  ~FakeStreams() { c10::cuda::setCurrentCUDAStream(c10::cuda::getDefaultCUDAStream(0)); }
  FakeStreams(const FakeStreams&) = delete;
  FakeStreams& operator=(const FakeStreams&) = delete;

  // PyTorch takes a handle with its last bit set for a number of its own streams.
  Stream add() {
    Stream stream = device_.new_stream();
    while ((reinterpret_cast<std::uintptr_t>(stream.handle) & 1) != 0)
      stream = device_.new_stream();
    known_[stream.handle] = stream;
    return stream;
  }
  Stream current() const { return known_.at(c10::cuda::getCurrentCUDAStream(0).stream()); }
  static void set_current(Stream stream) {
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(handle, 0));
  }
  std::size_t made() const { return made_; }
  Stream last_made() const { return last_made_; }

  // A call that CUDA does not permit while a stream is captured, unless the calling thread's
  // capture mode is relaxed, or the capture's: cudaFree(), say. It breaks the capture.
  void forbidden() {
    const bool captured = device_.capture_info(current())->status == CaptureInfo::Status::active &&
                          capture_mode != CaptureMode::relaxed;
    if (!captured || capture_mode_of_fake_runtime() == cudaStreamCaptureModeRelaxed) return;
    const EventHandle event = *device_.create_event();
    EXPECT_FALSE(device_.record_context(event).ok());
    EXPECT_TRUE(device_.destroy_event(event).ok());
    TORCH_CHECK(false, "operation not permitted when stream is capturing");
  }
  CaptureMode capture_mode = CaptureMode::global;  // of captures that begin

  void run_on(Stream stream, c10::function_ref<void()> run) {
    const Stream before = current();
    set_current(stream);
    run();
    set_current(before);
  }

 private:
  SimDevice& device_;
  std::map<void*, Stream> known_;
  std::size_t made_ = 0;
  Stream last_made_;
};

// A communication stream: an operation runs after what the current stream holds, and its end is
// marked by an event.
class FakeCommunicator {
 public:
  FakeCommunicator(SimDevice& device, FakeStreams& streams)
      : device_(device), streams_(streams), stream_(streams.add()) {}

  class End {
   public:
    End(SimDevice& device, FakeStreams& streams)
        : device_(device), streams_(streams), event_(device.create_event().value()) {}
    ~End() { EXPECT_TRUE(device_.destroy_event(event_).ok()); }
    End(const End&) = delete;
    End& operator=(const End&) = delete;
    void record(Stream stream) { EXPECT_TRUE(device_.record(event_, stream).ok()); }
    // As Work::synchronize() does.
    void join() { EXPECT_TRUE(device_.wait(streams_.current(), event_).ok()); }

   private:
    SimDevice& device_;
    FakeStreams& streams_;
    EventHandle event_;
  };

  std::shared_ptr<End> queue(std::vector<Access> accesses, Nanoseconds duration) {
    End begin(device_, streams_);
    begin.record(streams_.current());
    join_stream(begin);
    EXPECT_TRUE(device_.launch(stream_, accesses, duration).ok());
    auto end = std::make_shared<End>(device_, streams_);
    end->record(stream_);
    return end;
  }
  Stream stream() const { return stream_; }

 private:
  void join_stream(End& begin) {
    const Stream before = streams_.current();
    streams_.set_current(stream_);
    begin.join();
    streams_.set_current(before);
  }

  SimDevice& device_;
  FakeStreams& streams_;
  const Stream stream_;
};

// Weir in PyTorch on one simulated device, whose every access is checked.
class WithCollectives : public testing::Test {
 protected:
  explicit WithCollectives(ReusePolicy reuse = ReusePolicy::wait)
      : allocator_(one_device(), config(reuse)) {
    backend_.init(1);
    streams_.set_current(compute_);
  }
  void TearDown() override {
    EXPECT_EQ(sim_.race_count(), 0u);
    EXPECT_EQ(sim_.host_waits(), 0u);
    EXPECT_TRUE(allocator_.validate().empty());
  }

  static Config config(ReusePolicy reuse) {
    Config config;
    config.trust = Trust::context;
    config.reuse = reuse;
    return config;
  }
  static std::vector<std::unique_ptr<Device>> one_device() {
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::make_unique<SimDevice>());
    return devices;
  }
  void* allocate(Bytes bytes) { return memory_.allocate(bytes, streams_.current()); }
  void write(void* block, Bytes bytes, Nanoseconds duration = 10_us) {
    EXPECT_TRUE(sim_.launch(streams_.current(), Writes(block, bytes), duration).ok());
  }
  static c10::cuda::CUDAStream of_pytorch(Stream stream) {
    return c10::cuda::CUDAStream(
        c10::cuda::CUDAStream::UNCHECKED,
        c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0),
                    static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(stream.handle))));
  }
  // As tensor.record_stream(stream) does.
  void record_stream(void* block, Stream user) {
    const c10::DataPtr pointer(block, block, backend_.raw_deleter(), c10::Device(c10::kCUDA, 0));
    backend_.recordStream(pointer, of_pytorch(user));
    (void)const_cast<c10::DataPtr&>(pointer).release_context();
  }

  // As torch.cuda.graph begins and ends, on the stream compute_.
  void begin_capture(CaptureMode mode = CaptureMode::global) {
    streams_.capture_mode = mode;
    check(memory_.pools().begin(
        kPool,
        [this](cudaStream_t asking) {
          const CaptureInfo info = *sim_.capture_info(Stream::of_captured(asking));
          return info.status == CaptureInfo::Status::active && info.id == capture_;
        },
        compute_));
    ASSERT_TRUE(sim_.begin_capture(compute_, mode).ok());
    capture_ = sim_.capture_info(compute_)->id;
  }
  GraphHandle end_capture() {
    const Result<GraphHandle> graph = sim_.end_capture(compute_);
    EXPECT_TRUE(graph.ok());
    check(memory_.pools().end(kPool));
    return graph.ok() ? *graph : GraphHandle{};
  }
  void drop(GraphHandle graph) {
    EXPECT_TRUE(sim_.destroy_graph(graph).ok());
    check(memory_.pools().release(kPool));
  }
  // The same of a capture that is broken.
  void end_broken_capture() {
    EXPECT_FALSE(sim_.end_capture(compute_).ok());
    check(memory_.pools().end(kPool));
    check(memory_.pools().release(kPool));
  }

  static constexpr c10::MempoolId_t kPool{1, 0};
  std::uint64_t capture_ = 0;

  weir::Allocator allocator_;
  SimDevice& sim_ = dynamic_cast<SimDevice&>(allocator_.device(0));
  Backend backend_{allocator_};
  DeviceMemory& memory_ = backend_.memory(0);
  FakeStreams streams_{sim_};
  const Stream compute_ = streams_.add();
  FakeCommunicator communicator_{sim_, streams_};
  CollectiveFences fences_{backend_};
};

}  // namespace weir::pytorch
