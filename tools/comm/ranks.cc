// SPDX-License-Identifier: Apache-2.0
#include "comm/ranks.h"

#include <chrono>
#include <thread>
#include <utility>

namespace weir {

Result<Ranks::Ids> Ranks::make_ids(Nccl& nccl) {
  Ids ids;
  for (UniqueId& id : ids) {
    const Result<UniqueId> made = nccl.unique_id();
    if (!made) return made.error();
    id = *made;
  }
  return ids;
}

Status Ranks::connect(const Ids& ids, const CommunicatorOptions& settings,
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

Status Ranks::on_all(const std::function<Status(BenchRank&)>& work) {
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

// Where the threads wait for one another.
Result<std::vector<double>> Ranks::gather(LocalRank& rank, double mine) {
  std::unique_lock lock(mutex_);
  sent_[static_cast<std::size_t>(rank.rank)] = mine;
  const std::uint64_t round = round_;
  if (++here_ == all_) {
    gathered_ = sent_;
    here_ = 0;
    ++round_;
    arrived_.notify_all();
    return gathered_;
  }
  arrived_.wait_for(lock, std::chrono::nanoseconds(host_timeout_.count),
                    [&] { return round_ != round || failed_; });
  if (round_ != round) return gathered_;
  return Error(ErrorCode::device,
               failed_ ? "another rank has failed" : "another rank did not come in time");
}

std::vector<std::string> Ranks::close() {
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

std::vector<std::string> Ranks::inspect(const LocalRank& rank) const {
  std::vector<std::string> wrong = rank.heap->validate();
  if (const auto left = rank.heap->statistics().live_blocks.current; left > 0) {
    wrong.push_back(std::to_string(left) + " blocks are left");
  }
  return wrong;
}

// The first error by time: others may have failed because that rank had.
Status Ranks::in_threads(const std::function<Status(LocalRank&)>& work) {
  std::optional<Error> first;
  std::vector<std::thread> threads;
  for (LocalRank& local : locals_) {
    threads.emplace_back([this, &work, &first, &local] {
      const Status ended = work(local);
      if (ended) return;
      const std::lock_guard lock(mutex_);
      const std::string rank = "rank " + std::to_string(local.rank) + ": ";
      if (!first) first = Error(ended.error().code(), rank + ended.error().message());
      failed_ = true;
      arrived_.notify_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first ? Status(*first) : Status();
}

}  // namespace weir
