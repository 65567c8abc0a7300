// SPDX-License-Identifier: Apache-2.0
// Ranks on simulated devices.
#include <fmt/format.h>

#include <utility>

#include "comm/ranks.h"

namespace weir {
namespace {

// A kernel writes at the speed of an H200's memory: 4.8 TB/s.
Nanoseconds time_to_write(Bytes bytes) {
  return 2_us + Nanoseconds{static_cast<std::int64_t>(bytes.count / 4800)};
}

class SimKernels final : public Kernels {
 public:
  SimKernels(SimDevice& device, int rank, int ranks)
      : device_(device), rank_(rank), ranks_(ranks) {}

  Stream new_stream() override { return device_.new_stream(); }

  void work(Stream stream, std::span<const Access> accesses, Nanoseconds duration) override {
    need(device_.launch(stream, accesses, duration));
  }

  void fill(Stream stream, std::span<const Operation> operations, std::uint64_t) override {
    for (const Operation& operation : operations) {
      const Bytes reads = operation.reads(ranks_, rank_), writes = operation.writes(ranks_, rank_);
      std::vector<Access> accesses;
      if (reads > 0_B) accesses.push_back(Writes(operation.send, reads));
      if (writes > 0_B) accesses.push_back(Writes(operation.receive, writes));
      need(device_.launch(stream, accesses, time_to_write(reads + writes)));
    }
  }

  // Looks at the memory as a check would, so that the race checker sees whether it may.
  std::optional<std::uint64_t> count_wrong(Stream stream, std::span<const Operation> operations,
                                           std::uint64_t) override {
    for (const Operation& operation : operations) {
      const Bytes writes = operation.writes(ranks_, rank_);
      if (writes == 0_B) continue;
      need(device_.launch(stream, Reads(operation.receive, writes), time_to_write(writes)));
    }
    finish(stream);
    return {};
  }

  void finish(Stream stream) override {
    const EventHandle event = need(device_.create_event());
    Status waited = device_.record(event, stream);
    if (waited) waited = device_.synchronize(event);
    (void)device_.destroy_event(event);
    need(waited);
  }

 private:
  SimDevice& device_;
  const int rank_, ranks_;
};

}  // namespace

std::unique_ptr<Ranks> open_sim_ranks(const SimWorldOptions& world, const RanksOptions& options,
                                      const std::function<void(SimWorld&)>& opened) {
  if (world.ranks < 1 || world.ranks > 64) {
    throw Exception(ErrorCode::invalid_argument,
                    fmt::format("--ranks {}: of 1 to 64, since each is a thread", world.ranks));
  }
  const auto shared = std::make_shared<SimWorld>(world);
  SimOptions costs;
  costs.costs.launch = options.launch;
  std::vector<BenchRank> ranks;
  for (int rank = 0; rank < world.ranks; ++rank) {
    auto device = std::make_unique<SimDevice>(costs);
    std::shared_ptr<Nccl> nccl = shared->rank(rank, *device);
    auto kernels = std::make_unique<SimKernels>(*device, rank, world.ranks);
    ranks.push_back(
        {rank, world.ranks, std::move(nccl), {}, std::move(device), std::move(kernels)});
  }
  const UniqueId id = need(ranks.front().nccl->unique_id());
  need(in_threads(ranks, [&](BenchRank& rank) {
    rank.job = need(rank.nccl->init(id, rank.ranks, rank.rank, {.name = "job"}));
  }));
  // Simulated calls give up by themselves, before a communicator leaves them to their threads.
  const Nanoseconds host_timeout{world.host_timeout / std::chrono::nanoseconds(1)};
  auto opened_ranks = std::make_unique<Ranks>(
      threads_on(world.ranks, "simulated devices"), std::move(ranks), options,
      CommunicatorOptions{.host_timeout = host_timeout + 5'000_ms, .watch_every = {}}, shared);
  if (opened) opened(*shared);
  return opened_ranks;
}

}  // namespace weir
