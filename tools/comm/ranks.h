// SPDX-License-Identifier: Apache-2.0
// What `weir comm bench` and `weir comm scenario` run on: the ranks of this process, each with a
// device, a heap, a communicator, and what a program does on a GPU besides communication. They are
// threads on simulated devices or on GPUs, or one process of a launch.
//
// The programs of ranks end with their first error: what fails throws weir::Exception, which
// Ranks::on_all() turns into a Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "weir/allocator.h"
#include "weir/comm/communicator.h"
#include "weir/comm/launch.h"
#include "weir/comm/sim_nccl.h"
#include "weir/graph_pool.h"
#include "weir/result.h"
#include "weir/sim_device.h"

namespace weir {

class CudaDevice;

// The value, or an exception.
inline void need(const Status& status) {
  if (!status) throw Exception(status.error().code(), status.error().message());
}
template <class Value>
Value need(Result<Value> result) {
  if (!result) throw Exception(result.error().code(), result.error().message());
  return *std::move(result);
}

// A block of a device heap, which goes back with the last copy.
using Block = std::shared_ptr<void>;
inline Block allocate(DeviceHeap& heap, Bytes bytes, Stream stream) {
  return {need(heap.allocate(bytes, stream)),
          [&heap](void* block) { (void)heap.deallocate(block); }};
}

// What needs a GPU's kernels. Of one rank; its thread alone calls.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // A stream for the program's own work; it lives as long as the ranks.
  virtual Stream new_stream() = 0;
  // Queues work that uses this memory and takes `duration`. In a capture: a node.
  virtual void work(Stream stream, std::span<const Access> accesses, Nanoseconds duration) = 0;
  // Queues work that fills what `operations`, sums and moves of float32, read with data that `seed`
  // and the rank decide, and what they write with something else.
  virtual void fill(Stream stream, std::span<const Operation> operations, std::uint64_t seed) = 0;
  // How many elements that `operations` wrote are not what they should be after fill() with that
  // seed; the host waits. Nothing: this device moves no data, and nobody looked.
  virtual std::optional<std::uint64_t> count_wrong(Stream stream,
                                                   std::span<const Operation> operations,
                                                   std::uint64_t seed) = 0;
  // The host waits for the stream. Throws if that takes longer than an operation may.
  virtual void finish(Stream stream) = 0;
  // How long operations have to run before they are as fast as they get.
  virtual Nanoseconds warm_up_time() const { return {}; }
};

// A rank of this process, with all that it owns; what comes later uses what comes before.
struct BenchRank {
  int rank = 0, ranks = 1;
  std::shared_ptr<Nccl> nccl;
  CommHandle job;  // of all ranks, for gather() alone
  std::unique_ptr<Device> device;
  std::unique_ptr<Kernels> kernels;
  Stream compute = {};
  std::unique_ptr<DeviceHeap> heap = {};
  std::optional<Communicator> comm = {};
  CommHandle raw = {};            // another communicator of the same ranks, for NCCL alone
  bool knows_of_failure = false;  // of another rank, or of gather() itself

  // Every rank's `mine`, in order of rank; the host waits for them, so it is a barrier as well.
  // Throws if a rank failed, or does not come in time. `failed`: this one.
  template <class Value>
  std::vector<Value> gather(const Value& mine, bool failed = false) {
    struct Message {
      Value value;
      bool failed;
    };
    const Message message{mine, failed};
    const Exception another_failed(ErrorCode::device, "another rank has failed");
    constexpr Nanoseconds kTimeout{std::int64_t{600} * 1'000'000'000};
    if (std::exchange(knows_of_failure, true)) throw another_failed;
    const auto all =
        need(nccl->host_all_gather(job, std::as_bytes(std::span(&message, 1)), kTimeout));
    std::vector<Value> values;
    for (const std::vector<std::byte>& bytes : all) {
      Message theirs;
      std::memcpy(&theirs, bytes.data(), sizeof theirs);
      if (theirs.failed) throw another_failed;
      values.push_back(theirs.value);
    }
    knows_of_failure = false;
    return values;
  }
};

// What is asked of the ranks.
struct RanksOptions {
  bool prepare = true;      // Communicator::prepare() on each, before anything else
  bool raw = false;         // BenchRank::raw is wanted
  Nanoseconds launch = {};  // host time of a kernel launch, where that can be chosen
  HeapOptions heap = {};
};

class Ranks {
 public:
  // Connects the ranks, which have all but what has a default. `world`: of simulated ones.
  Ranks(std::string description, std::vector<BenchRank> ranks, const RanksOptions& options,
        const CommunicatorOptions& settings, std::shared_ptr<const SimWorld> world = {});
  ~Ranks() { (void)close(); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const std::string& describe() const { return description_; }  // "2 ranks: threads of ..."
  bool has_rank_0() const { return ranks_.front().rank == 0; }  // it prints; ask before close()
  // For each rank of this process, in a thread of its own. The first error, with its rank; where
  // another process's rank failed, an error too.
  Status on_all(const std::function<void(BenchRank&)>& work);
  // Ends everything. What was wrong with what ran, in words (races, ranks that disagreed, memory
  // that is left); none: nothing was found. Call it once, last.
  std::vector<std::string> close();

 private:
  const std::string description_;
  const std::shared_ptr<const SimWorld> world_;
  std::vector<BenchRank> ranks_;
};

// "3 ranks: threads of this process on ...".
std::string threads_on(int ranks, const std::string& where);
// Calls `work` for each, in threads of their own, and waits for them. Returns the first error that
// was thrown, by time: others may have failed because that rank had. `after_failure`: for ranks
// whose `work` threw, in their threads, once it was noted.
template <class Rank>
Status in_threads(std::vector<Rank>& ranks,
                  const std::function<void(std::type_identity_t<Rank>&)>& work,
                  const std::function<void(std::type_identity_t<Rank>&)>& after_failure = {}) {
  std::mutex mutex;
  std::optional<Error> first;
  std::vector<std::thread> threads;
  for (Rank& rank : ranks) {
    threads.emplace_back([&] {
      try {
        work(rank);
      } catch (const Exception& error) {
        std::unique_lock lock(mutex);
        const std::string who = "rank " + std::to_string(rank.rank) + ": ";
        if (!first) first.emplace(error.code(), who + error.what());
        lock.unlock();
        if (after_failure) after_failure(rank);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first ? Status(*first) : Status();
}

// A graph of what `queue` queues on the rank's compute stream. Its memory is the pool's.
template <class Queue>
Graph capture_graph(BenchRank& rank, GraphPool& pool, CaptureMode mode, Queue&& queue) {
  CaptureScope capture = need(CaptureScope::begin(pool, rank.compute, mode));
  queue();
  return need(rank.comm->end_capture(capture));
}

// Runs `step` so many times, eagerly or as launches of one graph. Returns the time of one; the host
// waits for the last.
template <class Step>
Nanoseconds time_steps(BenchRank& rank, int steps, bool captured, Step&& step) {
  GraphPool pool(*rank.heap);
  Graph graph;
  if (captured) graph = capture_graph(rank, pool, CaptureMode::global, step);
  rank.kernels->finish(rank.compute);
  const Nanoseconds begin = rank.device->now();
  for (int number = 0; number < steps; ++number) {
    captured ? need(rank.comm->launch(graph, rank.compute)) : step();
  }
  rank.kernels->finish(rank.compute);
  return {(rank.device->now() - begin).count / steps};
}

// New ranks, with new communicators and heaps: scenarios ask for them once a case. It outlives
// them.
using OpenRanks = std::function<std::unique_ptr<Ranks>(const RanksOptions&)>;

// Ranks of a simulated world. `opened` is called when they are open, before they do anything: to
// make them fail. Throws: invalid_argument; the errors of Communicator::create() and prepare().
std::unique_ptr<Ranks> open_sim_ranks(const SimWorldOptions& world, const RanksOptions& options,
                                      const std::function<void(SimWorld&)>& opened = {});

// Ranks on real GPUs. Started by a launcher (find_launch()), this process is one of them; alone, it
// has `ranks` threads, each with a GPU (0: one for each). What it opens may be opened again.
// Throws: the errors of find_launch() and rendezvous(); invalid_argument (more ranks than GPUs);
// unavailable (no driver, no NCCL); device.
OpenRanks cuda_ranks(const Environment& environment, int ranks);
// `device` lives longer. The first time the GPU is measured, some 50 ms. Not thread-safe. Throws:
// device.
std::unique_ptr<Kernels> open_cuda_kernels(CudaDevice& device, int rank, int ranks);

}  // namespace weir
