// SPDX-License-Identifier: Apache-2.0
// Captures under Trust::context (docs/guarantees.md): which of them stop events of the whole
// context, for how long, and what a captured stream's requests may take.
#include <array>
#include <vector>

#include "observe/statistics_fold.h"
#include "tests/unit/contract_pools.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

class UntoldCaptures : public test::ContractPools {
 protected:
  using ContractPools::ContractPools;

  std::uint64_t context_events() { return device_.calls(DeviceCall::record_context); }
};

// After the device refused an event because of a capture that could not be known of.
TEST_F(UntoldCaptures, ARefusedEventOfTheContextIsTheLast) {
  device_.fail(DeviceCall::record_context, 1, ErrorCode::capture);
  free(written(kBlock, s_, kLong));
  free(written(kBlock, t_));
  EXPECT_TRUE(heap_.trim().ok());
  const std::uint64_t events = context_events();
  EXPECT_EQ(events, 1u);
  free(written(kBlock * 2, m_));
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(context_events(), events);
}

TEST_F(UntoldCaptures, TheOriginOfAnAnnouncedCaptureIsNotAskedOnceItMayHaveEnded) {
  for (const bool retired : {false, true}) {
    Stream origin = device_.new_stream();
    origin.may_end = !retired;
    PoolBinding binding = announce(*open_pool(), origin);
    begin_unannounced(origin);
    end_and_destroy(origin);
    if (retired) {
      EXPECT_TRUE(heap_.retire(origin).ok());
    }
    EXPECT_TRUE(device_.destroy_stream(origin).ok());
    free(written(kBlock, s_, kLong));
    free(written(kBlock, t_));
    EXPECT_TRUE(heap_.trim().ok());
    binding.close(false);
  }
}

// Each reason is heard of once, by whoever asks for it: in the statistics, in what records, by the
// callback.
class ContextEventsLostTest : public UntoldCaptures {
 protected:
  // By ContextEventsLost, of a heap that `lose(heap)` makes lose them.
  template <class Lose>
  void expect_lost(std::vector<ContextEventsLost> expected, Lose&& lose) {
    StatisticsFold fold;
    DeviceHeap heap(device_, untold(), &fold);
    std::vector<ContextEventsLost> told;
    heap.captures().on_context_events_lost([&](ContextEventsLost why) { told.push_back(why); });
    for (int i = 0; i < 2; ++i) lose(heap);
    EXPECT_EQ(told, expected);
    std::array<std::uint64_t, kContextEventsLost> counted{};
    for (const ContextEventsLost why : expected) ++counted[static_cast<std::size_t>(why)];
    EXPECT_EQ(heap.statistics().context_events_lost, counted);
    EXPECT_EQ(fold.statistics().context_events_lost, counted);
    StatisticsFold late;
    heap.start_recording(late);
    EXPECT_EQ(late.statistics().context_events_lost, counted) << "a recording that begins later";
    heap.stop_recording(late);
  }
  // Memory that only an event of the context can move.
  void want_an_event(DeviceHeap& heap) {
    void* const x = *heap.allocate(kBlock, s_);
    EXPECT_TRUE(heap.deallocate(x).ok());
    heap.set_limit(Bytes{heap.statistics().reserved_bytes.current});
    void* const y = *heap.allocate(kBlock, t_);
    EXPECT_TRUE(heap.deallocate(y).ok());
    heap.set_limit(0_B);
  }
};

TEST_F(ContextEventsLostTest, IsSaidWithItsReason) {
  expect_lost({}, [&](DeviceHeap& heap) { want_an_event(heap); });
  expect_lost({ContextEventsLost::unannounced_capture}, [&](DeviceHeap& heap) {
    EXPECT_TRUE(heap.deallocate(*heap.allocate(1_KiB, m_)).ok());
    begin_unannounced(m_);
    want_an_event(heap);
    end_and_destroy(m_);
  });
  expect_lost({ContextEventsLost::refused}, [&](DeviceHeap& heap) {
    device_.fail(DeviceCall::record_context, 1, ErrorCode::capture);
    want_an_event(heap);
  });
  device_.fail(DeviceCall::record_context, 0);
  expect_lost({ContextEventsLost::unavailable}, [&](DeviceHeap& heap) {
    device_.fail(DeviceCall::record_context, 1, ErrorCode::unavailable);
    want_an_event(heap);
  });
  device_.fail(DeviceCall::record_context, 0);
  expect_lost({ContextEventsLost::external_stream, ContextEventsLost::pluggable},
              [&](DeviceHeap& heap) {
                heap.captures().forgo_context_events(ContextEventsLost::external_stream, m_.id);
                heap.captures().forgo_context_events(ContextEventsLost::pluggable);
                want_an_event(heap);
              });
}

// Those who don't want them don't lose them.
TEST_F(ContextEventsLostTest, IsSaidOnlyWhereSuchEventsAreUsed) {
  for (const HeapOptions& options :
       {HeapOptions{.trust = Trust::told},
        HeapOptions{.trust = Trust::context, .context_events = false}}) {
    DeviceHeap heap(device_, options);
    heap.captures().on_context_events_lost([](ContextEventsLost) { ADD_FAILURE(); });
    heap.captures().forgo_context_events(ContextEventsLost::external_stream);
    for (const std::uint64_t lost : heap.statistics().context_events_lost) EXPECT_EQ(lost, 0u);
  }
}

// What a graph may use serves the stream that it was captured on, and no other.
TEST_F(UntoldCaptures, MemoryOfAGraphServesNoOtherStreamOfItsPool) {
  for (const Bytes size : {kBlock, kBlock * 2, 1_MiB}) {
    for (const bool limited : {false, true}) {
      GraphPool* pool = open_pool();
      Captured captured = capture(*pool, s_, [&] {
        void* const first = written(kBlock, s_);
        void* const second = written(kBlock, s_);
        free(first);
        free(second);
        return nullptr;
      });
      device_.finish();
      EXPECT_TRUE(heap_.trim().ok());
      if (limited) heap_.set_limit(reserved());
      PoolBinding binding = warm_up(*pool, t_);
      const Result<void*> eager = heap_.allocate(size, t_);
      EXPECT_EQ(eager.ok(), !limited);
      if (eager) write(*eager, size, t_, kLong);
      launch(captured, m_);
      if (eager) free(*eager);
      binding.close();
      // The same for another capture.
      if (!limited) {
        Captured other = capture(*pool, t_, [&] {
          void* const x = written(size, t_);
          free(x);
          return nullptr;
        });
        launch(other, t_);
        launch(captured, m_);
        device_.finish();
        drop(other, *pool);
      }
      device_.finish();
      drop(captured, *pool);
      close(pool);
      heap_.set_limit(0_B);
      EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
    }
  }
}

// A capture that is not the pool's, and whose requests the pool serves.
TEST_F(UntoldCaptures, MemoryThatAnotherCaptureTookOfAPoolStaysUntilThePoolGoes) {
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  begin_unannounced(s_);
  void* const x = written(kBlock, s_);
  free(x);
  const GraphHandle graph = end_unannounced(s_);
  const ExecutableHandle executable = *device_.instantiate(graph);
  binding.close();
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_GE(reserved(), kBlock);
  EXPECT_TRUE(device_.launch_graph(executable, m_).ok());
  device_.finish();
  EXPECT_TRUE(device_.destroy_graph(graph).ok());
  EXPECT_TRUE(device_.destroy_executable(executable).ok());
  close(pool);
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
}

// The stream may be gone, so it can't be asked whether it is still captured.
TEST_F(UntoldCaptures, ABeginThatFailedEndsWithTheCaptureThatWasInItsWay) {
  Stream origin = device_.new_stream();
  origin.may_end = true;
  void* const x = written(kBlock, s_);
  GraphPool *one = open_pool(), *two = open_pool();
  PoolBinding binding = announce(*one, origin);
  begin_unannounced(origin);
  Result<PoolBinding> failed = two->capture([](Stream) { return false; }, origin);
  ASSERT_TRUE(failed.ok());
  EXPECT_FALSE(device_.begin_capture(origin, CaptureMode::global).ok());
  end_and_destroy(origin);
  binding.close(false);
  const Captured captured = capture(*one, s_, [&] {
    free(x);
    return nullptr;
  });
  EXPECT_EQ(heap_.statistics().live_blocks.current, 0u);
  drop(captured, *one);
  failed->close(false);
  close(two);
  close(one);
}

// The stream waits for t_'s long work, the graph does not: it is launched on another stream.
TEST_F(UntoldCaptures, WhatAStreamWaitedForIsNotBehindItsGraph) {
  for (const Bytes size : {100_KiB, kBlock}) {
    SCOPED_TRACE(size.count);
    void* const first = allocate(size, s_);  // so that there is a slab, or a block, of its own
    free(first);
    EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
    void* const x = written(kBlock, t_, kLong);
    heap_.set_limit(reserved());
    free(x);
    void* const small = allocate(size, s_);  // t_'s memory, behind a wait
    free(small);
    // So many that it is asked more than once whether the wait is over.
    for (int i = 0; i < 150; ++i) free(allocate(size, s_));
    begin_unannounced(s_);
    heap_.set_limit(0_B);
    void* const y = allocate(size, s_);
    write(y, size, s_);
    launch_once(end_unannounced(s_), m_);
    free(y);
  }
}

// Begins a capture just before the answer to one of the questions whether its stream is captured,
// or before an event is recorded on it.
class CapturesMeanwhile final : public ForwardingDevice {
 public:
  CapturesMeanwhile(SimDevice& device, Stream stream) : ForwardingDevice(device), stream_(stream) {}
  Result<CaptureInfo> capture_info(Stream stream) override {
    begin_when_asked(stream);
    return ForwardingDevice::capture_info(stream);
  }
  Result<CaptureInfo::Status> capture_status(Stream stream) override {
    begin_when_asked(stream);
    return ForwardingDevice::capture_status(stream);
  }
  Status record(EventHandle event, Stream stream) override {
    begin_when_asked(stream);
    return ForwardingDevice::record(event, stream);
  }
  // Of these calls from now on. 0: none.
  void capture_at(int question) { asked_ = 0, at_ = question; }
  int asked() const { return asked_; }

 private:
  void begin_when_asked(Stream stream) {
    if (stream != stream_ || ++asked_ != at_) return;
    EXPECT_TRUE(inner_.begin_capture(stream_, CaptureMode::global).ok());
  }

  const Stream stream_;
  int asked_ = 0, at_ = 0;
};

// Another thread begins it, whenever it likes.
TEST_F(UntoldCaptures, ACaptureThatBeginsDuringARequestGetsNoMemoryThatItsStreamWaitedFor) {
  int questions = 1;
  for (int at = 0; at <= questions; ++at) {
    SCOPED_TRACE(at);
    CapturesMeanwhile device(device_, s_);
    DeviceHeap heap(device, untold());
    void* const first = *heap.allocate(kBlock, t_);
    void* const second = *heap.allocate(kBlock, t_);
    for (void* const each : {first, second}) {
      write(each, kBlock, t_, kLong);
      EXPECT_TRUE(heap.deallocate(each).ok());
    }
    heap.set_limit(Bytes{heap.statistics().reserved_bytes.current});
    void* const x = *heap.allocate(kBlock, s_);  // behind a wait, which covers both
    heap.set_limit(0_B);
    device.capture_at(at);
    void* const y = *heap.allocate(kBlock, s_);
    if (at == 0) questions = device.asked();
    device.capture_at(0);
    if (at > 0) {
      write(y, kBlock, s_);
      launch_once(end_unannounced(s_), m_);
    }
    device_.finish();
    for (void* const each : {x, y}) EXPECT_TRUE(heap.deallocate(each).ok());
  }
  EXPECT_GT(questions, 1);
}

// Where uses are told, who takes the block waits for an event of the user's stream itself.
TEST_F(UntoldCaptures, ACaptureThatBeginsDuringAFreeStaysWhole) {
  int calls = 1;
  for (int at = 0; at <= calls; ++at) {
    SCOPED_TRACE(at);
    CapturesMeanwhile device(device_, m_);
    DeviceHeap heap(device, {.reuse = ReusePolicy::wait});
    void* const x = *heap.allocate(kBlock, s_);
    EXPECT_TRUE(heap.record_stream(x, m_).ok());
    write(x, kBlock, m_, kLong);
    device.capture_at(at);
    EXPECT_TRUE(heap.deallocate(x).ok());
    if (at == 0) calls = device.asked();
    device.capture_at(0);
    void* const y = *heap.allocate(kBlock, t_);
    write(y, kBlock, t_);
    if (at > 0) end_and_destroy(m_);
    device_.finish();
    EXPECT_TRUE(heap.deallocate(y).ok());
  }
  EXPECT_GT(calls, 1);
}

}  // namespace
}  // namespace weir
