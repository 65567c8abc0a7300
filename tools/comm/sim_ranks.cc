// SPDX-License-Identifier: Apache-2.0
// Ranks on simulated devices.
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
  SimKernels(SimDevice& device, int rank, int ranks, Nanoseconds timeout)
      : device_(device), rank_(rank), ranks_(ranks), timeout_(timeout) {}

  Result<Stream> new_stream() override { return device_.new_stream(); }

  Status work(Stream stream, std::span<const UsedMemory> reads, std::span<const UsedMemory> writes,
              Nanoseconds duration) override {
    std::vector<Access> accesses;
    for (const UsedMemory& range : reads) accesses.push_back(Reads(range.pointer, range.bytes));
    for (const UsedMemory& range : writes) accesses.push_back(Writes(range.pointer, range.bytes));
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
    return device_.now() - before > timeout_ ? Status(late(stream, timeout_)) : Status();
  }
  Nanoseconds now() const override { return device_.now(); }

 private:
  SimDevice& device_;
  const int rank_, ranks_;
  const Nanoseconds timeout_;
};

class SimRanks final : public Ranks {
 public:
  SimRanks(const SimRanksOptions& sim, const RanksOptions& options)
      : Ranks(sim.ranks, sim.host_timeout), sim_(sim), world_(world_options(sim)) {
    SimOptions costs;
    costs.costs.launch = options.launch;
    for (int rank = 0; rank < sim.ranks; ++rank) add(open(rank, costs, options.heap));
  }
  ~SimRanks() override { (void)SimRanks::close(); }

  Status connect(const RanksOptions& options) {
    const Result<Ids> ids = make_ids(*world_.rank(0, *devices_.front()));
    if (!ids) return ids.error();
    // Simulated calls give up by themselves, before a communicator leaves them to their threads.
    const Nanoseconds longer = sim_.host_timeout + Nanoseconds{5'000'000'000};
    const CommunicatorOptions settings{
        .timeout = sim_.timeout, .host_timeout = longer, .watch_every = {}};
    Status connected = Ranks::connect(*ids, settings, options);
    if (connected && sim_.opened) sim_.opened(world_);
    return connected;
  }

  std::string describe() const override {
    if (sim_.ranks == 1) return "1 rank: a thread of this process on a simulated device";
    return std::to_string(sim_.ranks) + " ranks: threads of this process on simulated devices";
  }

  std::vector<std::string> close() override {
    std::vector<std::string> wrong;
    if (devices_.empty()) return wrong;
    for (const std::string& mismatch : world_.mismatches()) wrong.push_back(mismatch);
    for (std::string& found : Ranks::close()) wrong.push_back(std::move(found));
    devices_.clear();
    return wrong;
  }

 private:
  static SimWorldOptions world_options(const SimRanksOptions& sim) {
    SimWorldOptions options = sim.world;
    options.ranks = sim.ranks;
    options.host_timeout = std::chrono::milliseconds(sim.host_timeout.count / 1'000'000);
    return options;
  }

  LocalRank open(int rank, const SimOptions& costs, const HeapOptions& heap) {
    auto device = std::make_unique<SimDevice>(costs);
    devices_.push_back(device.get());
    LocalRank local;
    local.rank = rank;
    local.kernels = std::make_unique<SimKernels>(*device, rank, sim_.ranks, sim_.timeout);
    local.compute = device->new_stream();
    local.nccl = world_.rank(rank, *device);
    local.heap = std::make_unique<DeviceHeap>(*device, heap);
    local.device = std::move(device);
    return local;
  }

  std::vector<std::string> inspect(const LocalRank& rank) const override {
    std::vector<std::string> wrong = Ranks::inspect(rank);
    const SimDevice& device = *devices_[static_cast<std::size_t>(rank.rank)];
    if (const std::uint64_t races = device.race_count(); races > 0) {
      wrong.push_back(std::to_string(races) +
                      " races, the first: " + device.races().front().describe());
    }
    return wrong;
  }

  const SimRanksOptions sim_;
  SimWorld world_;
  std::vector<SimDevice*> devices_;  // by rank; Ranks owns them
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
  return std::unique_ptr<Ranks>(std::move(ranks));
}

}  // namespace weir
