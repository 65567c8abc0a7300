// SPDX-License-Identifier: Apache-2.0
// What streams are called under Trust::context, by threads that know their handles only: a stream
// has one name, and so what one thread of a capture frees serves the others (docs/decisions.md,
// 030).
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/training_step.h"
#include "tests/unit/contract_pools.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

class UntoldStreams : public test::ContractPools {
 protected:
  Stream named(void* handle) {
    const Result<Stream> stream = heap_.stream(handle);
    EXPECT_TRUE(stream.ok()) << (stream.ok() ? "" : stream.error().message());
    return stream.ok() ? *stream : Stream{};
  }
  // Asked for by the stream's handle.
  void* written_on(Stream stream, Bytes bytes = 1_MiB) {
    void* const block = allocate(bytes, named(stream.handle));
    write(block, bytes, stream, 1_us);
    return block;
  }
  // What PyTorch's captures take.
  StreamFilter is_captured() {
    return [this](Stream asking) {
      return device_.capture_info(Stream::of_captured(asking.handle))->status !=
             CaptureInfo::Status::none;
    };
  }
  // In a capture of the pool's that is s_'s, and forks to `side`.
  Captured forked(GraphPool& pool, Stream side, const std::function<void*()>& work) {
    Result<PoolBinding> binding = pool.capture(is_captured(), s_);
    EXPECT_TRUE(binding.ok());
    EXPECT_TRUE(device_.begin_capture(s_, CaptureMode::thread_local_).ok());
    order(s_, side);
    Captured captured{.executable = {}, .output = work()};
    order(side, s_);
    const Result<GraphHandle> graph = device_.end_capture(s_);
    EXPECT_TRUE(graph.ok());
    binding->close();
    captured.executable = *device_.instantiate(*graph);
    EXPECT_TRUE(device_.destroy_graph(*graph).ok());
    return captured;
  }
  void drop(const Captured& captured, GraphPool& pool) {
    if (captured.output != nullptr) free(captured.output);
    ContractPools::drop(captured, pool);
  }
};

TEST_F(UntoldStreams, KeepTheNameThatACaptureGaveThem) {
  GraphPool& pool = *open_pool();
  const Stream side = device_.new_stream();
  Stream inside{}, again{};
  drop(forked(pool, side,
              [&] {
                inside = named(side.handle);
                return written_on(side);
              }),
       pool);
  const Stream after = named(side.handle);
  EXPECT_EQ(after, inside);
  free(written_on(side));
  drop(forked(pool, side,
              [&] {
                again = named(side.handle);
                return written_on(side);
              }),
       pool);
  EXPECT_EQ(again, inside);
  // Whatever it goes by, it may be retired by the driver's id.
  EXPECT_TRUE(heap_.retire(side).ok());
  EXPECT_TRUE(device_.destroy_stream(side).ok());
  EXPECT_FALSE(heap_.allocate(1_MiB, inside).ok());
}

TEST_F(UntoldStreams, HaveOneNameForAllThreadsThatAskAtOnce) {
  constexpr std::size_t kStreams = 12, kThreads = 4;
  GraphPool& pool = *open_pool();
  std::vector<Stream> sides;
  for (std::size_t i = 0; i < kStreams; ++i) sides.push_back(device_.new_stream());
  const auto ask = [&](std::vector<std::vector<Stream>>& names) {
    std::vector<std::thread> threads;
    for (std::vector<Stream>& mine : names) {
      threads.emplace_back([&] {
        for (const Stream side : sides) mine.push_back(named(side.handle));
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  std::vector<std::vector<Stream>> inside(kThreads), after(kThreads);
  drop(forked(pool, sides[0],
              [&] {
                for (std::size_t i = 1; i < kStreams; i += 2) order(s_, sides[i]);
                ask(inside);
                for (std::size_t i = 1; i < kStreams; i += 2) order(sides[i], s_);
                return nullptr;
              }),
       pool);
  ask(after);
  for (std::size_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(inside[i], inside[0]);
    EXPECT_EQ(after[i], inside[0]);
  }
}

// A device whose streams get the handles of streams that are gone.
class ReusedHandles : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Result<Stream> stream(void* handle) override {
    Result<Stream> found = ForwardingDevice::stream(handle);
    if (found && now_) found->id = now_->id;
    return found;
  }
  void give_again_to(Stream stream) { now_ = stream; }

 private:
  std::optional<Stream> now_;
};

TEST(UntoldStreamsOfReusedHandles, HaveAnotherNameThanThoseThatAreGone) {
  SimDevice sim;
  ReusedHandles device(sim);
  DeviceHeap heap(device, HeapOptions{.trust = Trust::context});
  const Stream first = sim.new_stream(), second = sim.new_stream(), third = sim.new_stream();
  const Stream before = *heap.stream(first.handle);
  device.give_again_to(second);
  const Stream after = *heap.stream(first.handle);
  EXPECT_FALSE(after == before);
  EXPECT_EQ(*heap.stream(first.handle), after);
  device.give_again_to(third);
  EXPECT_FALSE(*heap.stream(first.handle) == after);
}

enum class WarmUp { none, on_the_capture_stream, on_another_stream };

class UntoldTrainingSteps : public UntoldStreams, public testing::WithParamInterface<WarmUp> {
 protected:
  // The pass that PyTorch runs in a thread of its own, which knows the stream by its handle.
  void step(Stream stream, test::TrainingStep& step) {
    stream_ = name_ = stream;
    step.forward();
    std::thread autograd([&] {
      name_ = named(stream.handle);
      step.backward();
    });
    autograd.join();
  }
  test::TrainingStep new_step() {
    return {[this](Bytes bytes) {
              void* const block = allocate(bytes, name_);
              write(block, bytes, stream_, 1_us);
              return block;
            },
            [this](void* block) { free(block); }};
  }

  Stream stream_;  // the current one
  Stream name_;    // as the thread that is at work has it
};

// (A warm-up in the pool is of the thread that begins it: the backward pass of one uses the device
// heap's memory.)
TEST_P(UntoldTrainingSteps, HoldWhatTheirCaptureNeedsAndNoMore) {
  GraphPool& pool = *open_pool();
  const Stream current = named(t_.handle), stream = named(s_.handle);
  if (GetParam() != WarmUp::none) {
    test::TrainingStep warm_up = new_step();
    const std::thread::id me = std::this_thread::get_id();
    const Result<PoolBinding> binding =
        pool.warm_up([me](Stream) { return std::this_thread::get_id() == me; });
    ASSERT_TRUE(binding.ok());
    step(GetParam() == WarmUp::on_another_stream ? current : stream, warm_up);
    warm_up.drop_gradients();
  }
  device_.finish();
  ASSERT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  test::TrainingStep captured = new_step();
  Result<PoolBinding> binding = pool.capture(is_captured(), stream);
  ASSERT_TRUE(binding.ok());
  ASSERT_TRUE(device_.begin_capture(stream, CaptureMode::thread_local_).ok());
  step(stream, captured);
  const Result<GraphHandle> graph = device_.end_capture(stream);
  ASSERT_TRUE(graph.ok()) << graph.error().message();
  binding->close();
  EXPECT_LE(static_cast<double>(pool.statistics().reserved_bytes.count),
            1.005 * static_cast<double>(captured.peak().count));
  const ExecutableHandle executable = *device_.instantiate(*graph);
  EXPECT_TRUE(device_.destroy_graph(*graph).ok());
  EXPECT_TRUE(device_.launch_graph(executable, stream).ok());
  device_.finish();
  captured.drop_gradients();
  pool.release_graph();
  EXPECT_TRUE(device_.destroy_executable(executable).ok());
}

std::string name_of(const testing::TestParamInfo<WarmUp>& info) {
  constexpr std::array kNames = {"None", "OnTheCaptureStream", "OnAnotherStream"};
  return kNames[static_cast<std::size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(WarmUps, UntoldTrainingSteps,
                         testing::Values(WarmUp::none, WarmUp::on_the_capture_stream,
                                         WarmUp::on_another_stream),
                         name_of);

}  // namespace
}  // namespace weir
