// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/bucketer.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::begin;
using test::expect_error;
using test::expect_ok;
using test::got;
using test::Rank;
using testing::IsEmpty;

// From the last to the first; or, of another seed than 0, in any order.
std::vector<std::size_t> shuffled(std::size_t count, std::uint32_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  std::mt19937 random(seed);
  if (seed != 0) std::shuffle(order.begin(), order.end(), random);
  return order;
}

class Buckets : public test::CommRanks {
 protected:
  // 25 MiB are all-reduced in 1 ms.
  Buckets() : CommRanks(2, {.bytes_per_nanosecond = 26.2144}) {
    create();
    prepare();
    start();
  }
  void start() {
    before_.clear();
    for (const auto& rank : ranks_) {
      before_.push_back({world_.operations(rank->number), rank->device.host_waits()});
    }
  }
  // Since the communicator was prepared.
  std::uint64_t operations(const Rank& rank) const {
    return world_.operations(rank.number) - before_[static_cast<std::size_t>(rank.number)].first;
  }
  std::uint64_t host_waits(const Rank& rank) const {
    return rank.device.host_waits() - before_[static_cast<std::size_t>(rank.number)].second;
  }

  static Bucketer make(Rank& rank, const std::vector<std::uint64_t>& counts,
                       const BucketerOptions& options = {}) {
    Result<Bucketer> made =
        Bucketer::create(*rank.comm, counts, DataType::float32, rank.compute, options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }
  static void write(Rank& rank, Bucketer& buckets, std::size_t tensor, std::uint64_t count,
                    Stream stream, Nanoseconds time = 10_us) {
    if (count > 0) rank.write(stream, buckets.bucket_view(tensor), Bytes{4 * count}, time);
  }
  static void read_all(Rank& rank, Bucketer& buckets, const std::vector<std::uint64_t>& counts,
                       Stream stream) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) rank.read(stream, buckets.bucket_view(i), Bytes{4 * counts[i]}, 1_us);
    }
  }
  // A step on the compute stream, gradients in this order.
  static void step(Rank& rank, Bucketer& buckets, const std::vector<std::uint64_t>& counts,
                   const std::vector<std::size_t>& order) {
    for (const std::size_t tensor : order) {
      write(rank, buckets, tensor, counts[tensor], rank.compute);
      expect_ok(buckets.ready(tensor));
    }
    expect_ok(buckets.finish());
    read_all(rank, buckets, counts, rank.compute);
  }
  // Host time until the stream is done.
  static Nanoseconds end_of(Rank& rank, Stream stream) {
    const EventHandle event = *rank.device.create_event();
    expect_ok(rank.device.record(event, stream));
    expect_ok(rank.device.synchronize(event));
    expect_ok(rank.device.destroy_event(event));
    return rank.device.now();
  }

  std::vector<std::pair<std::uint64_t, std::uint64_t>> before_;
};

TEST_F(Buckets, AreFilledFromTheLastParameterToTheFirst) {
  Rank& rank = *ranks_[0];
  // 4 KiB each, buckets of two, the first of one.
  Bucketer buckets =
      make(rank, {1024, 1024, 1024, 1000, 1024}, {.bucket = 8_KiB, .first_bucket = 4_KiB});
  EXPECT_EQ(buckets.buckets(), 3u);
  EXPECT_EQ(Address::of(buckets.bucket_view(2)) - Address::of(buckets.bucket_view(3)), 4_KiB);
  EXPECT_EQ(Address::of(buckets.bucket_view(0)) - Address::of(buckets.bucket_view(1)), 4_KiB);
  EXPECT_EQ(Address::of(buckets.bucket_view(2)).value % kGrain.count, 0u);
  // A large tensor has a bucket of its own.
  const BucketerOptions small{.bucket = 8_KiB, .first_bucket = 4_KiB};
  EXPECT_EQ(make(rank, {1, 100'000, 1, 1, 300'000}, small).buckets(), 4u);
}

// Buckets differ in size, so that the simulated NCCL tells orders apart.
TEST_F(Buckets, AreLaunchedInOneOrderWhateverOrderGradientsComeIn) {
  std::vector<std::uint64_t> counts;
  for (std::uint64_t i = 0; i < 40; ++i) counts.push_back(1000 + 517 * i);
  on_all([&](Rank& rank) {
    Bucketer buckets = make(rank, counts, {.bucket = 128_KiB, .first_bucket = 32_KiB});
    EXPECT_GT(buckets.buckets(), 10u);
    for (std::uint32_t i = 0; i < 20; ++i) {
      const auto seed = 1000 * static_cast<std::uint32_t>(rank.number) + i;
      step(rank, buckets, counts, shuffled(counts.size(), seed));
    }
    EXPECT_EQ(operations(rank), 20 * buckets.buckets());
    EXPECT_EQ(host_waits(rank), 0u);
  });
  EXPECT_THAT(world_.mismatches(), IsEmpty());
}

TEST_F(Buckets, AreReducedWhileTheRestIsComputed) {
  const std::vector<std::uint64_t> counts(20, (25_MiB).count / 4);  // each 1 ms, both ways
  const auto time_of = [&](Rank& rank, bool at_once) {
    Bucketer buckets = make(rank, counts);
    const Nanoseconds begin = end_of(rank, rank.compute);
    for (std::size_t i = counts.size(); i-- > 0;) {
      write(rank, buckets, i, counts[i], rank.compute, 1_ms);
      if (at_once) expect_ok(buckets.ready(i));
    }
    for (std::size_t i = counts.size(); !at_once && i-- > 0;) {
      expect_ok(buckets.ready(i));
    }
    expect_ok(buckets.finish());
    return end_of(rank, rank.compute) - begin;
  };
  on_all([&](Rank& rank) {
    const Nanoseconds together = time_of(rank, true);
    const Nanoseconds apart = time_of(rank, false);
    EXPECT_GE(apart, 40_ms);
    EXPECT_GE(together, 21_ms);  // what is computed, and the last bucket
    EXPECT_LE(together, 22_ms);
  });
}

TEST_F(Buckets, MissingTensorsAreNamedAndTheStepGoesOn) {
  const std::vector<std::uint64_t> counts(20, 1000);
  on_all([&](Rank& rank) {
    Bucketer buckets = make(rank, counts, {.bucket = 8_KiB, .first_bucket = 4_KiB});
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (i % 2 == 0) continue;
      write(rank, buckets, i, counts[i], rank.compute);
      expect_ok(buckets.ready(i));
    }
    expect_error(buckets.finish(), ErrorCode::invalid_argument,
                 "10 of 20 tensors are not ready, the first is 0");
    for (std::size_t i = 0; i < counts.size(); i += 2) {
      write(rank, buckets, i, counts[i], rank.compute);  // zeros: the step does not use it
      expect_ok(buckets.ready(i));
    }
    expect_ok(buckets.finish());
    expect_error(buckets.finish(), ErrorCode::invalid_argument, "20 of 20");
    EXPECT_EQ(operations(rank), buckets.buckets());
  });
}

TEST_F(Buckets, MisusedSayHow) {
  Rank& rank = *ranks_[0];
  Bucketer buckets = make(rank, {10, 20, 30});
  expect_ok(buckets.ready(1));
  expect_error(buckets.ready(1), ErrorCode::invalid_argument,
               "rank 0 of 2: bucketer: tensor 1 of 3 was ready in this step already");
  expect_error(buckets.ready(3), ErrorCode::invalid_argument, "tensor 3: there are 3, from 0");
  EXPECT_EQ(operations(rank), 0u);
  const std::vector<std::uint64_t> huge{~std::uint64_t{0}};
  expect_error(Bucketer::create(*rank.comm, huge, DataType::int32, rank.compute),
               ErrorCode::invalid_argument, "tensor 0 has 18446744073709551615 elements");
}

TEST_F(Buckets, MayBeOfOneTensorOrNone) {
  on_all([&](Rank& rank) {
    Bucketer one = make(rank, {1});
    step(rank, one, {1}, {0});
    Bucketer none = make(rank, {});
    EXPECT_EQ(none.buckets(), 0u);
    expect_ok(none.finish());
    Bucketer empty = make(rank, {0, 0});
    EXPECT_EQ(empty.bucket_view(0), nullptr);
    step(rank, empty, {0, 0}, {1, 0});
    EXPECT_EQ(operations(rank), 1u);
  });
}

TEST_F(Buckets, WhoseNcclFailsInTheMiddleSayWhyAndMemoryIsWhole) {
  const std::vector<std::uint64_t> counts(6, 1000);
  Rank& rank = *ranks_[0];
  {
    Bucketer buckets = make(rank, counts, {.bucket = 4_KiB, .first_bucket = 4_KiB});
    world_.fail(0, NcclCall::enqueue, 3);
    for (const std::size_t tensor : {5, 4}) {
      write(rank, buckets, tensor, counts[tensor], rank.compute);
      expect_ok(buckets.ready(tensor));
    }
    expect_error(buckets.ready(3), ErrorCode::device, "made to fail");
    expect_error(buckets.ready(2), ErrorCode::device, "made to fail");
    expect_error(buckets.finish(), ErrorCode::device, "made to fail");
  }
  EXPECT_THAT(rank.heap->validate(), IsEmpty());
  ranks_[1]->comm->abort("rank 0 failed");
}

// Steps inside graphs.
using CapturedBuckets = Buckets;

TEST_F(CapturedBuckets, AreRightInEveryOrderOfReplay) {
  const std::vector<std::uint64_t> counts{5'000, 70'000, 20, 9'000, 30'000, 0, 4'000, 1};
  on_all([&](Rank& rank) {
    Bucketer buckets = make(rank, counts, {.bucket = 256_KiB, .first_bucket = 16_KiB});
    GraphPool pool(*rank.heap);
    step(rank, buckets, counts, shuffled(counts.size(), 3));  // an eager one first
    CaptureScope capture = begin(rank, pool);
    step(rank, buckets, counts, shuffled(counts.size(), 5));
    step(rank, buckets, counts, shuffled(counts.size(), 6));
    Graph graph = got(rank.comm->end_capture(capture));
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      EXPECT_EQ(rank.device.replay_in_random_order(graph.graph(), seed), 0u) << "seed " << seed;
    }
    for (int launch = 0; launch < 3; ++launch) {
      expect_ok(rank.comm->launch(graph, rank.compute));
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
    CaptureScope capture = begin(rank, pool);
    expect_error(buckets.ready(0), ErrorCode::capture, "captured whole, or not at all");
    expect_ok(capture.end());
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
      CaptureScope capture = begin(rank, pool);
      write(rank, buckets, 1, 1000, rank.compute);
      expect_ok(buckets.ready(1));
      write(rank, buckets, 0, 1000, rank.compute);
      if (all) expect_ok(buckets.ready(0));
      expect_ok(rank.comm->end_capture(capture));
      expect_error(buckets.finish(), ErrorCode::capture,
                   "bucketer: the capture of the step ended before finish(), so the step is "
                   "abandoned: destroy its graph");
    }
    step(rank, buckets, {1000, 1000}, {1, 0});
    EXPECT_EQ(rank.device.race_count(), 0u);
  });
}

TEST_F(CapturedBuckets, AreMadeBeforeTheCapture) {
  Rank& rank = *ranks_[0];
  GraphPool pool(*rank.heap);
  CaptureScope capture = begin(rank, pool);
  const std::vector<std::uint64_t> some{10};
  expect_error(Bucketer::create(*rank.comm, some, DataType::float32, rank.compute),
               ErrorCode::capture, "create bucketers before the capture begins");
  expect_ok(capture.end());
}

class UnpreparedBuckets : public test::CommRanks {
 protected:
  UnpreparedBuckets() : CommRanks(2, {}) { create(); }
};

TEST_F(UnpreparedBuckets, DoNotFinishAStepThatWasNotReduced) {
  Rank& rank = *ranks_[0];
  const std::vector<std::uint64_t> some{10};
  Result<Bucketer> buckets = Bucketer::create(*rank.comm, some, DataType::float32, rank.compute);
  expect_ok(buckets);
  GraphPool pool(*rank.heap);
  CaptureScope capture = begin(rank, pool);
  expect_error(buckets->ready(0), ErrorCode::capture, "call prepare() on every rank");
  expect_error(buckets->finish(), ErrorCode::capture, "call prepare() on every rank");
  expect_ok(capture.end());
}

}  // namespace
}  // namespace weir
