// SPDX-License-Identifier: Apache-2.0
// Ranks on real GPUs: threads of this process, or this process as one rank of a launch.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>

#include "comm/cuda_kernels.h"
#include "comm/ranks.h"

namespace weir {
namespace {

constexpr Nanoseconds kTimeout{std::int64_t{600} * 1'000'000'000};
constexpr Nanoseconds kHostTimeout{std::int64_t{120} * 1'000'000'000};

// What stays from one opening to the next.
class CudaJob {
 public:
  static Result<std::shared_ptr<CudaJob>> start(const Environment& environment, int wanted) {
    const Result<Launch> launch = find_launch(environment);
    if (!launch) return launch.error();
    const Result<int> gpus = CudaDevice::count();
    if (!gpus) return gpus.error();
    auto job = std::make_shared<CudaJob>();
    job->launch_ = *launch;
    Status placed = launch->launcher.empty() ? job->take_threads(wanted, *gpus)
                                             : job->take_process(wanted, *gpus);
    for (std::size_t i = 0; placed && i < job->ordinals_.size(); ++i) {
      const Result<KernelRates> rates = measure_kernels(job->ordinals_[i]);
      if (!rates) return rates.error();
      job->rates_.push_back(*rates);
    }
    if (placed) placed = job->connect_job();
    if (!placed) return std::move(placed).error();
    return job;
  }
  CudaJob() = default;
  ~CudaJob() {
    if (world_.value != 0) (void)nccl_->destroy(world_);
  }
  CudaJob(const CudaJob&) = delete;
  CudaJob& operator=(const CudaJob&) = delete;

  int ranks() const { return ranks_; }
  bool is_launched() const { return !launch_.launcher.empty(); }

  std::string describe() const {
    std::string where;
    for (const int ordinal : ordinals_)
      where += fmt::format("{}{}", where.empty() ? "" : ", ", ordinal);
    if (is_launched()) return fmt::format("{}; on GPU {}", launch_.describe(), where);
    if (ranks_ == 1) return "1 rank: a thread of this process on GPU " + where;
    return fmt::format("{} ranks: threads of this process on GPU {}", ranks_, where);
  }

  // One of this process's ranks, without communicators.
  Result<LocalRank> open_rank(std::size_t which, const HeapOptions& options) const {
    LocalRank local;
    local.rank = is_launched() ? launch_.rank : static_cast<int>(which);
    Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(ordinals_[which]);
    if (!device) return std::move(device).error();
    Result<std::unique_ptr<Kernels>> kernels =
        open_cuda_kernels(**device, rates_[which], local.rank, ranks_, kTimeout);
    if (!kernels) return std::move(kernels).error();
    Result<Stream> compute = (*kernels)->new_stream();
    if (!compute) return std::move(compute).error();
    Result<std::unique_ptr<Nccl>> nccl = load_nccl(ordinals_[which]);
    if (!nccl) return std::move(nccl).error();
    local.heap = std::make_unique<DeviceHeap>(**device, options);
    local.device = *std::move(device);
    local.kernels = *std::move(kernels);
    local.compute = *compute;
    local.nccl = *std::move(nccl);
    return local;
  }
  std::size_t local_ranks() const { return ordinals_.size(); }

  // Every rank's, in order of rank.
  template <class Value>
  Result<std::vector<Value>> gather_of(const Value& mine) {
    const auto all = nccl_->host_all_gather(world_, std::as_bytes(std::span(&mine, 1)), kTimeout);
    if (!all) return all.error();
    std::vector<Value> values(all->size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&values[i], (*all)[i].data(), sizeof mine);
    }
    return values;
  }
  // Every rank's `mine`. If one rank failed, it is an error on all.
  Result<std::vector<double>> gather(double mine, bool failed) {
    const auto all = gather_of(RankResult{mine, failed ? 1.0 : 0.0});
    if (!all) return all.error();
    std::vector<double> values;
    for (const RankResult& other : *all) {
      if (other.failed != 0) return Error(ErrorCode::device, "another rank has failed");
      values.push_back(other.value);
    }
    return values;
  }

 private:
  struct RankResult {
    double value = 0, failed = 0;
  };

  Status take_threads(int wanted, int gpus) {
    if (wanted > gpus || gpus == 0) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("--ranks {}: there {} {} here, and each rank needs one; give fewer "
                               "ranks, use --device sim, or start one process a rank "
                               "(docs/comm.md)",
                               wanted, gpus == 1 ? "is" : "are",
                               gpus == 1 ? "one GPU" : fmt::format("{} GPUs", gpus)));
    }
    ranks_ = wanted > 0 ? wanted : gpus;
    for (int ordinal = 0; ordinal < ranks_; ++ordinal) ordinals_.push_back(ordinal);
    return {};
  }

  // A launcher may show each process its own GPU alone.
  Status take_process(int wanted, int gpus) {
    if (wanted > 0 && wanted != launch_.ranks) {
      return Error(
          ErrorCode::invalid_argument,
          fmt::format("--ranks {}: this is {}; leave the option out", wanted, launch_.describe()));
    }
    if (gpus != 1 && launch_.local_rank >= gpus) {
      return Error(ErrorCode::unavailable,
                   fmt::format("local rank {} has no GPU: there are {} here; start as many ranks a "
                               "host as it has GPUs",
                               launch_.local_rank, gpus));
    }
    ranks_ = launch_.ranks;
    ordinals_.push_back(gpus == 1 ? 0 : launch_.local_rank);
    return {};
  }

  // One communicator for the job, by which ranks tell each other of all others.
  Status connect_job() {
    if (!is_launched()) return {};
    Result<std::unique_ptr<Nccl>> nccl = load_nccl(ordinals_.front());
    if (!nccl) return std::move(nccl).error();
    nccl_ = *std::move(nccl);
    const Result<UniqueId> id = rendezvous(*nccl_, launch_);
    if (!id) return id.error();
    const Result<CommHandle> world = nccl_->init(*id, ranks_, launch_.rank, {.name = "rendezvous"});
    finish_rendezvous(launch_);
    if (!world) return world.error();
    world_ = *world;
    return {};
  }

  Launch launch_;
  int ranks_ = 0;
  std::vector<int> ordinals_;  // of this process's ranks
  std::vector<KernelRates> rates_;
  // Of one rank of a launch alone:
  std::unique_ptr<Nccl> nccl_;
  CommHandle world_;
};

class CudaRanks final : public Ranks {
 public:
  explicit CudaRanks(std::shared_ptr<CudaJob> job)
      : Ranks(job->ranks(), kHostTimeout), job_(std::move(job)) {}
  ~CudaRanks() override { (void)CudaRanks::close(); }

  Status open(const RanksOptions& options) {
    Ids ids;
    for (std::size_t i = 0; i < job_->local_ranks(); ++i) {
      Result<LocalRank> local = job_->open_rank(i, options.heap);
      if (!local) return std::move(local).error();
      if (i == 0) {
        version_ = local->nccl->version();
        const Result<Ids> made = local->rank == 0 ? make_ids(*local->nccl) : Ids{};
        if (!made) return made.error();
        ids = *made;
        if (job_->is_launched()) {
          const auto all = job_->gather_of(ids);
          if (!all) return all.error();
          ids = all->front();
        }
      }
      add(*std::move(local));
    }
    return connect(ids, {}, options);
  }

  std::string describe() const override { return job_->describe() + ", NCCL " + version_; }

  // In a launch what fails on one rank fails on all.
  Status on_all(const std::function<Status(BenchRank&)>& work) override {
    saw_failure_ = false;
    Status ended = Ranks::on_all(work);
    if (!job_->is_launched() || saw_failure_) return ended;
    const auto all = job_->gather(0, !ended);
    if (!ended || all) return ended;
    return all.error();
  }
  std::vector<std::string> close() override {
    if (closed_) return {};
    closed_ = true;
    std::vector<std::string> wrong = Ranks::close();
    if (!job_->is_launched()) return wrong;
    if (!job_->gather(0, !wrong.empty()) && wrong.empty()) {
      wrong.emplace_back("another rank found what is wrong, and says so");
    }
    return wrong;
  }

 private:
  Result<std::vector<double>> gather(LocalRank& rank, double mine) override {
    if (!job_->is_launched()) return Ranks::gather(rank, mine);
    auto all = job_->gather(mine, false);
    if (!all) saw_failure_ = true;
    return all;
  }

  const std::shared_ptr<CudaJob> job_;
  std::string version_;
  bool saw_failure_ = false;  // in gather()
  bool closed_ = false;
};

}  // namespace

Result<OpenRanks> cuda_ranks(const Environment& environment, int ranks) {
  Result<std::shared_ptr<CudaJob>> job = CudaJob::start(environment, ranks);
  if (!job) return std::move(job).error();
  return OpenRanks(
      [job = *std::move(job)](const RanksOptions& options) -> Result<std::unique_ptr<Ranks>> {
        auto opened = std::make_unique<CudaRanks>(job);
        if (Status connected = opened->open(options); !connected)
          return std::move(connected).error();
        return std::unique_ptr<Ranks>(std::move(opened));
      });
}

}  // namespace weir
