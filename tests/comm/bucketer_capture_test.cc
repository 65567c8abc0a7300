// SPDX-License-Identifier: Apache-2.0
// Steps inside graphs.
#include "tests/comm/buckets.h"

namespace weir {
namespace {

using test::Buckets;
using test::expect_error;
using test::expect_ok;
using test::Rank;
using test::shuffled;
using testing::IsEmpty;

using CapturedBuckets = Buckets;

TEST_F(CapturedBuckets, AreRightInEveryOrderOfReplay) {
  const std::vector<std::uint64_t> counts{5'000, 70'000, 20, 9'000, 30'000, 0, 4'000, 1};
  on_all([&](Rank& rank) {
    Bucketer buckets = make(rank, counts, {.bucket = 256_KiB, .first_bucket = 16_KiB});
    GraphPool pool(*rank.heap);
    step(rank, buckets, counts, shuffled(counts.size(), 3));  // an eager one first
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_ok(capture);
    step(rank, buckets, counts, shuffled(counts.size(), 5));
    step(rank, buckets, counts, shuffled(counts.size(), 6));
    Result<Graph> graph = rank.comm->end_capture(*capture);
    expect_ok(graph);
    if (!graph.ok()) return;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      EXPECT_EQ(rank.device.replay_in_random_order(graph->graph(), seed), 0u) << "seed " << seed;
    }
    for (int launch = 0; launch < 3; ++launch) {
      expect_ok(rank.comm->launch(*graph, rank.compute));
    }
    step(rank, buckets, counts, shuffled(counts.size(), 4));  // and one after
    EXPECT_EQ(operations(rank), 4 * buckets.buckets());
    EXPECT_EQ(host_waits(rank), 0u);
  });
  EXPECT_THAT(world_.mismatches(), IsEmpty());
}

TEST_F(CapturedBuckets, OfAStepThatIsNotWholeAreToldApart) {
  on_all([&](Rank& rank) {
    Bucketer buckets = make(rank, {1000, 1000}, {.bucket = 4_KiB, .first_bucket = 4_KiB});
    GraphPool pool(*rank.heap);
    write(rank, buckets, 1, 1000, rank.compute);
    expect_ok(buckets.ready(1));
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_ok(capture);
    expect_error(buckets.ready(0), ErrorCode::capture, "captured whole, or not at all");
    expect_ok(capture->end());
    write(rank, buckets, 0, 1000, rank.compute);
    expect_ok(buckets.ready(0));
    expect_ok(buckets.finish());
  });
}

TEST_F(CapturedBuckets, OfAStepWhoseCaptureIsOverBeginAnew) {
  on_all([&](Rank& rank) {
    Bucketer buckets = make(rank, {1000, 1000}, {.bucket = 4_KiB, .first_bucket = 4_KiB});
    GraphPool pool(*rank.heap);
    for (const bool all : {true, false}) {
      Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
      expect_ok(capture);
      write(rank, buckets, 1, 1000, rank.compute);
      expect_ok(buckets.ready(1));
      write(rank, buckets, 0, 1000, rank.compute);
      if (all) expect_ok(buckets.ready(0));
      expect_ok(rank.comm->end_capture(*capture));
      if (all) {
        expect_error(buckets.finish(), ErrorCode::capture,
                     "the capture that the work is part of is over");
      }
    }
    step(rank, buckets, {1000, 1000}, {1, 0});
    EXPECT_EQ(rank.device.race_count(), 0u);
  });
}

TEST_F(CapturedBuckets, AreMadeBeforeTheCapture) {
  Rank& rank = *ranks_[0];
  GraphPool pool(*rank.heap);
  Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
  expect_ok(capture);
  const std::vector<std::uint64_t> some{10};
  expect_error(Bucketer::create(*rank.comm, some, DataType::float32, rank.compute),
               ErrorCode::capture, "create it before the capture begins");
  expect_ok(capture->end());
}

TEST_F(CapturedBuckets, EndACaptureWhoseNcclFailed) {
  Rank& rank = *ranks_[0];
  Bucketer buckets = make(rank, {1000, 1000}, {.bucket = 4_KiB, .first_bucket = 4_KiB});
  GraphPool pool(*rank.heap);
  world_.fail(0, NcclCall::enqueue, 2);
  {
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_ok(capture);
    expect_ok(buckets.ready(1));
    expect_error(buckets.ready(0), ErrorCode::device, "made to fail");
  }
  ranks_[1]->comm->abort("rank 0 failed");
}

}  // namespace
}  // namespace weir
