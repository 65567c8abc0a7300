// SPDX-License-Identifier: Apache-2.0
// Whose capture it is: a pool that is ended and begun again inside one capture goes on with it, as
// programs do around a request for memory of another pool; and what a capture that failed leaves.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/contract_pools.h"
#include "weir/event.h"

namespace weir {
namespace {

class PausedCaptures : public test::ContractPools {
 protected:
  using ContractPools::ContractPools;

  std::uint64_t context_events() { return device_.calls(DeviceCall::record_context); }
  // Takes what is captured with `stream` now or later, as the filter of a PyTorch graph does.
  StreamFilter whole_capture_of(Stream stream) {
    auto id = std::make_shared<std::uint64_t>(0);
    return [this, stream, id](Stream asking) {
      const Result<CaptureInfo> info = device_.capture_info(asking);
      if (!info.ok() || info->status != CaptureInfo::Status::active) return false;
      if (*id == 0) *id = device_.capture_info(stream)->id;
      return info->id == *id;
    };
  }
  PoolBinding announce(GraphPool& pool, Stream stream) {
    Result<PoolBinding> binding = pool.capture(whole_capture_of(stream), stream);
    EXPECT_TRUE(binding.ok()) << (binding.ok() ? "" : binding.error().message());
    return binding.ok() ? *std::move(binding) : PoolBinding();
  }
  void begin(Stream stream) {
    ASSERT_TRUE(device_.begin_capture(stream, CaptureMode::relaxed).ok());
  }
  ExecutableHandle end(Stream stream) {
    const Result<GraphHandle> graph = device_.end_capture(stream);
    EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message());
    if (!graph.ok()) return {};
    const Result<ExecutableHandle> executable = device_.instantiate(*graph);
    EXPECT_TRUE(device_.destroy_graph(*graph).ok());
    return executable.ok() ? *executable : ExecutableHandle{};
  }
  void fail(Stream stream) {
    const Result<GraphHandle> graph = device_.end_capture(stream);
    if (graph.ok()) (void)device_.destroy_graph(*graph);
  }
  void replay(ExecutableHandle executable, Stream stream, int times = 3) {
    for (int i = 0; i < times; ++i) EXPECT_TRUE(device_.launch_graph(executable, stream).ok());
    device_.finish();
  }
  void forget(ExecutableHandle executable, GraphPool& pool) {
    pool.release_graph();
    EXPECT_TRUE(device_.destroy_executable(executable).ok());
  }
  // No call of the program's asks the driver about captures.
  void expect_fast_paths() {
    const Stream stream = device_.new_stream();
    device_.finish();
    // Until what it waited for is seen to be over, it is asked about.
    for (int i = 0; i < 200; ++i) free(allocate(1_MiB, stream));
    const std::uint64_t before = device_.calls(DeviceCall::capture_info);
    for (int i = 0; i < 100; ++i) free(allocate(1_MiB, stream));
    EXPECT_EQ(device_.calls(DeviceCall::capture_info), before);
  }
  // Memory of one stream goes to another with no wait of the host's.
  void expect_context_events() {
    const std::uint64_t before = context_events();
    void* const x = written(kBlock, m_, kLong);
    heap_.set_limit(reserved());
    free(x);
    free(written(kBlock, t_));
    heap_.set_limit(0_B);
    EXPECT_GT(context_events(), before);
    for (const std::uint64_t lost : heap_.statistics().context_events_lost) EXPECT_EQ(lost, 0u);
  }
};

class ToldPauses : public PausedCaptures {
 protected:
  ToldPauses() : told_(device_) {}
  DeviceHeap told_;
  std::vector<PoolBinding> left_open_;
};

TEST_F(ToldPauses, NoOtherCaptureBeginsIntoAPausedPool) {
  GraphPool pool(told_);
  Result<PoolBinding> binding = pool.capture(whole_capture_of(s_), s_);
  ASSERT_TRUE(binding.ok());
  begin(s_);
  EXPECT_TRUE(told_.deallocate(*told_.allocate(kBlock, s_)).ok());
  binding->close();
  EXPECT_FALSE(pool.capture(whole_capture_of(t_), t_).ok());
  EXPECT_FALSE(pool.warm_up(t_).ok());
  forget(end(s_), pool);
  Result<PoolBinding> other = pool.capture(whole_capture_of(t_), t_);
  EXPECT_TRUE(other.ok()) << "the capture is over";
  other->close(false);
}

// Its streams would not be ordered in what follows.
TEST_F(PausedCaptures, ACaptureOfSeveralStreamsIsNotReplacedInItsPause) {
  GraphPool* const pool = open_pool();
  PoolBinding binding = announce(*pool, s_);
  begin(s_);
  order(s_, t_);
  void* const x = written(kBlock, s_);
  EXPECT_TRUE(heap_.record_stream(x, t_).ok());
  binding.close();
  const Result<PoolBinding> other = pool->capture(whole_capture_of(m_), m_);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), ErrorCode::invalid_argument);
  order(t_, s_);
  forget(end(s_), *pool);
  free(x);
}

TEST_F(PausedCaptures, AnEagerStreamWarmsUpInThePause) {
  GraphPool* const pool = open_pool();
  PoolBinding binding = announce(*pool, s_);
  begin(s_);
  void* const x = written(kBlock, s_);
  binding.close();
  {
    const PoolBinding eager = warm_up(*pool, t_);
    free(written(kBlock, t_, kLong));
  }
  binding = announce(*pool, s_);
  void* const y = written(kBlock, s_);
  const ExecutableHandle executable = end(s_);
  binding.close();
  replay(executable, m_);
  for (void* const each : {x, y}) free(each);
  forget(executable, *pool);
}

TEST_F(PausedCaptures, ACaptureThatEndsInThePauseIsSeenToHaveEnded) {
  GraphPool* const pool = open_pool();
  PoolBinding binding = announce(*pool, s_);
  begin(s_);
  free(written(kBlock, s_));
  binding.close();
  const ExecutableHandle executable = end(s_);
  expect_fast_paths();
  expect_context_events();
  EXPECT_EQ(pool->statistics().graphs, 1u);
  EXPECT_EQ(pool->statistics().kept_bytes, kBlock);
  replay(executable, m_);
  forget(executable, *pool);
  close(pool);
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
}

// Nobody asked in between, and the driver says of either that the stream is captured.
TEST_F(ToldPauses, TheNextCaptureOfAStreamIsAnotherThoughItHasBegun) {
  GraphPool pool(told_);
  for (const bool closes : {true, true, false, false, true}) {
    begin(s_);
    Result<PoolBinding> binding = pool.capture(whole_capture_of(s_), s_);
    ASSERT_TRUE(binding.ok()) << binding.error().message();
    EXPECT_TRUE(told_.deallocate(*told_.allocate(kBlock, s_)).ok());
    if (closes) binding->close();
    const ExecutableHandle executable = end(s_);
    if (!closes) left_open_.push_back(*std::move(binding));
    forget(executable, pool);
  }
  left_open_.clear();
}

// Sees the end of a capture into the pool, and takes its time.
class SlowToSee : public EventSink {
 public:
  void on_event(const Event& event) override {
    if (event.kind != EventKind::capture_end || event.pool != pool) return;
    sees = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::atomic<std::uint64_t> pool{0};
  std::atomic<bool> sees{false};
};

// Nobody finds a pool whose capture counts as over, and which has not heard of that.
TEST_F(PausedCaptures, CapturesThatAnotherThreadFindsOverAreOverForTheirPools) {
  SlowToSee sink;
  DeviceHeap heap(device_, {}, &sink);
  GraphPool first(heap), second(heap);
  sink.pool = first.id();
  const Stream e = device_.new_stream();
  for (const auto& [pool, stream] : {std::pair(&first, s_), std::pair(&second, t_)}) {
    Result<PoolBinding> binding = pool->capture(whole_capture_of(stream), stream);
    ASSERT_TRUE(binding.ok()) << binding.error().message();
    begin(stream);
    EXPECT_TRUE(heap.deallocate(*heap.allocate(kBlock, stream)).ok());
    binding->close();
  }
  forget(end(s_), first);
  forget(end(t_), second);
  std::thread finder([&] { EXPECT_TRUE(heap.deallocate(*heap.allocate(kBlock, e)).ok()); });
  while (!sink.sees) std::this_thread::yield();
  const Result<void*> eager = second.allocate(kBlock, m_);
  EXPECT_TRUE(eager.ok()) << eager.error().message();
  finder.join();
  if (eager.ok()) {
    EXPECT_TRUE(heap.deallocate(*eager).ok());
  }
}

// An origin that is captured is shown to the filter.
TEST_F(ToldPauses, AFilterThatThrowsLeavesNothingBound) {
  GraphPool pool(told_);
  begin(s_);
  const auto throws = [](Stream) -> bool { throw std::runtime_error("a filter's"); };
  EXPECT_THROW((void)pool.capture(throws, s_), std::runtime_error);
  fail(s_);
  const std::uint64_t before = device_.calls(DeviceCall::capture_info);
  EXPECT_TRUE(told_.deallocate(*told_.allocate(kBlock, t_)).ok());
  EXPECT_EQ(device_.calls(DeviceCall::capture_info), before);
}

// use_mem_pool() around the end of a capture: the thread that entered the pool has not left it.
TEST_F(PausedCaptures, APoolThatIsEnteredWithinACaptureServesUntilItIsLeft) {
  GraphPool* const pool = open_pool();
  GraphPool* const entered = open_pool();
  PoolBinding capture = announce(*pool, s_);
  begin(s_);
  capture.close();
  PoolBinding inside = entered->capture([](Stream) { return true; }, s_).value();
  EXPECT_TRUE(inside.outlives_capture());
  capture = announce(*pool, s_);
  EXPECT_FALSE(capture.outlives_capture());
  const ExecutableHandle executable = end(s_);
  capture.close();
  void* const x = written(kBlock, t_);
  EXPECT_EQ(heap_.find(x)->pool, entered->id());
  inside.close();
  void* const y = written(kBlock, t_);
  EXPECT_EQ(heap_.find(y)->pool, 0u);
  free(x);
  free(y);
  forget(executable, *pool);
  close(pool);
  close(entered);
  expect_fast_paths();
}

// A stream that may end is asked only where the program names it.
TEST_F(PausedCaptures, ACaptureThatFailedInThePauseIsOverOnceItsStreamIsSeenUncaptured) {
  Stream origin = device_.new_stream();
  origin.may_end = true;
  GraphPool* const pool = open_pool();
  PoolBinding binding = announce(*pool, origin);
  begin(origin);
  free(written(kBlock, origin));
  binding.close(/*keep=*/true, /*origin_lives=*/true);
  fail(origin);
  EXPECT_TRUE(heap_.stream(origin.handle).ok());
  host_wait(origin);
  EXPECT_TRUE(device_.destroy_stream(origin).ok());
  pool->release_graph();
  close(pool);
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
  expect_fast_paths();
}

// It never began, or it failed before it asked for memory.
TEST_F(PausedCaptures, TheNextCaptureOfAStreamTakesThePlaceOfOneThatIsNotThere) {
  for (const bool began : {false, true}) {
    GraphPool* const failed = open_pool();
    PoolBinding stale = announce(*failed, s_);
    if (began) {
      begin(s_);
      fail(s_);
    }
    GraphPool* const pool = open_pool();
    PoolBinding binding = announce(*pool, s_);
    begin(s_);
    free(written(1_MiB, s_));
    const ExecutableHandle executable = end(s_);
    binding.close();
    forget(executable, *pool);
    expect_fast_paths();
    expect_context_events();
    stale.close(/*keep=*/false);
  }
}

// A capture of any shape, with pauses: forks and joins, blocks that another stream uses, blocks
// that are freed in the pause, memory of another pool, an eager block that is freed meanwhile.
class RandomPauses : public PausedCaptures {
 protected:
  struct Block {
    void* at = nullptr;
    Bytes bytes;
    Stream stream;
  };

  void run(DeviceHeap& heap, std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto one_in = [&](unsigned n) { return random() % n == 0; };
    GraphPool pool(heap), side(heap);
    std::vector<Block> blocks;
    void* const eager = *heap.allocate(2_MiB, m_);
    bool is_used = false, is_freed = false;
    PoolBinding binding = *pool.capture(whole_capture_of(s_), s_);
    begin(s_);
    order(s_, t_);
    std::optional<PoolBinding> aside;
    bool paused = false;
    for (int step = 0; step < 60; ++step) {
      if (one_in(4)) {
        if (!paused) {
          binding.close();
          if (one_in(2)) aside = *side.capture(whole_capture_of(s_), s_);
        } else {
          aside.reset();
          binding = *pool.capture(whole_capture_of(s_), one_in(2) ? s_ : t_);
        }
        paused = !paused;
      }
      const Stream stream = one_in(2) ? s_ : t_;
      const Stream other = stream == s_ ? t_ : s_;
      if (one_in(6)) order(stream, other);
      if (!is_freed && one_in(10)) {
        const Status told = is_used     ? heap.deallocate(eager)
                            : one_in(2) ? heap.fence(eager, stream)
                                        : heap.record_stream(eager, stream);
        EXPECT_TRUE(told.ok()) << told.error().message();
        is_freed = std::exchange(is_used, true);
      }
      EXPECT_TRUE(heap.find(eager).has_value()) << "the capture goes on, and uses it";
      if ((!paused || aside) && one_in(2)) {
        const Bytes bytes = 2_MiB * (1 + random() % 4);
        const Result<void*> made = heap.allocate(bytes, stream);
        ASSERT_TRUE(made.ok()) << made.error().message();
        write(*made, bytes, stream);
        blocks.push_back({*made, bytes, stream});
      } else if (!blocks.empty()) {
        Block& block = blocks[random() % blocks.size()];
        if (one_in(2)) {
          const Stream user = block.stream == s_ ? t_ : s_;
          order(block.stream, user);
          read(block.at, block.bytes, user);
          EXPECT_TRUE(heap.record_stream(block.at, user).ok());
        }
        EXPECT_TRUE(heap.deallocate(block.at).ok());
        block = blocks.back();
        blocks.pop_back();
      }
    }
    order(t_, s_);
    const ExecutableHandle executable = end(s_);
    aside.reset();
    binding.close();
    replay(executable, m_);
    ASSERT_EQ(device_.race_count(), 0u);
    for (const Block& block : blocks) EXPECT_TRUE(heap.deallocate(block.at).ok());
    EXPECT_TRUE(is_freed || heap.deallocate(eager).ok());
    EXPECT_TRUE(heap.trim().ok());  // the frees are due that waited for the end
    EXPECT_EQ(heap.statistics().live_blocks.current, 0u);
    EXPECT_TRUE(device_.destroy_executable(executable).ok());
    pool.release_graph();
    side.release_graph();
    ASSERT_TRUE(heap.validate().empty());
  }
};

TEST_F(RandomPauses, RaceNowhere) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    for (const Trust trust : {Trust::told, Trust::context}) {
      DeviceHeap heap(device_, {.trust = trust});
      run(heap, seed);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace weir
