// SPDX-License-Identifier: Apache-2.0
// Graph pools under load, on the simulated device and on a GPU: captures in several threads and in
// each mode while others allocate eagerly, captures that break at each of their calls, and many
// captures one after the other. Blocks hold patterns that later kernels check.
// CAPTURES: how many each thread makes (100 on a GPU), for tools that make it slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/stress/gpu.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir::stress {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

enum class On { simulated, gpu };

template <class T>
T need(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return *std::move(result);
}
void need(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message());
}

int captures(int usual) {
  const char* const asked = std::getenv("CAPTURES");
  return asked == nullptr ? usual : std::max(1, std::atoi(asked));
}

class GraphPoolsUnderLoad : public testing::TestWithParam<On> {
 protected:
  void SetUp() override {
    if (GetParam() == On::gpu) {
      Result<std::unique_ptr<Gpu>> gpu = open_cuda_gpu(0);
      if (!gpu.ok()) GTEST_SKIP() << gpu.error().message();
      gpu_ = *std::move(gpu);
    } else {
      gpu_ = open_sim_gpu();
    }
    heap_ = std::make_unique<DeviceHeap>(gpu_->device());
    warm_up_kernels();
  }
  void TearDown() override {
    if (gpu_ == nullptr) return;
    for (const Stream stream : streams_) need(gpu_->synchronize(stream));
    EXPECT_THAT(heap_->validate(), IsEmpty());
    EXPECT_EQ(heap_->statistics().live_blocks.current, 0u) << "the test's own blocks";
    expect_all_right();
    heap_.reset();
  }

  // A kernel's first launch loads it, which a capture does not permit.
  void warm_up_kernels() {
    const Stream stream = new_stream();
    const Contents block = allocate(1_MiB, stream, 1);
    free(block, stream);
  }
  void expect_all_right() {
    const Findings findings = need(gpu_->findings());
    EXPECT_EQ(findings.wrong, 0u) << findings.description;
  }
  bool on_a_gpu() const { return GetParam() == On::gpu; }

  Stream new_stream() {
    streams_.push_back(need(gpu_->new_stream()));
    return streams_.back();
  }
  Contents allocate(Bytes bytes, Stream stream, std::uint64_t pattern, Nanoseconds delay = {}) {
    const Contents block{need(heap_->allocate(bytes, stream)), bytes, pattern};
    need(gpu_->write(stream, block, delay));
    return block;
  }
  // Checks that the block is whole, and frees it.
  void free(const Contents& block, Stream stream, Nanoseconds delay = {}) {
    need(gpu_->check(stream, block, delay));
    need(heap_->deallocate(block.pointer));
  }

  // What one thread captures: a main stream, and one that is forked from it and joins again.
  struct Capturing {
    Stream main, side, launcher;
    std::mt19937_64 random;
  };
  // A program of blocks on both streams, some used on the other one too and freed at once. Returns
  // the graph's output.
  Contents run_program(Capturing& own, int steps) {
    const auto below = [&](std::uint64_t limit) { return own.random() % limit; };
    const auto delay = [&] { return Nanoseconds{static_cast<std::int64_t>(below(20'000))}; };
    std::vector<std::pair<Contents, Stream>> live;
    need(gpu_->order(own.main, own.side));
    for (int i = 0; i < steps; ++i) {
      const Stream home = below(3) == 0 ? own.side : own.main;
      const Stream other = home.handle == own.main.handle ? own.side : own.main;
      live.emplace_back(allocate(64_KiB * (1 + below(40)), home, own.random(), delay()), home);
      if (below(4) == 0) {
        need(gpu_->order(home, other));
        need(gpu_->check(other, live.back().first, delay()));
        const std::array<void*, 1> block{live.back().first.pointer};
        need(heap_->fence(block, other));
      }
      while (live.size() > 6) {
        const std::size_t at = below(live.size());
        free(live[at].first, live[at].second, delay());
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    for (const auto& [block, home] : live) free(block, home, delay());
    need(gpu_->order(own.side, own.main));
    return allocate(1_MiB, own.main, own.random());
  }

  // Captures, and launches what it captured, `times` times, and then as long as there is a reason
  // to go on; each graph's output lives on until the next capture, which frees it.
  void capture_many(
      Capturing own, CaptureMode mode, int times,
      const std::function<bool()>& goes_on = [] { return false; }) {
    GraphPool pool(*heap_);
    Contents output;
    for (int i = 0; i < times || goes_on(); ++i) {
      CaptureScope capture = need(CaptureScope::begin(pool, own.main, mode));
      if (output.pointer != nullptr) need(heap_->deallocate(output.pointer));
      output = run_program(own, 40);
      Graph graph = need(capture.end());
      for (int launch = 0; launch < 3; ++launch) {
        need(graph.launch(own.launcher));
        need(gpu_->check(own.launcher, output, {}));
      }
    }
    need(gpu_->synchronize(own.launcher));
    need(heap_->deallocate(output.pointer));
  }

  // Allocates and frees without a pause, until told to stop.
  void allocate_until(const std::atomic<bool>& stop, Stream stream, std::uint64_t seed,
                      std::atomic<std::uint64_t>& done) {
    std::mt19937_64 random(seed);
    std::vector<Contents> blocks(8);
    while (!stop) {
      Contents& block = blocks[done % blocks.size()];
      if (block.pointer != nullptr) free(block, stream);
      block = allocate(16_KiB * (1 + random() % 200), stream, random());
      ++done;
    }
    for (const Contents& block : blocks) {
      if (block.pointer != nullptr) free(block, stream);
    }
  }

  // Runs `body` in a thread; an exception in it fails the test.
  static std::thread thread_of(std::function<void()> body) {
    return std::thread([body = std::move(body)] { EXPECT_NO_THROW(body()); });
  }
  // Three threads capture, and three allocate eagerly on streams of their own.
  void captures_beside_eager_work(CaptureMode mode) {
    constexpr std::size_t kEach = 3;
    const int times = captures(on_a_gpu() ? 100 : 15);
    std::atomic<bool> stop{false};
    std::array<std::atomic<std::uint64_t>, kEach> eager{};
    std::vector<std::thread> capturing, allocating;
    // A busy machine may not have let the others begin yet.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto others_are_early = [&eager, until] {
      return std::chrono::steady_clock::now() < until &&
             std::any_of(eager.begin(), eager.end(), [](const auto& each) { return each <= 100; });
    };
    for (std::size_t i = 0; i < kEach; ++i) {
      const Capturing own{new_stream(), new_stream(), new_stream(), std::mt19937_64(i + 1)};
      capturing.push_back(thread_of([this, own, mode, times, others_are_early] {
        capture_many(own, mode, times, others_are_early);
      }));
    }
    for (std::size_t i = 0; i < kEach; ++i) {
      allocating.push_back(thread_of([this, &stop, &eager, i, stream = new_stream()] {
        allocate_until(stop, stream, 100 + i, eager[i]);
      }));
    }
    for (std::thread& thread : capturing) thread.join();
    stop = true;
    for (std::thread& thread : allocating) thread.join();
    for (const std::atomic<std::uint64_t>& each : eager) EXPECT_GT(each, 100u);
  }

  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<DeviceHeap> heap_;
  std::vector<Stream> streams_;
};

TEST_P(GraphPoolsUnderLoad, ThreadsCaptureInGlobalModeBesideEagerWork) {
  captures_beside_eager_work(CaptureMode::global);
}
TEST_P(GraphPoolsUnderLoad, ThreadsCaptureInThreadLocalModeBesideEagerWork) {
  captures_beside_eager_work(CaptureMode::thread_local_);
}
TEST_P(GraphPoolsUnderLoad, ThreadsCaptureInRelaxedModeBesideEagerWork) {
  captures_beside_eager_work(CaptureMode::relaxed);
}

TEST_P(GraphPoolsUnderLoad, TenThousandCapturesLeaveNothingBehind) {
  Capturing own{new_stream(), new_stream(), new_stream(), std::mt19937_64(7)};
  GraphPool pool(*heap_);
  const auto capture_once = [&] {
    CaptureScope capture = need(CaptureScope::begin(pool, own.main));
    need(heap_->deallocate(run_program(own, 4).pointer));
    Graph graph = need(capture.end());
    need(graph.launch(own.launcher));
  };
  const auto free_memory = [&] {
    need(gpu_->synchronize(own.launcher));
    return need(gpu_->device().memory_info()).free;
  };
  for (int i = 0; i < 200; ++i) capture_once();
  const Bytes before = free_memory(), held = pool.statistics().reserved_bytes;
  const int many = captures(10'000);
  for (int i = 0; i < many; ++i) capture_once();
  EXPECT_GE(free_memory() + 16_MiB, before);  // the driver's own, beside what Weir takes
  EXPECT_LE(pool.statistics().reserved_bytes, held + 8_MiB);  // programs differ in size
  EXPECT_EQ(pool.statistics().graphs, 0u);
}

TEST_P(GraphPoolsUnderLoad, ACaptureBrokenAfterAnyOfItsCallsLeavesThePoolUsable) {
  Capturing own{new_stream(), new_stream(), new_stream(), std::mt19937_64(11)};
  const Stream eager = new_stream();
  GraphPool pool(*heap_);
  const Contents before = allocate(3_MiB, eager, 5);
  // A fork that never joins, begun before step number `broken`.
  const auto capture_broken_at = [&](int broken) -> Result<Graph> {
    int step = 0;
    std::vector<Contents> live, lost;
    CaptureScope capture = need(CaptureScope::begin(pool, own.main));
    const auto next = [&](auto&& call) {
      if (step++ == broken) {
        need(gpu_->order(own.main, own.side));
        lost.push_back(allocate(2_MiB, own.side, own.random()));
      }
      call();
    };
    next([&] { live.push_back(allocate(4_MiB, own.main, own.random())); });
    next([&] { live.push_back(allocate(100_KiB, own.main, own.random())); });
    next([&] { need(gpu_->check(own.main, live.front(), {})); });
    next([&] {
      need(heap_->deallocate(live.front().pointer));
      live.erase(live.begin());
    });
    next([&] { live.push_back(allocate(9_MiB, own.main, own.random())); });
    next([] {});
    for (const auto* blocks : {&live, &lost}) {
      for (const Contents& block : *blocks) need(heap_->deallocate(block.pointer));
    }
    return capture.end();
  };
  for (int broken = 0; broken < 6; ++broken) {
    const Result<Graph> graph = capture_broken_at(broken);
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().code(), ErrorCode::capture);
    EXPECT_THAT(graph.error().message(), HasSubstr("join"));
    EXPECT_EQ(pool.statistics().live_blocks, 0u);
    Result<Graph> whole = capture_broken_at(6);
    ASSERT_TRUE(whole.ok()) << whole.error().message();
    need(whole->launch(own.launcher));
  }
  need(gpu_->synchronize(own.launcher));
  free(before, eager);
}

TEST_P(GraphPoolsUnderLoad, OutOfMemoryInACaptureIsAnErrorAndTheCaptureGoesOn) {
  const Stream main = new_stream();
  GraphPool pool(*heap_, {.limit = 32_MiB});
  CaptureScope capture = need(CaptureScope::begin(pool, main));
  const Contents block = allocate(20_MiB, main, 3);
  const Result<void*> refused = heap_->allocate(20_MiB, main);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
  free(block, main);
  free(allocate(20_MiB, main, 4), main);
  Graph graph = need(capture.end());
  for (int i = 0; i < 10; ++i) need(graph.launch(main));
  EXPECT_LE(pool.statistics().peak_reserved_bytes, 32_MiB);
}

TEST_P(GraphPoolsUnderLoad, GraphsAndTheirPoolMayGoInEitherOrder) {
  const Stream main = new_stream();
  auto pool = std::make_unique<GraphPool>(*heap_);
  const auto capture = [&](std::uint64_t pattern) {
    CaptureScope scope = need(CaptureScope::begin(*pool, main));
    const Contents block = allocate(30_MiB, main, pattern);
    free(block, main);
    return need(scope.end());
  };
  { Graph gone = capture(1); }
  Graph kept = capture(2);
  pool.reset();
  need(kept.launch(main));
  // Eager blocks take what is idle, and nothing of what the graph still uses.
  const Contents eager = allocate(30_MiB, main, 3);
  need(kept.launch(main));
  free(eager, main);
}

INSTANTIATE_TEST_SUITE_P(Device, GraphPoolsUnderLoad, testing::Values(On::simulated, On::gpu),
                         [](const auto& each) {
                           return std::string(each.param == On::gpu ? "Cuda" : "Sim");
                         });

}  // namespace
}  // namespace weir::stress
