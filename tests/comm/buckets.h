// SPDX-License-Identifier: Apache-2.0
// Ranks with bucketers, for their tests.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/comm/ranks.h"
#include "weir/comm/bucketer.h"

namespace weir::test {

// From the last to the first; or, of another seed than 0, in any order.
inline std::vector<std::size_t> shuffled(std::size_t count, std::uint32_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  std::mt19937 random(seed);
  if (seed != 0) std::shuffle(order.begin(), order.end(), random);
  return order;
}

class Buckets : public CommRanks {
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

}  // namespace weir::test
