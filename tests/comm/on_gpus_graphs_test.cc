// SPDX-License-Identifier: Apache-2.0
// Captures and graphs beside one another, on two to four GPUs or simulated ones: several of one
// communicator, several communicators, other threads, and what goes wrong between captures,
// watchdogs and ranks.
#include <dirent.h>

#include <array>
#include <atomic>
#include <barrier>

#include "tests/comm/gpu_ranks.h"
#include "weir/comm/registered_buffer.h"

namespace weir {
namespace {

using test::begin;
using test::expect_ok;
using test::got;
using test::GpuRank;
using test::kBytes;
using test::On;
using test::OnGpus;
using testing::HasSubstr;

constexpr Bytes kGraphSize = 1_MiB;

Result<Work> largest(Communicator& comm, void* block, Stream stream) {
  return comm.all_reduce(block, block, kGraphSize.count, kBytes, ReduceOp::max, overlapped(stream));
}

// A buffer that is written, all-reduced, checked and given back.
void use_once(GpuRank& rank, Communicator& comm, Stream stream, std::uint64_t pattern) {
  void* const block = rank.allocate(kGraphSize, stream);
  rank.write(stream, block, kGraphSize, pattern);
  expect_ok(got(largest(comm, block, stream)).wait(stream));
  rank.check(stream, block, kGraphSize, pattern);
  rank.free(block);
}

Graph capture_once(GpuRank& rank, GraphPool& pool, Stream stream, std::uint64_t pattern) {
  Result<CaptureScope> capture = CaptureScope::begin(pool, stream);
  expect_ok(capture);
  if (!capture) return {};
  use_once(rank, *rank.comm, stream, pattern);
  return got(rank.comm->end_capture(*capture));
}

std::optional<Communicator> split_all(GpuRank& rank, const CommunicatorOptions& options = {}) {
  Result<std::optional<Communicator>> made = rank.comm->split(0, rank.number, options);
  expect_ok(made);
  if (!made || !*made) return std::nullopt;
  expect_ok((*made)->prepare());
  return std::move(**made);
}

std::size_t open_files() {
  std::size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  if (folder != nullptr) closedir(folder);
  return count;
}

class Graphs : public OnGpus {};

TEST_P(Graphs, TwoOfOneCommunicatorOnTwoStreamsAreExactForTenThousandLaunches) {
  create_prepared();
  on_all([](GpuRank& rank) {
    GraphPool first_pool(*rank.heap), second_pool(*rank.heap);
    Graph first = capture_once(rank, first_pool, rank.compute, 11);
    Graph second = capture_once(rank, second_pool, rank.side, 22);
    const int launches = GetParam() == On::gpus ? 10'000 : 500;
    for (int i = 0; i < launches; ++i) {
      expect_ok(rank.comm->launch(first, rank.compute));
      expect_ok(rank.comm->launch(second, rank.side));
      if (i % 1000 == 0) rank.finish();
    }
    rank.finish();
    expect_ok(rank.comm->status());
  });
}

TEST_P(Graphs, MayHoldTwoCommunicators) {
  create_prepared();
  on_all([](GpuRank& rank) {
    std::optional<Communicator> other = split_all(rank);
    ASSERT_TRUE(other);
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    for (std::uint64_t round = 0; round < 4; ++round) {
      use_once(rank, *rank.comm, rank.compute, round);
      use_once(rank, *other, rank.compute, 100 + round);
    }
    Graph graph = got(rank.comm->end_capture(capture));
    for (int i = 0; i < 200; ++i) expect_ok(rank.comm->launch(graph, rank.compute));
    rank.finish();
    graph = Graph();
    expect_ok(other->close());
  });
}

// Ranks ask for the same eager operations, one thread each, whatever the other thread captures.
TEST_P(Graphs, AreCapturedWhileAnotherThreadWorksEagerly) {
  create_prepared();
  on_all([](GpuRank& rank) {
    std::optional<Communicator> other = split_all(rank);
    ASSERT_TRUE(other);
    GraphPool kept_pool(*rank.heap);
    Graph kept = capture_once(rank, kept_pool, rank.compute, 5);
    std::thread eager([&] {
      for (std::uint64_t i = 0; i < 200; ++i) use_once(rank, *other, rank.side, i);
    });
    for (std::uint64_t i = 0; i < 50; ++i) {
      GraphPool pool(*rank.heap);
      Graph graph = capture_once(rank, pool, rank.compute, 1000 + i);
      expect_ok(rank.comm->launch(graph, rank.compute));
      expect_ok(rank.comm->launch(kept, rank.compute));
      expect_ok(rank.gpu->synchronize(rank.compute));
    }
    eager.join();
    rank.finish();
    expect_ok(other->close());
  });
}

TEST_P(Graphs, OfTwoCapturesAtOnceInOneThreadAreApart) {
  create_prepared();
  on_all([](GpuRank& rank) {
    GraphPool outer_pool(*rank.heap), inner_pool(*rank.heap);
    CaptureScope outer = begin(rank, outer_pool);
    use_once(rank, *rank.comm, rank.compute, 1);
    Graph inner = capture_once(rank, inner_pool, rank.side, 2);
    use_once(rank, *rank.comm, rank.compute, 3);
    Graph graph = got(rank.comm->end_capture(outer));
    for (int i = 0; i < 100; ++i) {
      expect_ok(rank.comm->launch(graph, rank.compute));
      expect_ok(rank.comm->launch(inner, rank.side));
    }
    rank.finish();
  });
}

// What waits for the capture's end does not wait for ever, and other captures go on.
TEST_P(Graphs, WithAForkThatIsNotJoinedAreRefusedAndSoIsNothingElse) {
  create_prepared();
  on_all([](GpuRank& rank) {
    {
      GraphPool pool(*rank.heap);
      CaptureScope capture = begin(rank, pool);
      use_once(rank, *rank.comm, rank.compute, 1);
      const EventHandle fork = *rank.device().create_event();
      expect_ok(rank.device().record(fork, rank.compute));
      expect_ok(rank.device().wait(rank.side, fork));
      void* const block = rank.allocate(kGraphSize, rank.compute);
      rank.write(rank.side, block, kGraphSize, 4);  // nobody waits for it
      rank.free(block);
      const Result<Graph> graph = rank.comm->end_capture(capture);
      EXPECT_FALSE(graph.ok());
      expect_ok(rank.device().destroy_event(fork));
    }
    GraphPool pool(*rank.heap);
    Graph graph = capture_once(rank, pool, rank.compute, 6);
    expect_ok(rank.comm->launch(graph, rank.compute));
    rank.finish();
  });
}

// A communicator's end frees host memory, which waits for all GPUs of the process: no rank may wait
// for another meanwhile, so they meet before they go on.
TEST_P(Graphs, LiveOnWhileTheirCommunicatorIsSplit) {
  create_prepared();
  std::barrier all(static_cast<std::ptrdiff_t>(ranks_.size()));
  on_all([&](GpuRank& rank) {
    GraphPool pool(*rank.heap);
    Graph graph = capture_once(rank, pool, rank.compute, 7);
    for (int round = 0; round < 3; ++round) {
      expect_ok(rank.comm->launch(graph, rank.compute));
      rank.finish();
      std::optional<Communicator> other = split_all(rank);
      ASSERT_TRUE(other);
      use_once(rank, *other, rank.side, 8);
      expect_ok(rank.comm->launch(graph, rank.compute));
      rank.finish();
      expect_ok(other->close());
      all.arrive_and_wait();
    }
  });
}

class Registered : public OnGpus {};

TEST_P(Registered, BuffersThatComeAndGoLeaveNoFileAndNoMemory) {
  create_prepared();
  std::atomic<std::size_t> files = 0;
  on_all([&](GpuRank& rank) {
    const int rounds = GetParam() == On::gpus ? 2000 : 200;
    std::uint64_t free_before = 0;
    for (int round = 0; round < rounds; ++round) {
      Result<RegisteredBuffer> made = RegisteredBuffer::create(*rank.comm, rank.compute, 2_MiB);
      expect_ok(made);
      if (!made) return;
      void* const buffer = made->data();
      rank.write(rank.compute, buffer, kGraphSize, 3);
      expect_ok(got(largest(*rank.comm, buffer, rank.compute)).wait(rank.compute));
      rank.check(rank.compute, buffer, kGraphSize, 3);
      expect_ok(made->close());
      if (round != 50 && round + 1 != rounds) continue;
      const Result<MemoryInfo> info = rank.device().memory_info();
      expect_ok(info);
      if (round == 50) {
        free_before = info->free.count;
        if (rank.number == 0) files = open_files();
      } else {
        EXPECT_GE(info->free.count + (8 << 20), free_before);
      }
    }
  });
  EXPECT_LE(open_files(), files + 8);
}

class Trouble : public OnGpus {};

TEST_P(Trouble, TheWatchdogDisturbsNoCapture) {
  create_prepared({.watch_every = 100_us});
  on_all([](GpuRank& rank) {
    void* const eager = rank.allocate(kGraphSize, rank.side);
    for (int round = 0; round < 100; ++round) {
      expect_ok(largest(*rank.comm, eager, rank.side));
      GraphPool pool(*rank.heap);
      CaptureScope capture = begin(rank, pool);
      void* const block = rank.allocate(kGraphSize, rank.compute);
      expect_ok(largest(*rank.comm, block, rank.compute));
      rank.free(block);
      expect_ok(rank.comm->end_capture(capture));
    }
    rank.free(eager);
  });
}

TEST_P(Trouble, ACaptureThatFailsOnOneRankIsLaunchedByNoneAndAllGoOn) {
  create_prepared();
  on_all([](GpuRank& rank) {
    {
      GraphPool pool(*rank.heap);
      CaptureScope capture = begin(rank, pool);
      void* const block = rank.allocate(kGraphSize, rank.compute);
      expect_ok(largest(*rank.comm, block, rank.compute));
      rank.free(block);
      const EventHandle captured = *rank.device().create_event();
      if (rank.number == 1) {  // breaks its capture
        expect_ok(rank.device().record(captured, rank.compute));
        EXPECT_FALSE(rank.device().query(captured).ok());
      }
      const Result<Graph> graph = rank.comm->end_capture(capture);
      ASSERT_FALSE(graph.ok());
      EXPECT_THAT(graph.error().message(), HasSubstr("failed on rank 1"));
      expect_ok(rank.device().destroy_event(captured));
    }
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    use_once(rank, *rank.comm, rank.compute, 5);
    Graph graph = got(rank.comm->end_capture(capture));
    expect_ok(rank.comm->launch(graph, rank.compute));
    rank.finish();
  });
}

TEST_P(Trouble, ThatEndsACommunicatorOnOneRankIsToldToTheOthersAtOnce) {
  create_prepared();
  const auto begin_of_wait = std::chrono::steady_clock::now();
  on_all([](GpuRank& rank) {
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    if (rank.number == 1) rank.comm->abort("a test");
    const Result<Graph> graph = rank.comm->end_capture(capture);
    ASSERT_FALSE(graph.ok());
    EXPECT_THAT(graph.error().message(), HasSubstr("rank 1 of"));
    EXPECT_THAT(graph.error().message(), HasSubstr("aborted: a test"));
    rank.comm->abort("the test ends");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin_of_wait, std::chrono::seconds(60))
      << "the host_timeout is 120 s";
}

std::string name(const testing::TestParamInfo<On>& info) { return test::name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(Ranks, Graphs, testing::Values(On::simulated, On::gpus), name);
INSTANTIATE_TEST_SUITE_P(Ranks, Trouble, testing::Values(On::simulated, On::gpus), name);
INSTANTIATE_TEST_SUITE_P(Ranks, Registered, testing::Values(On::simulated, On::gpus), name);

}  // namespace
}  // namespace weir
