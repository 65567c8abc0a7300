// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process: what simulated ranks and those on GPUs have in common.
#pragma once

#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks.h"

namespace weir {

// Where the threads wait for one another. A rank that failed releases the others.
class LocalRendezvous {
 public:
  LocalRendezvous(int ranks, Nanoseconds host_timeout);

  // Every rank's `mine`, in order of rank. Errors: device.
  Result<std::vector<double>> gather(int rank, double mine);
  void leave();

 private:
  const std::size_t ranks_;
  const Nanoseconds host_timeout_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<double> sent_, gathered_;
  std::size_t here_ = 0;
  std::uint64_t round_ = 0;
  bool left_ = false;
};

// A rank of this process, with all that it owns; what comes later uses what comes before.
struct LocalRank {
  int rank = 0;
  std::unique_ptr<Device> device;
  std::unique_ptr<Kernels> kernels;
  Stream compute;
  std::unique_ptr<Nccl> nccl;
  std::unique_ptr<DeviceHeap> heap;
  std::optional<Communicator> comm;
  CommHandle raw;
};

class LocalRanks : public Ranks {
 public:
  int ranks() const override { return all_; }
  bool has_rank_0() const override { return !locals_.empty() && locals_.front().rank == 0; }
  Status on_all(const std::function<Status(BenchRank&)>& work) override;
  std::vector<std::string> close() override;

 protected:
  // Of `all` ranks; threads that wait for one another do so for `host_timeout`.
  LocalRanks(int all, Nanoseconds host_timeout) : all_(all), rendezvous_(all, host_timeout) {}

  void add(LocalRank rank) { locals_.push_back(std::move(rank)); }
  // Ids of the communicators, and of those for NCCL alone.
  using Ids = std::array<UniqueId, 2>;
  static Result<Ids> make_ids(Nccl& nccl);
  Status connect(const Ids& ids, const CommunicatorOptions& settings, const RanksOptions& options);
  // BenchRank::gather.
  virtual Result<std::vector<double>> gather(LocalRank& rank, double mine);
  // What is wrong with a rank whose communicators are closed.
  virtual std::vector<std::string> inspect(const LocalRank& rank) const;

 private:
  Status in_threads(const std::function<Status(LocalRank&)>& work);

  const int all_;
  LocalRendezvous rendezvous_;
  std::vector<LocalRank> locals_;
};

}  // namespace weir
