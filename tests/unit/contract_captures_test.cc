// SPDX-License-Identifier: Apache-2.0
// Captures under Trust::context (docs/guarantees.md): which of them stop events of the whole
// context, for how long, and what a captured stream's requests may take.
#include <array>
#include <optional>
#include <utility>
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
  // s_'s memory, with no other to be had, goes to t_ behind an event of the context.
  void expect_memory_moves_behind_an_event() {
    const std::uint64_t events = context_events(), waits = device_.host_waits();
    void* const x = written(kBlock, s_, kLong);
    heap_.set_limit(reserved());
    free(x);
    void* const y = written(kBlock, t_);
    EXPECT_GT(context_events(), events);
    EXPECT_EQ(device_.host_waits(), waits);
    free(y);
    heap_.set_limit(0_B);
  }
};

TEST_F(UntoldCaptures, NothingIsRecordedOnACapturedStream) {
  void* const x = written(kBlock, t_);
  EXPECT_TRUE(heap_.record_stream(x, s_).ok());
  begin_unannounced(s_);
  const std::uint64_t records = device_.calls(DeviceCall::record);
  free(x);
  EXPECT_EQ(device_.calls(DeviceCall::record), records);
  end_and_destroy(s_);
}

TEST_F(UntoldCaptures, BetweenTheAnnouncementAndTheBeginningNoEventIsRecorded) {
  free(written(kBlock, s_, kLong));
  GraphPool* pool = open_pool();
  PoolBinding binding = announce(*pool, m_);
  const std::uint64_t events = context_events();
  free(written(kBlock * 2, s_, kLong));
  free(written(kBlock * 2, t_));
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(context_events(), events);
  binding.close(false);
}

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

TEST_F(UntoldCaptures, AnUnannouncedCaptureThatIsFoundByAskingEndsTheEvents) {
  free(written(1_KiB, m_));  // m_ is met, and asks for nothing while it is captured
  free(written(kBlock, s_, kLong));
  const std::uint64_t events = context_events();
  begin_unannounced(m_);
  free(written(kBlock, t_));
  EXPECT_TRUE(heap_.trim().ok());
  end_and_destroy(m_);
  free(written(kBlock * 2, s_));
  free(written(kBlock * 2, t_));
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(context_events(), events);
}

TEST_F(UntoldCaptures, AnUnannouncedCaptureThatIsFoundByARequestEndsTheEvents) {
  Stream other = device_.new_stream();
  other.may_end = true;  // so it is not asked
  free(written(kBlock, s_));
  free(written(kBlock, t_));
  begin_unannounced(other);
  void* const x = written(kBlock * 2, other);
  const std::uint64_t events = context_events();
  EXPECT_TRUE(heap_.trim().ok());
  end_and_destroy(other);
  free(written(kBlock * 3, t_));
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(context_events(), events);
  free(x);
}

TEST_F(UntoldCaptures, AnAnnouncedCaptureEndsTheEventsForItsDurationOnly) {
  void* const x = written(kBlock, t_);
  EXPECT_TRUE(heap_.record_stream(x, s_).ok());
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] {
    void* const y = written(1_MiB, s_);
    free(x);  // meets the capture
    return y;
  });
  free(captured.output);
  drop(captured, *pool);
  close(pool);
  expect_memory_moves_behind_an_event();
}

// The program ends the capture, and says so never. Whether it began is seen by what it asked for,
// or by asking.
TEST_F(UntoldCaptures, AnAnnouncedCaptureThatAskedForMemoryIsSeenToHaveEnded) {
  GraphPool* pool = open_pool();
  PoolBinding binding = announce(*pool, m_);
  begin_unannounced(m_);
  void* const x = written(1_MiB, m_);
  end_and_destroy(m_);
  expect_memory_moves_behind_an_event();
  binding.close(false);
  free(x);
}

TEST_F(UntoldCaptures, AnAnnouncedCaptureThatWasAskedAboutIsSeenToHaveEnded) {
  free(written(kBlock, s_, kLong));
  GraphPool* pool = open_pool();
  PoolBinding binding = announce(*pool, m_);
  begin_unannounced(m_);
  const std::uint64_t events = context_events();
  free(written(kBlock, t_));
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(context_events(), events);
  end_and_destroy(m_);
  expect_memory_moves_behind_an_event();
  binding.close(false);
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

TEST_F(UntoldCaptures, AStreamThatWasCapturedOnceIsAskedEverAfter) {
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, m_, [] { return nullptr; });  // asks for no memory
  drop(captured, *pool);
  close(pool);
  free(written(kBlock, s_, kLong));
  begin_unannounced(m_);
  free(written(kBlock, t_));
  EXPECT_TRUE(heap_.trim().ok());
  end_and_destroy(m_);
}

TEST_F(UntoldCaptures, ARetiredStreamIsNotAsked) {
  const Stream retired = device_.new_stream();
  free(written(1_KiB, retired));
  EXPECT_TRUE(heap_.retire(retired).ok());
  EXPECT_TRUE(device_.destroy_stream(retired).ok());
  expect_memory_moves_behind_an_event();
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

// What one stream took from another it took behind a wait; a graph that it captures may be launched
// on a stream that waited for nothing.
TEST_F(UntoldCaptures, AnUnannouncedCaptureGetsNoMemoryThatItsStreamWaitedFor) {
  for (const Bytes size : {kBlock, 1_MiB}) {
    for (const bool in_parts : {false, true}) {
      DeviceHeap heap(device_, untold());
      void* const x = *heap.allocate(size, t_);
      write(x, size, t_, kLong);
      EXPECT_TRUE(heap.deallocate(x).ok());
      heap.set_limit(Bytes{heap.statistics().reserved_bytes.current});
      const Bytes part = in_parts ? size / 2 : size;
      void* const y = *heap.allocate(part, s_);
      void* const beside = in_parts ? *heap.allocate(part, s_) : nullptr;
      EXPECT_TRUE(heap.deallocate(y).ok());
      EXPECT_TRUE(heap.trim().ok());
      heap.set_limit(0_B);
      begin_unannounced(s_);
      void* const z = *heap.allocate(part, s_);
      write(z, part, s_);
      launch_once(end_unannounced(s_), m_);
      EXPECT_TRUE(heap.deallocate(z).ok());
      EXPECT_TRUE(heap.deallocate(beside).ok());
    }
  }
}

TEST_F(UntoldCaptures, AloneAnUnannouncedCaptureGetsItsStreamsMemoryAtOnce) {
  free(written(kBlock, s_, kLong));
  EXPECT_TRUE(heap_.trim().ok());
  const Bytes before = reserved();
  begin_unannounced(s_);
  void* const x = written(kBlock, s_);
  EXPECT_EQ(reserved(), before);
  end_and_destroy(s_);
  free(x);
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

TEST_F(UntoldCaptures, MemoryOfAGraphServesItsOwnStreamsNextCapture) {
  GraphPool* pool = open_pool();
  Captured first = capture(*pool, s_, [&] {
    free(written(kBlock, s_));
    return nullptr;
  });
  const Bytes before = reserved();
  Captured second = capture(*pool, s_, [&] {
    free(written(kBlock, s_));
    return nullptr;
  });
  EXPECT_EQ(reserved(), before);
  drop(first, *pool);
  drop(second, *pool);
  close(pool);
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

// ... though the executable is there still.
TEST_F(UntoldCaptures, MemoryOfAGraphGoesWhenThePoolIsTold) {
  GraphPool* pool = open_pool();
  Captured captured = capture(*pool, s_, [&] { return written(kBlock, s_); });
  free(captured.output);
  pool->release_graph();
  close(pool);
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
  EXPECT_TRUE(device_.destroy_executable(captured.executable).ok());
}

// Weir's own captures too: where a graph was launched is not remembered by the stream.
TEST_F(UntoldCaptures, AGraphsStreamEndsBeforeTheGraph) {
  Stream gone = device_.new_stream();
  gone.may_end = true;
  GraphPool* pool = open_pool();
  Result<CaptureScope> scope = CaptureScope::begin(*pool, s_);
  ASSERT_TRUE(scope.ok());
  free(written(kBlock, s_));
  Result<Graph> graph = scope->end();
  ASSERT_TRUE(graph.ok());
  EXPECT_TRUE(graph->launch(gone).ok());
  host_wait(gone);
  EXPECT_TRUE(device_.destroy_stream(gone).ok());
  { const Graph dropped = *std::move(graph); }
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

// A block waits for the captures that may use it alone, of which the refused one is none.
TEST_F(UntoldCaptures, ABeginThatAnotherLibrarysCaptureRefusesHoldsNoBlockBack) {
  Stream origin = device_.new_stream();
  origin.may_end = true;
  void* const x = written(kBlock, s_);
  begin_unannounced(origin);
  GraphPool *refused = open_pool(), *pool = open_pool();
  Result<PoolBinding> stale = refused->capture([](Stream) { return false; }, origin);
  ASSERT_TRUE(stale.ok());
  EXPECT_FALSE(device_.begin_capture(origin, CaptureMode::global).ok());
  const Captured captured = capture(*pool, s_, [&] {
    end_and_destroy(origin);
    free(x);
    return nullptr;
  });
  EXPECT_EQ(heap_.statistics().live_blocks.current, 0u);
  drop(captured, *pool);
}

// What the program says of the state it goes back to, it orders itself.
TEST_F(UntoldCaptures, GoingBackToAStateMakesNoStreamWait) {
  GraphPool* pool = open_pool();
  PoolBinding binding = warm_up(*pool, s_);
  void* const x = written(kBlock, s_);
  const std::vector<PlacedBlock> state = pool->blocks();
  EXPECT_TRUE(heap_.record_stream(x, m_).ok());
  order(s_, m_);
  read(x, kBlock, m_, kLong);
  free(x);
  EXPECT_TRUE(pool->restore(state).ok());
  EXPECT_EQ(heap_.statistics().stream_waits, 0u);
  device_.finish();
  free(x);
  binding.close();
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

// Once the work that it waited for is over, a stream's requests are served as before.
TEST_F(UntoldCaptures, AStreamAsksUntilWhatItWaitedForIsOver) {
  void* const x = written(kBlock, t_);
  heap_.set_limit(reserved());
  free(x);
  free(allocate(100_KiB, s_));
  const auto questions = [&] {
    const std::uint64_t before = device_.calls(DeviceCall::capture_info);
    for (int i = 0; i < 200; ++i) free(allocate(100_KiB, s_));
    return device_.calls(DeviceCall::capture_info) - before;
  };
  host_wait(s_);
  EXPECT_EQ(questions(), 64u) << "whether it is over is asked once in 64 requests";
  EXPECT_EQ(questions(), 0u);
}

}  // namespace
}  // namespace weir
