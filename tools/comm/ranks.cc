// SPDX-License-Identifier: Apache-2.0
#include "comm/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace weir {
namespace {

void connect(BenchRank& rank, const RanksOptions& options, const CommunicatorOptions& settings) {
  std::array<UniqueId, 2> ids;
  for (UniqueId& id : ids) id = rank.rank == 0 ? need(rank.nccl->unique_id()) : UniqueId{};
  ids = rank.gather(ids).front();
  rank.comm = need(Communicator::create({*rank.nccl, *rank.device, *rank.heap}, ids[0], rank.ranks,
                                        rank.rank, settings));
  if (options.raw) {
    rank.raw = need(rank.nccl->init(ids[1], rank.ranks, rank.rank, {.name = "raw"}));
  }
  if (options.prepare) need(rank.comm->prepare());
}

// What is wrong with a rank whose communicators are closed.
std::vector<std::string> inspect(const BenchRank& rank) {
  std::vector<std::string> wrong = rank.heap->validate();
  if (const auto left = rank.heap->statistics().live_blocks.current; left > 0) {
    wrong.push_back(fmt::format("{} blocks are left", left));
  }
  const auto* const device = dynamic_cast<const SimDevice*>(rank.device.get());
  if (device != nullptr && device->race_count() > 0) {
    wrong.push_back(fmt::format("{} races, the first: {}", device->race_count(),
                                device->races().front().describe()));
  }
  return wrong;
}

// Tells the other ranks that this one has failed, unless some rank was told to have failed already.
void tell_failure(BenchRank& rank) {
  if (rank.knows_of_failure) return;
  try {
    (void)rank.gather(0, /*failed=*/true);
  } catch (const Exception&) {  // as on every rank
  }
}

}  // namespace

std::string threads_on(int ranks, const std::string& where) {
  if (ranks == 1) return "1 rank: a thread of this process on " + where;
  return fmt::format("{} ranks: threads of this process on {}", ranks, where);
}

Ranks::Ranks(std::string description, std::vector<BenchRank> ranks, const RanksOptions& options,
             const CommunicatorOptions& settings, std::shared_ptr<const SimWorld> world)
    : description_(std::move(description)), world_(std::move(world)), ranks_(std::move(ranks)) {
  need(in_threads(ranks_, [&](BenchRank& rank) {
    rank.compute = rank.kernels->new_stream();
    rank.heap = std::make_unique<DeviceHeap>(*rank.device, options.heap);
    connect(rank, options, settings);
  }));
}

Status Ranks::on_all(const std::function<void(BenchRank&)>& work) {
  return in_threads(
      ranks_,
      [&](BenchRank& rank) {
        work(rank);
        (void)rank.gather(0);  // none has failed
      },
      tell_failure);
}

// Ranks of one process tell each other what they found once all have closed their communicators: a
// GPU that waits for another rank then holds up the other's close (docs/comm.md).
std::vector<std::string> Ranks::close() {
  std::mutex mutex;
  std::vector<std::string> wrong;
  if (world_ != nullptr && !ranks_.empty()) wrong = world_->mismatches();
  const auto note = [&](const BenchRank& rank, const std::string& what) {
    const std::lock_guard lock(mutex);
    wrong.push_back(fmt::format("rank {}: {}", rank.rank, what));
  };
  (void)in_threads(ranks_, [&](BenchRank& rank) {
    const Status ended = rank.comm ? rank.comm->close() : Status();
    if (!ended) note(rank, ended.error().message());
    if (rank.raw.value != 0) (void)rank.nccl->destroy(rank.raw);
    for (const std::string& found : inspect(rank)) note(rank, found);
  });
  const std::size_t found_here = wrong.size();
  const Status told = in_threads(ranks_, [&](BenchRank& rank) {
    if (rank.knows_of_failure || found_here > 0) return tell_failure(rank);
    (void)rank.gather(0);
  });
  if (!told && wrong.empty()) wrong.push_back(told.error().message());
  ranks_.clear();
  return wrong;
}

}  // namespace weir
