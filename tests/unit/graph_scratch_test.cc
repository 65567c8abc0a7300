// SPDX-License-Identifier: Apache-2.0
// Scratch of graphs, lent between launches.
#include <algorithm>
#include <array>
#include <future>
#include <map>
#include <thread>

#include "observe/statistics_fold.h"
#include "tests/unit/core_test_access.h"
#include "tests/unit/graph_pool_fixture.h"

namespace weir {
namespace {

using namespace std::chrono_literals;

HeapOptions lends(Trust trust) {
  HeapOptions options;
  options.trust = trust;
  options.graph_scratch = GraphScratch::lend;
  return options;
}

class GraphScratchIsLent : public test::GraphPools, public testing::WithParamInterface<Trust> {
 protected:
  GraphScratchIsLent() : GraphPools(lends(GetParam())) {}

  // A graph whose output is written from scratch of these bytes in all, each half live with the
  // other.
  Graph graph_with(GraphPool& pool, Bytes scratch, void*& output) {
    CaptureScope capture = begin(pool, a_);
    output = allocate(2_MiB, a_);
    std::array<void*, 2> halves{};
    for (void*& half : halves) half = written(Bytes{scratch.count / 2}, a_);
    for (void* const half : halves) read(a_, half);
    write(a_, output);
    for (void* const half : halves) free(half);
    return end(capture);
  }
  Bytes held() const { return Bytes{heap_->statistics().reserved_bytes.current}; }
};
INSTANTIATE_TEST_SUITE_P(All, GraphScratchIsLent, testing::Values(Trust::told, Trust::context),
                         [](const auto& info) {
                           return info.param == Trust::told ? "Told" : "Context";
                         });

TEST_P(GraphScratchIsLent, EagerWorkBetweenLaunchesTakesNoNewMemoryAndNoDriverCallsOnceItIsMapped) {
  GraphPool pool(*heap_);
  void* output = nullptr;
  Graph graph = graph_with(pool, 128_MiB, output);
  launch(graph, a_);
  const Bytes before = held();
  std::uint64_t mapped = 0;
  for (int round = 0; round < 6; ++round) {
    void* const block = written(120_MiB, b_);
    read(b_, block);
    EXPECT_EQ(held(), before) << "round " << round;
    EXPECT_GE(pool.statistics().lent_bytes, 118_MiB);
    free(block);
    launch(graph, round % 2 == 0 ? a_ : c_);
    order(round % 2 == 0 ? a_ : c_, round % 2 == 0 ? c_ : a_);  // launches go one after the other
    expect_no_race();
    if (round == 1) mapped = device_.calls(DeviceCall::map) + device_.calls(DeviceCall::unmap);
  }
  EXPECT_EQ(device_.calls(DeviceCall::map) + device_.calls(DeviceCall::unmap), mapped);
  EXPECT_EQ(device_.host_waits(), 0u);
  free(output);
}

// What launches took of what is lent.
struct TakenForLaunches final : EventSink {
  void on_event(const Event& event) override {
    if (event.kind == EventKind::allocate && event.pool != 0) bytes[event.pool] += event.bytes;
  }
  std::map<std::uint64_t, Bytes> bytes;  // by GraphPool::id()
};

TEST_P(GraphScratchIsLent, IsShownAsSuchByStatisticsSnapshotsAndRecordings) {
  StatisticsFold all;
  TakenForLaunches taken;
  heap_->start_recording(all);
  heap_->start_recording(taken);
  GraphPool pool(*heap_);
  void* output = nullptr;
  Graph graph = graph_with(pool, 64_MiB, output);
  const auto expect_lent = [&](Bytes lent, const char* when) {
    Bytes in_snapshot;
    for (const PageInfo& page : heap_->snapshot().pages) {
      if (page.lent_by == pool.id()) in_snapshot += page.bytes;
    }
    EXPECT_EQ(in_snapshot, lent) << when;
    EXPECT_EQ(pool.statistics().lent_bytes, lent) << when;
    StatisticsFold from_here;
    heap_->start_recording(from_here);
    EXPECT_TRUE(heap_->stop_recording(from_here));
    for (const Statistics& each : {heap_->statistics(), all.statistics(), from_here.statistics()}) {
      EXPECT_EQ(each.lent_bytes.current, lent.count) << when;
    }
  };
  launch(graph, a_);
  expect_lent(0_B, "before");
  void* block = written(60_MiB, b_);
  const Bytes lent = pool.statistics().lent_bytes;
  EXPECT_GE(lent, 58_MiB);
  expect_lent(lent, "while a block has it");
  free(block);
  launch(graph, a_);
  expect_lent(lent, "while it is idle and stays mapped");
  EXPECT_THAT(taken.bytes, testing::ElementsAre(testing::Pair(pool.id(), lent)));
  block = written(60_MiB, b_);
  launch(graph, a_);
  expect_lent(0_B, "once the borrower keeps it");
  EXPECT_EQ(all.statistics().lent_bytes.peak, lent.count);
  free(block);
  ASSERT_TRUE(heap_->trim(0_B, Trim::waits).ok());
  block = written(60_MiB, b_);
  expect_lent(pool.statistics().lent_bytes, "once more");
  free(block);
  EXPECT_NE(graph.executable().value, 0u);
  expect_lent(0_B, "once it is given back");
  free(output);
  EXPECT_TRUE(heap_->stop_recording(all));
  EXPECT_TRUE(heap_->stop_recording(taken));
}

TEST_P(GraphScratchIsLent, WhatAGraphMayReadStaysItsOwn) {
  GraphPool pool(*heap_);
  void* input = nullptr;
  {
    const PoolBinding binding = warm_up(pool, a_);
    input = written(32_MiB, a_);
  }
  CaptureScope capture = begin(pool, a_);
  read(a_, input);
  void* const output = written(32_MiB, a_);
  Graph graph = end(capture);
  launch(graph, a_);
  free(input);  // the graph goes on reading it
  free(output);
  ASSERT_TRUE(heap_->trim(0_B, Trim::waits).ok());  // no block stays cached there
  const Bytes before = held();
  void* const block = written(30_MiB, b_);
  EXPECT_GE(held(), before + 30_MiB);
  EXPECT_EQ(pool.statistics().lent_bytes, 0_B);
  launch(graph, a_);
  free(block);
}

TEST_P(GraphScratchIsLent, NothingOfAPoolWhoseLaunchesAreNotTold) {
  GraphPool pool(*heap_);
  void* output = nullptr;
  Graph graph = graph_with(pool, 64_MiB, output);
  launch(graph, a_);
  void* block = written(60_MiB, b_);
  EXPECT_GT(pool.statistics().lent_bytes, 0_B);
  free(block);
  EXPECT_NE(graph.executable().value, 0u);
  EXPECT_EQ(pool.statistics().lent_bytes, 0_B) << "from then on the program may launch it";
  const Bytes before = held();
  block = written(60_MiB, b_);
  EXPECT_GT(held(), before);
  EXPECT_EQ(pool.statistics().lent_bytes, 0_B);
  free(block);
  free(output);
}

// As PyTorch replays graphs until the first page may be lent (launch_gate.h).
TEST_P(GraphScratchIsLent, AndLaunchesThatDidNotTellKeepTheirPagesUntilTheyAreDone) {
  if (GetParam() == Trust::told) GTEST_SKIP() << "there all launches are told";
  GraphPool pool(*heap_, {.scratch = GraphScratch::lend});
  void *output = nullptr, *const eager = written(32_MiB, a_);
  Graph graph = graph_with(pool, 64_MiB, output);
  free(eager);
  free(written(32_MiB, b_));  // waits for an event behind the capture and before the launch
  device_.finish();
  ASSERT_TRUE(device_.launch_graph(graph.executable(), a_).ok());
  void* const block = written(60_MiB, b_);
  EXPECT_GT(pool.statistics().lent_bytes, 0_B);
  launch(graph, a_);  // the block keeps its pages
  expect_no_race();
  free(block);
  free(output);
}

TEST_P(GraphScratchIsLent, OnlyOfPoolsThatMay) {
  struct Case {
    HeapOptions heap;
    GraphPoolOptions pool;
    bool program_captures, lends;
  };
  HeapOptions keeps = lends(GetParam());
  keeps.graph_scratch = GraphScratch::keep;
  const std::array cases{
      Case{lends(GetParam()), {}, false, true},
      Case{lends(GetParam()), {.scratch = GraphScratch::keep}, false, false},
      Case{lends(GetParam()), {}, true, false},
      Case{lends(GetParam()), {.scratch = GraphScratch::lend}, true, true},
      Case{keeps, {}, false, false},
      Case{keeps, {.scratch = GraphScratch::lend}, true, true},
  };
  for (const Case& each : cases) {
    heap_ = std::make_unique<DeviceHeap>(device_, each.heap);
    auto pool = std::make_unique<GraphPool>(*heap_, each.pool);
    Graph graph;
    ExecutableHandle executable;
    if (each.program_captures) {
      PoolBinding binding = *pool->capture([this](Stream stream) { return stream == a_; }, a_);
      ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
      free(written(64_MiB, a_));
      const GraphHandle captured = *device_.end_capture(a_);
      binding.close();
      executable = *device_.instantiate(captured);
      ASSERT_TRUE(device_.destroy_graph(captured).ok());
      const Result<GraphLaunch> launch = pool->begin_launch(a_);
      ASSERT_TRUE(launch.ok());
      ASSERT_TRUE(device_.launch_graph(executable, a_).ok());
    } else {
      graph = small_graph(*pool, a_, 64_MiB);
      launch(graph, a_);
    }
    void* const block = written(60_MiB, b_);
    EXPECT_EQ(pool->statistics().lent_bytes > 0_B, each.lends) << "case " << &each - cases.data();
    free(block);
    EXPECT_TRUE(pool->keep_scratch().ok());
    EXPECT_EQ(pool->statistics().lent_bytes, 0_B);
    device_.finish();
    if (executable.value != 0) {
      ASSERT_TRUE(device_.destroy_executable(executable).ok());
      pool->release_graph();
    }
  }
}

// Nobody can wait for the launches then; there is other memory.
TEST(GraphScratch, IsNoReasonToRefuseARequestWhereTheContextCantBeWaitedFor) {
  SimDevice device;
  const Stream a = device.new_stream(), b = device.new_stream();
  DeviceHeap heap(device, lends(Trust::context));
  GraphPool pool(heap);
  std::vector<Graph> graphs;
  for (std::uint64_t size = 2; size < 20; size += 2) {  // each with a page of its own, or more
    CaptureScope capture = *CaptureScope::begin(pool, a);
    void* const scratch = *heap.allocate(Bytes{size << 20}, a);
    ASSERT_TRUE(device.launch(a, Writes(scratch, Bytes{size << 20}), 1_ms).ok());
    ASSERT_TRUE(heap.deallocate(scratch).ok());
    graphs.push_back(*capture.end());
    ASSERT_TRUE(graphs.back().launch(a).ok());
  }
  heap.captures().forgo_context_events(ContextEventsLost::refused);
  const Result<void*> block = heap.allocate(1_MiB, b);
  ASSERT_TRUE(block.ok()) << block.error().message();
  ASSERT_TRUE(heap.deallocate(*block).ok());
  device.finish();
}

// A server's graphs, one for each of 13 batch sizes, and what it computes between their launches.
TEST_P(GraphScratchIsLent, AServersEagerWorkTakesAFifthOfItsMemoryAtMost) {
  std::array<Bytes, 2> held_most;
  Bytes scratch;
  for (const GraphScratch how : {GraphScratch::keep, GraphScratch::lend}) {
    HeapOptions options = lends(GetParam());
    options.graph_scratch = how;
    heap_ = std::make_unique<DeviceHeap>(device_, options);
    GraphPool pool(*heap_);
    std::vector<Graph> graphs;
    std::vector<void*> outputs;
    for (std::uint64_t size = 13; size > 0; --size) {
      outputs.emplace_back();
      graphs.push_back(graph_with(pool, Bytes{size * (50_MiB).count}, outputs.back()));
    }
    for (Graph& graph : graphs) launch(graph, a_);
    scratch = held() - Bytes{outputs.size() * (2_MiB).count};
    for (int step = 0; step < 30; ++step) {
      std::vector<void*> blocks;
      for (int i = 0; i < 10; ++i) blocks.push_back(written(60_MiB, step % 2 == 0 ? a_ : b_));
      for (void* const block : blocks) free(block);
      if (step % 2 != 0) order(b_, a_);  // the program has what it computed before it goes on
      launch(graphs[static_cast<std::size_t>(step) % graphs.size()], a_);
      order(a_, b_);
      expect_no_race();
    }
    held_most[how == GraphScratch::lend ? 1 : 0] = Bytes{heap_->statistics().reserved_bytes.peak};
    for (void* const output : outputs) free(output);
    device_.finish();
  }
  EXPECT_GE((held_most[0] - held_most[1]).count, scratch.count * 4 / 5)
      << held_most[0].count << " and " << held_most[1].count;
}

TEST_P(GraphScratchIsLent, GraphsOfPoolsThatTakeTurnsHoldWhatTheLargestNeeds) {
  GraphPool one(*heap_), other(*heap_);
  void *output = nullptr, *output_of_other = nullptr;
  Graph graph = graph_with(one, 128_MiB, output);
  device_.finish();
  Graph graph_of_other = graph_with(other, 96_MiB, output_of_other);
  Bytes most = held();
  for (int turn = 0; turn < 4; ++turn) {
    for (int step = 0; step < 3; ++step) launch(graph_of_other, b_);
    most = std::max(most, held());
    for (int step = 0; step < 3; ++step) launch(graph, a_);
    most = std::max(most, held());
  }
  expect_no_race();
  EXPECT_LE(most, 142_MiB) << "the larger one has 130 MiB";
  free(output);
  free(output_of_other);
}

TEST_P(GraphScratchIsLent, InTurnsThatCreateAndReleaseNothing) {
  using Sizes = std::vector<Bytes>;
  for (const std::array<Sizes, 2>& scratch : {std::array{Sizes{128_MiB}, Sizes{128_MiB}},
                                              {Sizes{160_MiB}, Sizes{40_MiB}},
                                              {Sizes{6_MiB, 260_MiB}, Sizes{14_MiB, 200_MiB}},
                                              {Sizes{3_GiB, 8_GiB}, Sizes{8_GiB, 1_GiB}}}) {
    heap_ = std::make_unique<DeviceHeap>(device_, lends(GetParam()));
    std::vector<std::unique_ptr<GraphPool>> pools;
    std::vector<Graph> graphs;
    std::vector<void*> outputs;
    for (const Sizes& of_pool : scratch) {
      pools.push_back(std::make_unique<GraphPool>(*heap_));
      for (const Bytes bytes : of_pool) {
        outputs.emplace_back();
        graphs.push_back(graph_with(*pools.back(), bytes, outputs.back()));
      }
      device_.finish();
    }
    std::uint64_t calls = 0, maps = 0;
    for (int turn = 0; turn < 6; ++turn) {
      if (turn == 2) {
        calls = device_.calls(DeviceCall::create) + device_.calls(DeviceCall::release);
        maps = device_.calls(DeviceCall::map);
      }
      for (Graph& graph : graphs) launch(graph, a_);
    }
    EXPECT_EQ(device_.calls(DeviceCall::create) + device_.calls(DeviceCall::release), calls);
    EXPECT_GT(device_.calls(DeviceCall::map), maps);
    for (void* const output : outputs) free(output);
    device_.finish();
  }
}

TEST_P(GraphScratchIsLent, EveryDriverCallOfATurnMayFail) {
  for (const DeviceCall call : {DeviceCall::create, DeviceCall::release, DeviceCall::map,
                                DeviceCall::set_access, DeviceCall::unmap}) {
    for (std::uint64_t nth = 1; nth <= 16; ++nth) {
      GraphPool one(*heap_), other(*heap_);
      Graph graph = small_graph(one, a_, 24_MiB);
      launch(graph, a_);
      device_.finish();
      Graph graph_of_other = small_graph(other, a_, 20_MiB);
      device_.fail(call, nth);
      for (int turn = 0; turn < 2; ++turn) {
        (void)graph_of_other.launch(a_);
        (void)graph.launch(a_);
        EXPECT_THAT(heap_->validate(), testing::IsEmpty());
      }
      (void)device_.forget_faults();
      launch(graph_of_other, a_);
      launch(graph, a_);
      expect_no_race();
      ASSERT_FALSE(HasFailure()) << "call " << static_cast<int>(call) << ", number " << nth;
    }
  }
}

TEST_P(GraphScratchIsLent, LaunchesOfSeveralThreadsTakeTurns) {
  GraphPool pool(*heap_);
  void* output = nullptr;
  Graph graph = graph_with(pool, 64_MiB, output);
  launch(graph, a_);
  may_race_ = true;  // the threads do not order what they queue
  std::vector<std::thread> threads;
  for (const Stream stream : {a_, b_, c_}) {
    threads.emplace_back([&, stream] {
      for (int i = 0; i < 50; ++i) {
        const Result<void*> block = heap_->allocate(20_MiB, stream);
        EXPECT_TRUE(block.ok());
        EXPECT_TRUE(graph.launch(stream).ok());
        EXPECT_TRUE(heap_->deallocate(*block).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  free(output);
}

TEST_P(GraphScratchIsLent, AThreadThatLaunchesWaitsNotForItself) {
  GraphPool pool(*heap_);
  void* output = nullptr;
  Graph graph = graph_with(pool, 64_MiB, output);
  launch(graph, a_);
  void* const block = written(60_MiB, b_);
  free(block);
  {
    const Result<GraphLaunch> begun = pool.begin_launch(a_);
    ASSERT_TRUE(begun.ok());
    expect_error(pool.begin_launch(a_), ErrorCode::invalid_argument, "this thread");
    expect_error(graph.launch(a_), ErrorCode::invalid_argument, "this thread");
    expect_error(pool.allocate(1_MiB, a_), ErrorCode::invalid_argument, "this thread");
    EXPECT_FALSE(pool.keep_scratch().ok());
    EXPECT_TRUE(pool.keep_scratch(false).ok());
  }
  launch(graph, a_);
  free(output);
}

TEST_P(GraphScratchIsLent, AThreadThatLaunchesForLongIsNotWaitedFor) {
  GraphPool pool(*heap_);
  void* output = nullptr;
  Graph graph = graph_with(pool, 64_MiB, output);
  launch(graph, a_);
  free(written(60_MiB, b_));
  TestAccess::patience(*heap_, pool.id()) = 0s;
  {
    const Result<GraphLaunch> begun = pool.begin_launch(a_);
    ASSERT_TRUE(begun.ok());
    std::thread([&] {
      expect_error(graph.launch(a_), ErrorCode::invalid_argument, "another thread");
    }).join();
  }
  launch(graph, a_);
  free(output);
}

TEST_P(GraphScratchIsLent, ABorrowerThatGoesOnIsWaitedForOnce) {
  test::CallsAsTheHostWaits device(device_);
  heap_ = std::make_unique<DeviceHeap>(device, lends(GetParam()));
  {
    GraphPool pool(*heap_);
    void* output = nullptr;
    Graph graph = graph_with(pool, 64_MiB, output);
    launch(graph, a_);
    free(written(60_MiB, b_));
    EXPECT_GT(pool.statistics().lent_bytes, 0_B);
    int waits = 0;
    const auto goes_on = [&](const auto& again) -> void {
      free(written(60_MiB, b_));
      if (++waits < 20) device.call = [&] { again(again); };
    };
    device.call = [&] { goes_on(goes_on); };
    EXPECT_TRUE(pool.keep_scratch().ok());
    EXPECT_LE(waits, 2);
    device.call = {};
    launch(graph, a_);
    free(output);
  }
  device_.finish();
  heap_ = std::make_unique<DeviceHeap>(device_);
}

TEST_P(GraphScratchIsLent, LaunchesOfOtherThreadsWaitForOneThatWaits) {
  test::CallsAsTheHostWaits device(device_);
  heap_ = std::make_unique<DeviceHeap>(device, lends(GetParam()));
  {
    GraphPool pool(*heap_);
    void* output = nullptr;
    Graph graph = graph_with(pool, 64_MiB, output);
    for (int i = 0; i < 10; ++i) launch(graph, a_);
    void* const block = written(60_MiB, b_);
    std::thread other;
    auto& patience = TestAccess::patience(*heap_, pool.id());
    device.call = [&] {
      patience = 0s;
      std::thread([&] {
        expect_error(graph.launch(a_), ErrorCode::invalid_argument, "waits for work on its memory");
      }).join();
      patience = 10s;
      std::promise<void> launched;
      const std::future<void> done = launched.get_future();
      other = std::thread([&, launched = std::move(launched)]() mutable {
        launch(graph, a_);
        launched.set_value();
      });
      EXPECT_EQ(done.wait_for(20ms), std::future_status::timeout);
    };
    EXPECT_TRUE(pool.keep_scratch().ok());
    EXPECT_TRUE(other.joinable());
    if (other.joinable()) other.join();
    expect_no_race();
    free(block);
    free(output);
  }
  device_.finish();
  heap_ = std::make_unique<DeviceHeap>(device_);
}

TEST_P(GraphScratchIsLent, ALaunchWithoutMemoryForWhatIsInUseIsRefusedAndLosesNothing) {
  GraphPool pool(*heap_);
  void* output = nullptr;
  Graph graph = graph_with(pool, 64_MiB, output);
  launch(graph, a_);
  heap_->set_limit(held());
  void* const block = written(60_MiB, b_);
  expect_error(graph.launch(a_), ErrorCode::out_of_memory, "WEIR_GRAPH_SCRATCH");
  expect_error(CaptureScope::begin(pool, a_), ErrorCode::out_of_memory, "WEIR_GRAPH_SCRATCH");
  expect_error(pool.keep_scratch(), ErrorCode::out_of_memory, "WEIR_GRAPH_SCRATCH");
  read(b_, block);
  EXPECT_THAT(heap_->validate(), testing::IsEmpty());
  free(block);
  launch(graph, a_);
  free(output);
}

TEST_P(GraphScratchIsLent, ComesBackForACaptureARestoreAWarmUpAndTheEndOfThePool) {
  auto pool = std::make_unique<GraphPool>(*heap_);
  void* output = nullptr;
  Graph graph = graph_with(*pool, 64_MiB, output);
  launch(graph, a_);
  const std::vector<PlacedBlock> saved = pool->blocks();
  const auto lend = [&] {
    void* const block = written(60_MiB, b_);
    EXPECT_GT(pool->statistics().lent_bytes, 0_B);
    free(block);
  };
  lend();
  Graph second = small_graph(*pool, a_, 40_MiB);
  EXPECT_EQ(pool->statistics().lent_bytes, 0_B);
  launch(second, a_);
  lend();
  EXPECT_TRUE(pool->restore(saved).ok());
  EXPECT_EQ(pool->statistics().lent_bytes, 0_B);
  lend();
  {
    const PoolBinding binding = warm_up(*pool, a_);
    free(written(8_MiB, a_));
  }
  EXPECT_EQ(pool->statistics().lent_bytes, 0_B);
  launch(graph, a_);
  lend();
  void* const block = written(60_MiB, b_);
  pool.reset();
  graph = Graph();
  second = Graph();
  free(output);
  read(b_, block);
  free(block);
}

TEST_P(GraphScratchIsLent, EveryDriverCallOfALoanAndOfALaunchMayFail) {
  constexpr std::array kCalls{DeviceCall::create,     DeviceCall::map,    DeviceCall::set_access,
                              DeviceCall::unmap,      DeviceCall::record, DeviceCall::wait,
                              DeviceCall::synchronize};
  for (const DeviceCall call : kCalls) {
    for (std::uint64_t nth = 1; nth <= 12; ++nth) {
      GraphPool pool(*heap_);
      void* output = nullptr;
      Graph graph = graph_with(pool, 48_MiB, output);
      launch(graph, a_);
      device_.fail(call, nth);
      std::vector<void*> blocks;
      for (const Bytes bytes : {20_MiB, 24_MiB}) {
        const Result<void*> block = heap_->allocate(bytes, b_);
        if (!block) continue;
        sizes_[*block] = bytes;
        write(b_, *block);
        blocks.push_back(*block);
      }
      EXPECT_THAT(heap_->validate(), testing::IsEmpty());
      (void)graph.launch(a_);
      expect_no_race();
      EXPECT_THAT(heap_->validate(), testing::IsEmpty());
      (void)device_.forget_faults();
      for (void* const block : blocks) read(b_, block);
      ASSERT_TRUE(heap_->tags().sleep().ok());
      ASSERT_TRUE(heap_->tags().wake().ok());
      launch(graph, a_);
      for (void* const block : blocks) free(block);
      free(output);
      expect_no_race();
      ASSERT_FALSE(HasFailure()) << "call " << static_cast<int>(call) << ", number " << nth;
    }
  }
}

class GraphsOfSeveralStreams : public test::GraphPools, public testing::WithParamInterface<Trust> {
 protected:
  GraphsOfSeveralStreams() : GraphPools({.trust = GetParam()}) {}
};
INSTANTIATE_TEST_SUITE_P(All, GraphsOfSeveralStreams, testing::Values(Trust::told, Trust::context),
                         [](const auto& info) {
                           return info.param == Trust::told ? "Told" : "Context";
                         });

TEST_P(GraphsOfSeveralStreams, ShareOnePoolsMemoryIfNoWorkIsLeftAsTheyAreCaptured) {
  GraphPool pool(*heap_);
  std::vector<Graph> graphs;
  for (int i = 0; i < 6; ++i) {
    const Stream stream = device_.new_stream();
    free(written(64_MiB, stream));  // eager work of its own
    device_.finish();
    CaptureScope capture = begin(pool, stream);
    for (int layer = 0; layer < 3; ++layer) free(written(64_MiB, stream));
    graphs.push_back(end(capture));
    EXPECT_EQ(wrong_reads(graphs.back(), 5), 0u);
  }
  EXPECT_LE(pool.statistics().reserved_bytes, 70_MiB);
  for (Graph& graph : graphs) launch(graph, a_);
  expect_no_race();
}

// As a backward pass frees what the forward pass saved.
TEST_P(GraphsOfSeveralStreams, ServeACaptureFromWhatItFreesOfAnEarlierOnes) {
  if (GetParam() == Trust::told) GTEST_SKIP() << "there such blocks wait for the capture's end";
  GraphPool pool(*heap_);
  std::vector<void*> saved;
  CaptureScope forward = begin(pool, a_);
  for (int layer = 0; layer < 4; ++layer) saved.push_back(written(32_MiB, a_));
  Graph forward_graph = end(forward);
  launch(forward_graph, a_);
  device_.finish();
  CaptureScope backward = begin(pool, a_);
  void* const gradient = written(2_MiB, a_);
  for (void* const block : saved) {
    read(a_, block);
    free(block);
    free(written(32_MiB, a_));
  }
  free(gradient);
  Graph backward_graph = end(backward);
  EXPECT_LE(pool.statistics().reserved_bytes, 130_MiB);
  EXPECT_EQ(wrong_reads(backward_graph), 0u);
  for (int step = 0; step < 3; ++step) {
    launch(forward_graph, a_);
    launch(backward_graph, a_);
  }
  expect_no_race();
}

TEST_P(GraphsOfSeveralStreams, DeferTheFreeOfABlockWhoseOtherUserIsCapturedNow) {
  GraphPool pool(*heap_);
  CaptureScope first = begin(pool, a_);
  order(a_, b_);
  void* const block = written(32_MiB, a_);
  ASSERT_TRUE(heap_->record_stream(block, b_).ok());
  order(b_, a_);
  Graph graph = end(first);
  launch(graph, a_);
  device_.finish();
  CaptureScope second = begin(pool, a_);
  order(a_, b_);
  void* const other = written(1_MiB, a_);
  order(b_, a_);
  free(block);
  EXPECT_EQ(pool.statistics().deferred, 1u);
  free(other);
  Graph later = end(second);
  EXPECT_EQ(pool.statistics().deferred, 0u);
  EXPECT_EQ(pool.statistics().live_blocks, 0u);
}

TEST_P(GraphsOfSeveralStreams, DoNotWaitForEagerWorkThatIsLeft) {
  if (GetParam() == Trust::told) GTEST_SKIP() << "there the host waits as a capture begins";
  GraphPool pool(*heap_);
  void* busy = nullptr;
  {
    const PoolBinding binding = warm_up(pool, a_);
    busy = written(64_MiB, a_, 50_ms);
    free(busy);
  }
  CaptureScope of_a = begin(pool, a_);
  free(written(64_MiB, a_));
  Graph first = end(of_a);
  CaptureScope of_b = begin(pool, b_);
  free(written(64_MiB, b_));
  Graph second = end(of_b);
  launch(second, b_);  // beside the eager work
  expect_no_race();
  EXPECT_EQ(device_.host_waits(), 0u);
}

}  // namespace
}  // namespace weir
