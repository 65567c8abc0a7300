// SPDX-License-Identifier: Apache-2.0
#include "comm/local_ranks.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

namespace weir {
namespace {

// The first by time. Of ranks that failed because another had, nothing new is learnt.
Status first_error(const std::vector<LocalRank>& ranks, const std::vector<Status>& ended,
                   const std::vector<std::size_t>& failed) {
  std::optional<Error> first;
  for (const std::size_t i : failed) {
    const Error& why = ended[i].error();
    const bool follows = why.message().starts_with("another rank");
    if (first && (follows || !first->message().ends_with("another rank has failed"))) continue;
    first = Error(why.code(), "rank " + std::to_string(ranks[i].rank) + ": " + why.message());
  }
  return first ? Status(*first) : Status();
}

}  // namespace

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

Status LocalRanks::in_threads(const std::function<Status(LocalRank&)>& work) {
  std::vector<Status> ended(locals_.size());
  std::mutex mutex;
  std::vector<std::size_t> failed;  // in order of time
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    threads.emplace_back([this, &work, &ended, &mutex, &failed, i] {
      ended[i] = work(locals_[i]);
      if (ended[i]) return;
      {
        const std::lock_guard lock(mutex);
        failed.push_back(i);
      }
      rendezvous_.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first_error(locals_, ended, failed);
}

}  // namespace weir
