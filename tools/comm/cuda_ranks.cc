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
class CudaJob {
 public:
  CudaJob(const Environment& environment, int wanted) : launch_(need(find_launch(environment))) {
    const int gpus = need(CudaDevice::count());
    is_launched() ? take_process(wanted, gpus) : take_threads(wanted, gpus);
    const Result<UniqueId> id = rendezvous(*seats_.front().nccl, launch_);
    const Status connected = in_threads(seats_, [&](Seat& seat) {
      seat.job = need(seat.nccl->init(need(id), ranks_, seat.rank, {.name = "job"}));
    });
    finish_rendezvous(launch_);
    need(connected);
  }
  ~CudaJob() {
    for (const Seat& seat : seats_) (void)seat.nccl->destroy(seat.job);
  }

  std::unique_ptr<Ranks> open(const RanksOptions& options) {
    std::vector<BenchRank> ranks;
    for (const Seat& seat : seats_) {
      std::unique_ptr<CudaDevice> device = need(CudaDevice::open(seat.ordinal));
      std::unique_ptr<Kernels> kernels = open_cuda_kernels(*device, seat.rank, ranks_);
      ranks.push_back(
          {seat.rank, ranks_, seat.nccl, seat.job, std::move(device), std::move(kernels)});
    }
    return std::make_unique<Ranks>(describe(), std::move(ranks), options, CommunicatorOptions{});
  }

 private:
  struct Seat {
    int rank, ordinal;
    std::shared_ptr<Nccl> nccl;
    CommHandle job = {};
  };

  bool is_launched() const { return !launch_.launcher.empty(); }

  std::string describe() const {
    std::vector<int> gpus;
    for (const Seat& seat : seats_) gpus.push_back(seat.ordinal);
    const std::string where =
        fmt::format("GPU {}, NCCL {}", fmt::join(gpus, ", "), seats_.front().nccl->version());
    return is_launched() ? launch_.describe() + "; on " + where : threads_on(ranks_, where);
  }

  void take(int rank, int ordinal) { seats_.push_back({rank, ordinal, need(load_nccl(ordinal))}); }

  void take_threads(int wanted, int gpus) {
    if (wanted > gpus || gpus == 0) {
      throw Exception(ErrorCode::invalid_argument,
                      fmt::format("--ranks {}: GPUs here: {}, and each rank needs one; give fewer "
                                  "ranks, use --device sim, or start one process a rank "
                                  "(docs/comm.md)",
                                  wanted, gpus));
    }
    ranks_ = wanted > 0 ? wanted : gpus;
    for (int rank = 0; rank < ranks_; ++rank) take(rank, rank);
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
    take(launch_.rank, gpus == 1 ? 0 : launch_.local_rank);
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
