// SPDX-License-Identifier: Apache-2.0
#include "comm/local_ranks.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

namespace weir {
LocalRendezvous::LocalRendezvous(int ranks, Nanoseconds host_timeout)
    : ranks_(static_cast<std::size_t>(ranks)), host_timeout_(host_timeout), sent_(ranks_) {}

Result<std::vector<double>> LocalRendezvous::gather(int rank, double mine) {
  std::unique_lock lock(mutex_);
  sent_[static_cast<std::size_t>(rank)] = mine;
  const std::uint64_t round = round_;
  if (++here_ == ranks_) {
    gathered_ = sent_;
    here_ = 0;
    ++round_;
    arrived_.notify_all();
    return gathered_;
  }
  arrived_.wait_for(lock, std::chrono::nanoseconds(host_timeout_.count),
                    [&] { return round_ != round || left_; });
  if (round_ == round) {
    return Error(ErrorCode::device,
                 left_ ? "another rank has failed" : "another rank did not come in time");
  }
  return gathered_;
}

void LocalRendezvous::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  arrived_.notify_all();
}

Result<LocalRanks::Ids> LocalRanks::make_ids(Nccl& nccl) {
  Ids ids;
  for (UniqueId& id : ids) {
    const Result<UniqueId> made = nccl.unique_id();
    if (!made) return made.error();
    id = *made;
  }
  return ids;
}

Status LocalRanks::connect(const Ids& ids, const CommunicatorOptions& settings,
                           const RanksOptions& options) {
  return in_threads([&](LocalRank& local) -> Status {
    Result<Communicator> made = Communicator::create({*local.nccl, *local.device, *local.heap},
                                                     ids[0], all_, local.rank, settings);
    if (!made) return std::move(made).error();
    local.comm = *std::move(made);
    if (options.raw) {
      Result<CommHandle> handle = local.nccl->init(ids[1], all_, local.rank, {.name = "raw"});
      if (!handle) return std::move(handle).error();
      local.raw = *handle;
    }
    return options.prepare ? local.comm->prepare() : Status();
  });
}

Status LocalRanks::on_all(const std::function<Status(BenchRank&)>& work) {
  return in_threads([&](LocalRank& local) {
    BenchRank given{.rank = local.rank,
                    .ranks = all_,
                    .nccl = *local.nccl,
                    .device = *local.device,
                    .heap = *local.heap,
                    .comm = *local.comm,
                    .raw = local.raw,
                    .kernels = *local.kernels,
                    .compute = local.compute,
                    .gather = [this, &local](double mine) { return gather(local, mine); }};
    return work(given);
  });
}

Result<std::vector<double>> LocalRanks::gather(LocalRank& rank, double mine) {
  return rendezvous_.gather(rank.rank, mine);
}

std::vector<std::string> LocalRanks::close() {
  std::vector<std::string> wrong;
  const Status closed = in_threads([](LocalRank& local) -> Status {
    Status ended = local.comm ? local.comm->close() : Status();
    if (local.raw.value != 0) (void)local.nccl->destroy(local.raw);
    return ended;
  });
  if (!closed) wrong.push_back(closed.error().message());
  for (const LocalRank& local : locals_) {
    for (const std::string& found : inspect(local)) {
      wrong.push_back("rank " + std::to_string(local.rank) + ": " + found);
    }
  }
  locals_.clear();
  return wrong;
}

std::vector<std::string> LocalRanks::inspect(const LocalRank& rank) const {
  std::vector<std::string> wrong = rank.heap->validate();
  if (const auto left = rank.heap->statistics().live_blocks.current; left > 0) {
    wrong.push_back(std::to_string(left) + " blocks are left");
  }
  return wrong;
}

// The first error by time: others may have failed because that rank had.
Status LocalRanks::in_threads(const std::function<Status(LocalRank&)>& work) {
  std::mutex mutex;
  std::optional<Error> first;
  std::vector<std::thread> threads;
  for (LocalRank& local : locals_) {
    threads.emplace_back([this, &work, &mutex, &first, &local] {
      const Status ended = work(local);
      if (ended) return;
      {
        const std::lock_guard lock(mutex);
        const std::string rank = "rank " + std::to_string(local.rank) + ": ";
        if (!first) first = Error(ended.error().code(), rank + ended.error().message());
      }
      rendezvous_.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first ? Status(*first) : Status();
}

}  // namespace weir
