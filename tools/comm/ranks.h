// SPDX-License-Identifier: Apache-2.0
// What `weir comm bench` and `weir comm scenario` run on: the ranks of this process, each with a
// device, a heap, a communicator, and what a program does on a GPU besides communication.
//
// Two implementations ship: threads of this process on simulated devices, and on GPUs threads or
// the processes of a launch.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weir/comm/communicator.h"
#include "weir/comm/launch.h"
#include "weir/comm/sim_nccl.h"
#include "weir/graph_pool.h"
#include "weir/result.h"
#include "weir/sim_device.h"

namespace weir {

// Memory that work uses.
struct UsedMemory {
  void* pointer = nullptr;
  Bytes bytes;
};

// What needs a GPU's kernels. Of one rank; its thread alone calls.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // A stream for the program's own work; it lives as long as the ranks.
  virtual Result<Stream> new_stream() = 0;
  // Queues work that reads and writes these and takes `duration`. In a capture: a node.
  virtual Status work(Stream stream, std::span<const UsedMemory> reads,
                      std::span<const UsedMemory> writes, Nanoseconds duration) = 0;
  // Queues work that fills what `operations`, sums and moves of float32, read with data that `seed`
  // and the rank decide, and what they write with something else.
  virtual Status fill(Stream stream, std::span<const Operation> operations, std::uint64_t seed) = 0;
  // How many elements that `operations` wrote are not what they should be after fill() with that
  // seed; the host waits. Nothing: this device moves no data, and nobody looked.
  virtual Result<std::optional<std::uint64_t>> count_wrong(Stream stream,
                                                           std::span<const Operation> operations,
                                                           std::uint64_t seed) = 0;
  // Runs the graph in `orders` random orders that its edges allow, and counts the reads that saw
  // another write than in the order of capture. Nothing: the device runs it as it likes.
  virtual std::optional<std::uint64_t> wrong_reads(const Graph& graph, std::uint64_t orders) = 0;
  // The host waits for the stream. Errors: device (it took longer than an operation may).
  virtual Status finish(Stream stream) = 0;
  // How long operations have to run before they are as fast as they get.
  virtual Nanoseconds warm_up_time() const { return {}; }
  // The host's clock.
  virtual Nanoseconds now() const = 0;
};

// Of Kernels::finish().
inline Error late(Stream stream, Nanoseconds timeout) {
  return {ErrorCode::device, "work on stream " + std::to_string(stream.id) + " has not ended in " +
                                 std::to_string(timeout.count / 1'000'000) + " ms"};
}

struct BenchRank {
  int rank = 0, ranks = 1;
  Nccl& nccl;
  Device& device;
  DeviceHeap& heap;
  Communicator& comm;
  CommHandle raw;  // another communicator of the same ranks, for NCCL alone
  Kernels& kernels;
  Stream compute;
  // Every rank's `mine`, in order of rank; the host waits for them, so it is a barrier as well.
  // Errors: device (a rank failed, or did not come in time).
  std::function<Result<std::vector<double>>(double mine)> gather;
};

// What is asked of the ranks.
struct RanksOptions {
  bool prepare = true;  // Communicator::prepare() on each, before anything else
  bool raw = false;     // BenchRank::raw is wanted
  Nanoseconds launch;   // host time of a kernel launch, where that can be chosen
  HeapOptions heap;
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

class Ranks {
 public:
  virtual ~Ranks() = default;

  int ranks() const { return all_; }  // in all, those of other processes too
  bool has_rank_0() const { return !locals_.empty() && locals_.front().rank == 0; }  // it prints
  virtual std::string describe() const = 0;  // "2 ranks: threads of this process on ..."
  // For each rank of this process, in a thread of its own. The first error, with its rank.
  virtual Status on_all(const std::function<Status(BenchRank&)>& work);
  // Ends everything. What was wrong with what ran, in words (races, ranks that disagreed, memory
  // that is left); none: nothing was found. Call it once, last.
  virtual std::vector<std::string> close();

 protected:
  // Of `all` ranks; threads that wait for one another do so for `host_timeout`.
  Ranks(int all, Nanoseconds host_timeout)
      : all_(all), host_timeout_(host_timeout), sent_(static_cast<std::size_t>(all)) {}

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
  const Nanoseconds host_timeout_;
  std::vector<LocalRank> locals_;

  std::mutex mutex_;  // of what follows
  std::condition_variable arrived_;
  std::vector<double> sent_, gathered_;
  int here_ = 0;
  std::uint64_t round_ = 0;
  bool failed_ = false;  // one of them: nobody waits for the others any more
};

// A graph of what `queue` queues on the rank's compute stream. Its memory is the pool's.
template <class Queue>
Result<Graph> capture_graph(BenchRank& rank, GraphPool& pool, CaptureMode mode, Queue&& queue) {
  Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute, mode);
  if (!capture) return std::move(capture).error();
  if (Status queued = queue(); !queued) return std::move(queued).error();
  return rank.comm.end_capture(*capture);
}

// New ranks, with new communicators and heaps: scenarios ask for them once a case.
using OpenRanks = std::function<Result<std::unique_ptr<Ranks>>(const RanksOptions&)>;

struct SimRanksOptions {
  int ranks = 2;
  SimWorldOptions world;
  Nanoseconds host_timeout{std::int64_t{10} * 1'000'000'000};  // with ranks that don't come
  Nanoseconds timeout{std::int64_t{600} * 1'000'000'000};      // of an operation
  // Called when the ranks are open, before they do anything: to make them fail.
  std::function<void(SimWorld&)> opened;
};
// Errors: invalid_argument; those of Communicator::create() and prepare().
Result<std::unique_ptr<Ranks>> open_sim_ranks(const SimRanksOptions& sim,
                                              const RanksOptions& options);

// Ranks on real GPUs. Started by a launcher (find_launch()), this process is one of them; alone, it
// has `ranks` threads, each with a GPU (0: one for each). What it opens may be opened again.
// Errors: those of find_launch() and rendezvous(); invalid_argument (more ranks than GPUs);
// unavailable (no driver, no NCCL); device.
Result<OpenRanks> cuda_ranks(const Environment& environment, int ranks);

}  // namespace weir
