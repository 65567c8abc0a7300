// SPDX-License-Identifier: Apache-2.0
// The communication layer's memory on two to four GPUs, or on simulated ones: it is exact and does
// not grow, in eager mode and in captures. (Operations of every kind: scenarios A and D.)
#include "tests/comm/gpu_ranks.h"
#include "weir/comm/bucketer.h"

namespace weir {
namespace {

using test::begin;
using test::expect_ok;
using test::got;
using test::GpuRank;
using test::kBytes;
using test::kLargest;
using test::largest;
using test::On;
using test::OnGpus;

constexpr Bytes kPart = 1_MiB;  // what a rank gives, or gets

class Memory : public OnGpus {};

TEST_P(Memory, OfBuffersThatGoAtOnceIsExactAndDoesNotGrow) {
  create();
  on_all([](GpuRank& rank) {
    constexpr Bytes kSize = 16_MiB;
    std::uint64_t held = 0;
    for (int round = 0; round < 100; ++round) {
      for (std::uint64_t layer = 0; layer < 8; ++layer) {
        const std::uint64_t pattern = 8 * static_cast<std::uint64_t>(round) + layer;
        void* const block = rank.allocate(kSize, rank.compute);
        rank.write(rank.compute, block, kSize, pattern);
        const Result<Work> work = largest(rank, block, kSize, rank.compute);
        expect_ok(work);
        // Another stream looks at the result, late; this one goes on.
        if (work) expect_ok(work->wait(rank.side));
        rank.check(rank.side, block, kSize, pattern, 20_us);
        expect_ok(rank.heap->fence(block, rank.side));
        rank.free(block);
      }
      const std::uint64_t now = rank.heap->statistics().reserved_bytes.peak;
      if (round == 10) held = now;
      EXPECT_TRUE(round <= 10 || now == held) << "round " << round << ": " << now;
    }
  });
}

constexpr Bytes kLayer = 16_MiB;  // once to three times

// Activations of eight layers, each all-reduced, kept for the way back and given back there.
void run_step(GpuRank& rank, Stream stream, std::uint64_t pattern) {
  std::vector<void*> kept;
  for (std::uint64_t layer = 0; layer < 8; ++layer) {
    const Bytes bytes = kLayer * (1 + layer % 3);
    void* const block = rank.allocate(bytes, stream);
    rank.write(stream, block, bytes, pattern + layer);
    expect_ok(got(largest(rank, block, bytes, stream)).wait(stream));
    kept.push_back(block);
  }
  for (std::uint64_t layer = 8; layer-- > 0;) {
    rank.check(stream, kept[layer], kLayer * (1 + layer % 3), pattern + layer);
    rank.free(kept[layer]);
  }
}

// Scenario B on every rank. (A warm-up may hold more in the place of what the
// communicator's stream still uses. That goes back.)
TEST_P(Memory, OfACapturedStepIsWhatItNeedsWhereverItWasWarmedUp) {
  create_prepared();
  on_all([](GpuRank& rank) {
    for (const std::optional<Stream>& warm_up :
         {std::optional<Stream>(), std::optional(rank.compute), std::optional(rank.side)}) {
      GraphPool pool(*rank.heap);
      if (warm_up) {
        Result<PoolBinding> binding = pool.warm_up(*warm_up);
        expect_ok(binding);
        for (std::uint64_t i = 0; i < 3; ++i) run_step(rank, *warm_up, 1000 + 100 * i);
      }
      CaptureScope capture = begin(rank, pool);
      run_step(rank, rank.compute, 50);
      Graph graph = got(rank.comm->end_capture(capture));
      for (int i = 0; i < 100; ++i) expect_ok(rank.comm->launch(graph, rank.compute));
      rank.finish();
      EXPECT_EQ(pool.statistics().reserved_bytes, kLayer * 15);
    }
  });
}

TEST_P(Memory, OfBucketsIsReducedEagerlyAndCaptured) {
  create_prepared();
  on_all([](GpuRank& rank) {
    const std::vector<std::uint64_t> tensors(20, kPart.count);
    Result<Bucketer> bucketer =
        Bucketer::create(*rank.comm, tensors, kBytes, rank.compute,
                         {.bucket = kPart * 4, .first_bucket = kPart, .reduction = kLargest});
    expect_ok(bucketer);
    if (!bucketer) return;
    const auto step = [&](std::uint64_t pattern) {
      for (std::size_t i = tensors.size(); i-- > 0;) {
        rank.write(rank.compute, bucketer->bucket_view(i), kPart, pattern + i);
        expect_ok(bucketer->ready(i));
      }
      expect_ok(bucketer->finish());
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        rank.check(rank.compute, bucketer->bucket_view(i), kPart, pattern + i);
      }
    };
    for (std::uint64_t round = 0; round < 10; ++round) step(100 * round);
    rank.finish();
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    step(5000);
    Graph graph = got(rank.comm->end_capture(capture));
    for (int launch = 0; launch < 100; ++launch) {
      expect_ok(rank.comm->launch(graph, rank.compute));
    }
    rank.finish();
    graph = Graph();
  });
}

std::string name_of_device(const testing::TestParamInfo<On>& info) {
  return test::name_of(info.param);
}
INSTANTIATE_TEST_SUITE_P(Ranks, Memory, testing::Values(On::simulated, On::gpus), name_of_device);

}  // namespace
}  // namespace weir
