// Ranks as threads of this process, each on a simulated device.
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/ranks.h"

namespace weir {
namespace {

// Where the threads meet. A rank that failed releases the others.
class Meeting {
 public:
  Meeting(int ranks, Nanoseconds patience)
      : ranks_(static_cast<std::size_t>(ranks)), patience_(patience), said_(ranks_) {}

  Result<std::vector<double>> gather(int rank, double mine) {
    std::unique_lock lock(mutex_);
    said_[static_cast<std::size_t>(rank)] = mine;
    const std::uint64_t round = round_;
    if (++here_ == ranks_) {
      heard_ = said_;
      here_ = 0;
      ++round_;
      met_.notify_all();
      return heard_;
    }
    met_.wait_for(lock, std::chrono::nanoseconds(patience_.count),
                  [&] { return round_ != round || left_; });
    if (round_ == round) {
      return Error(ErrorCode::device,
                   left_ ? "another rank has failed" : "another rank did not come in time");
    }
    return heard_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
    met_.notify_all();
  }

 private:
  const std::size_t ranks_;
  const Nanoseconds patience_;
  std::mutex mutex_;
  std::condition_variable met_;
  std::vector<double> said_, heard_;
  std::size_t here_ = 0;
  std::uint64_t round_ = 0;
  bool left_ = false;
};

// A kernel writes at the speed of an H200's memory: 4.8 TB/s.
Nanoseconds time_to_write(Bytes bytes) {
  return 2_us + Nanoseconds{static_cast<std::int64_t>(bytes.count / 4800)};
}

class SimKernels final : public Kernels {
 public:
  SimKernels(SimDevice& device, int rank, int ranks, Nanoseconds timeout)
      : device_(device), rank_(rank), ranks_(ranks), timeout_(timeout) {}

  Result<Stream> new_stream() override { return device_.new_stream(); }

  Status work(Stream stream, std::span<const Range> reads, std::span<const Range> writes,
              Nanoseconds duration) override {
    std::vector<Access> accesses;
    for (const Range& range : reads) accesses.push_back(Reads(range.pointer, range.bytes));
    for (const Range& range : writes) accesses.push_back(Writes(range.pointer, range.bytes));
    return device_.launch(stream, accesses, duration);
  }

  Status fill(Stream stream, std::span<const Operation> operations, std::uint64_t) override {
    for (const Operation& operation : operations) {
      const Bytes reads = operation.reads(ranks_, rank_), writes = operation.writes(ranks_, rank_);
      std::vector<Access> accesses;
      if (reads > 0_B) accesses.push_back(Writes(operation.send, reads));
      if (writes > 0_B) accesses.push_back(Writes(operation.receive, writes));
      if (Status filled = device_.launch(stream, accesses, time_to_write(reads + writes));
          !filled) {
        return filled;
      }
    }
    return {};
  }

  // Looks at the memory as a check would, so that the race checker sees whether it may.
  Result<std::optional<std::uint64_t>> count_wrong(Stream stream,
                                                   std::span<const Operation> operations,
                                                   std::uint64_t) override {
    for (const Operation& operation : operations) {
      const Bytes writes = operation.writes(ranks_, rank_);
      if (writes == 0_B) continue;
      const Access access = Reads(operation.receive, writes);
      if (Status read = device_.launch(stream, access, time_to_write(writes)); !read) {
        return std::move(read).error();
      }
    }
    if (Status finished = finish(stream); !finished) return std::move(finished).error();
    return std::optional<std::uint64_t>();
  }

  Result<std::optional<std::uint64_t>> digest(Stream stream, Range range) override {
    const Access access = Reads(range.pointer, range.bytes);
    if (Status read = device_.launch(stream, access, time_to_write(range.bytes)); !read) {
      return std::move(read).error();
    }
    if (Status finished = finish(stream); !finished) return std::move(finished).error();
    return std::optional<std::uint64_t>();
  }

  std::optional<std::uint64_t> wrong_reads(const Graph& graph, std::uint64_t orders) override {
    std::uint64_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= orders; ++seed) {
      wrong += device_.replay_in_random_order(graph.graph(), seed);
    }
    return wrong;
  }

  Status finish(Stream stream) override {
    const Nanoseconds before = device_.now();
    Result<EventHandle> event = device_.create_event();
    if (!event) return std::move(event).error();
    Status waited = device_.record(*event, stream);
    if (waited) waited = device_.synchronize(*event);
    (void)device_.destroy_event(*event);
    if (!waited) return waited;
    if (device_.now() - before > timeout_) {
      return Error(ErrorCode::device, "work on stream " + std::to_string(stream.id) +
                                          " has not ended in " +
                                          std::to_string(timeout_.count / 1'000'000) + " ms");
    }
    return {};
  }
  Nanoseconds now() const override { return device_.now(); }

 private:
  SimDevice& device_;
  const int rank_, ranks_;
  const Nanoseconds timeout_;
};

struct Member {
  explicit Member(const SimOptions& sim, const HeapOptions& options)
      : device(sim), compute(device.new_stream()), heap(device, options) {}

  SimDevice device;
  Stream compute;
  DeviceHeap heap;
  std::unique_ptr<Nccl> nccl;
  std::unique_ptr<SimKernels> kernels;
  std::optional<Communicator> comm;
  CommHandle raw;
};

class SimRanks final : public Ranks {
 public:
  SimRanks(const SimRanksOptions& sim, const RanksOptions& options)
      : sim_(sim), world_(world_options(sim)), meeting_(sim.ranks, sim.patience) {
    SimOptions device;
    device.costs.launch = options.launch;
    for (int rank = 0; rank < sim.ranks; ++rank) {
      Member& member = *members_.emplace_back(std::make_unique<Member>(device, options.heap));
      member.nccl = world_.rank(rank, member.device);
      member.kernels = std::make_unique<SimKernels>(member.device, rank, sim.ranks, sim.timeout);
    }
  }
  ~SimRanks() override { (void)SimRanks::close(); }

  Status connect(const RanksOptions& options) {
    const Result<UniqueId> id = members_.front()->nccl->unique_id();
    const Result<UniqueId> raw_id = members_.front()->nccl->unique_id();
    if (!id || !raw_id) return id ? raw_id.error() : id.error();
    return in_threads([&](int rank) -> Status {
      Member& member = *members_[static_cast<std::size_t>(rank)];
      const CommunicatorOptions settings{
          .timeout = sim_.timeout, .patience = sim_.patience, .watch_every = {}};
      Result<Communicator> made = Communicator::create({*member.nccl, member.device, member.heap},
                                                       *id, sim_.ranks, rank, settings);
      if (!made) return std::move(made).error();
      member.comm = *std::move(made);
      if (options.raw) {
        Result<CommHandle> raw = member.nccl->init(*raw_id, sim_.ranks, rank, {.name = "raw"});
        if (!raw) return std::move(raw).error();
        member.raw = *raw;
      }
      return options.prepare ? member.comm->prepare() : Status();
    });
  }
  void opened() {
    if (sim_.opened) sim_.opened(world_);
  }

  int ranks() const override { return sim_.ranks; }
  bool has_rank_0() const override { return true; }
  std::string describe() const override {
    return std::to_string(sim_.ranks) + " ranks: threads of this process on simulated devices";
  }

  Status on_all(const std::function<Status(BenchRank&)>& work) override {
    return in_threads([&](int rank) {
      Member& member = *members_[static_cast<std::size_t>(rank)];
      BenchRank given{.rank = rank,
                      .ranks = sim_.ranks,
                      .nccl = *member.nccl,
                      .device = member.device,
                      .heap = member.heap,
                      .comm = *member.comm,
                      .raw = member.raw,
                      .kernels = *member.kernels,
                      .compute = member.compute,
                      .gather = [this, rank](double mine) { return meeting_.gather(rank, mine); }};
      return work(given);
    });
  }

  std::vector<std::string> close() override {
    std::vector<std::string> wrong;
    if (members_.empty()) return wrong;
    for (const std::string& mismatch : world_.mismatches()) wrong.push_back(mismatch);
    const Status closed = in_threads([&](int rank) -> Status {
      Member& member = *members_[static_cast<std::size_t>(rank)];
      Status ended = member.comm ? member.comm->close() : Status();
      if (member.raw.value != 0) (void)member.nccl->destroy(member.raw);
      return ended;
    });
    if (!closed) wrong.push_back(closed.error().message());
    for (std::size_t rank = 0; rank < members_.size(); ++rank) inspect(rank, wrong);
    members_.clear();
    return wrong;
  }

 private:
  static SimWorldOptions world_options(const SimRanksOptions& sim) {
    SimWorldOptions options = sim.world;
    options.ranks = sim.ranks;
    options.patience = std::chrono::milliseconds(sim.patience.count / 1'000'000);
    return options;
  }

  void inspect(std::size_t rank, std::vector<std::string>& wrong) const {
    const Member& member = *members_[rank];
    const std::string prefix = "rank " + std::to_string(rank) + ": ";
    if (const std::uint64_t races = member.device.race_count(); races > 0) {
      wrong.push_back(prefix + std::to_string(races) +
                      " races, the first: " + member.device.races().front().describe());
    }
    for (const std::string& broken : member.heap.validate()) wrong.push_back(prefix + broken);
    if (const auto left = member.heap.statistics().live_blocks.current; left > 0) {
      wrong.push_back(prefix + std::to_string(left) + " blocks are left");
    }
  }

  Status in_threads(const std::function<Status(int rank)>& work) {
    std::vector<Status> ended(members_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      threads.emplace_back([this, &work, &ended, rank] {
        ended[rank] = work(static_cast<int>(rank));
        if (!ended[rank]) meeting_.leave();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return first_error(ended);
  }
  // Of ranks that failed because another had, nothing new is learnt.
  static Status first_error(const std::vector<Status>& ended) {
    std::optional<Error> first;
    for (std::size_t rank = 0; rank < ended.size(); ++rank) {
      if (ended[rank]) continue;
      const Error& why = ended[rank].error();
      const bool follows = why.message().starts_with("another rank");
      if (first && (follows || !first->message().ends_with("another rank has failed"))) continue;
      first = Error(why.code(), "rank " + std::to_string(rank) + ": " + why.message());
    }
    return first ? Status(*first) : Status();
  }

  const SimRanksOptions sim_;
  SimWorld world_;
  Meeting meeting_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace

Result<std::unique_ptr<Ranks>> open_sim_ranks(const SimRanksOptions& sim,
                                              const RanksOptions& options) {
  if (sim.ranks < 1 || sim.ranks > 64) {
    return Error(ErrorCode::invalid_argument,
                 "--ranks " + std::to_string(sim.ranks) + ": of 1 to 64, since each is a thread");
  }
  auto ranks = std::make_unique<SimRanks>(sim, options);
  if (Status connected = ranks->connect(options); !connected) return std::move(connected).error();
  ranks->opened();
  return std::unique_ptr<Ranks>(std::move(ranks));
}

}  // namespace weir
