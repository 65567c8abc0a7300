// SPDX-License-Identifier: Apache-2.0
// Ranks on real GPUs: threads of this process, or this process as one rank of a launch.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <utility>

#include "comm/ranks.h"
#include "weir/cuda_device.h"

namespace weir {
namespace {

// What stays from one opening to the next: for each rank of this process a GPU, NCCL and one
// communicator, by which ranks tell each other of all others.
class CudaJob : public std::enable_shared_from_this<CudaJob> {
 public:
  CudaJob(const Environment& environment, int wanted) : launch_(need(find_launch(environment))) {
    const int gpus = need(CudaDevice::count());
    is_launched() ? take_process(wanted, gpus) : take_threads(wanted, gpus);
    for (Seat& seat : seats_) seat.nccl = need(load_nccl(seat.ordinal));
    connect();
  }
  ~CudaJob() {
    for (const Seat& seat : seats_) (void)seat.nccl->destroy(seat.job);
  }

  std::unique_ptr<Ranks> open(const RanksOptions& options) {
    std::vector<BenchRank> ranks;
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      const Seat& seat = seats_[i];
      std::unique_ptr<CudaDevice> device = need(CudaDevice::open(seat.ordinal));
      std::unique_ptr<Kernels> kernels = open_cuda_kernels(*device, rank_of(i), ranks_);
      ranks.push_back(
          {rank_of(i), ranks_, seat.nccl.get(), seat.job, std::move(device), std::move(kernels)});
    }
    return std::make_unique<Ranks>(describe(), std::move(ranks), options, CommunicatorOptions{},
                                   shared_from_this());
  }

 private:
  struct Seat {
    int ordinal = 0;
    std::unique_ptr<Nccl> nccl = {};
    CommHandle job = {};
  };

  bool is_launched() const { return !launch_.launcher.empty(); }
  int rank_of(std::size_t seat) const {
    return is_launched() ? launch_.rank : static_cast<int>(seat);
  }

  std::string describe() const {
    std::vector<int> gpus;
    for (const Seat& seat : seats_) gpus.push_back(seat.ordinal);
    const std::string where =
        fmt::format("GPU {}, NCCL {}", fmt::join(gpus, ", "), seats_.front().nccl->version());
    return is_launched() ? launch_.describe() + "; on " + where : threads_on(ranks_, where);
  }

  void take_threads(int wanted, int gpus) {
    if (wanted > gpus || gpus == 0) {
      throw Exception(ErrorCode::invalid_argument,
                      fmt::format("--ranks {}: GPUs here: {}, and each rank needs one; give fewer "
                                  "ranks, use --device sim, or start one process a rank "
                                  "(docs/comm.md)",
                                  wanted, gpus));
    }
    ranks_ = wanted > 0 ? wanted : gpus;
    for (int ordinal = 0; ordinal < ranks_; ++ordinal) seats_.push_back({ordinal});
  }

  // A launcher may show each process its own GPU alone.
  void take_process(int wanted, int gpus) {
    if (wanted > 0 && wanted != launch_.ranks) {
      throw Exception(
          ErrorCode::invalid_argument,
          fmt::format("--ranks {}: this is {}; leave the option out", wanted, launch_.describe()));
    }
    if (gpus != 1 && launch_.local_rank >= gpus) {
      throw Exception(
          ErrorCode::unavailable,
          fmt::format("local rank {} has no GPU: there are {} here; start as many ranks "
                      "a host as it has GPUs",
                      launch_.local_rank, gpus));
    }
    ranks_ = launch_.ranks;
    seats_.push_back({gpus == 1 ? 0 : launch_.local_rank});
  }

  void connect() {
    const Result<UniqueId> id = rendezvous(*seats_.front().nccl, launch_);
    std::vector<BenchRank> ranks(seats_.size());
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      ranks[i].rank = rank_of(i);
      ranks[i].nccl = seats_[i].nccl.get();
    }
    const Status made = in_threads(ranks, [&](BenchRank& rank) {
      rank.job = need(rank.nccl->init(need(id), ranks_, rank.rank, {.name = "job"}));
    });
    finish_rendezvous(launch_);
    for (std::size_t i = 0; i < seats_.size(); ++i) seats_[i].job = ranks[i].job;
    need(made);
  }

  const Launch launch_;
  int ranks_ = 0;
  std::vector<Seat> seats_;
};

}  // namespace

OpenRanks cuda_ranks(const Environment& environment, int ranks) {
  const auto job = std::make_shared<CudaJob>(environment, ranks);
  return [job](const RanksOptions& options) { return job->open(options); };
}

}  // namespace weir
