// SPDX-License-Identifier: Apache-2.0
// NCCL without a GPU: the ranks of one process, each on its own simulated device. An operation is a
// kernel on its stream that accesses the memory that the operation reads and writes, so the
// happens-before checker sees missing synchronisation. No data moves.
//
// SimNccl keeps the rules of NCCL that programs break: ranks must ask for the same operations in
// the same order (a mismatch is noted, SimWorld says which); an operation that connects lazily
// cannot do so in a capture; it refuses operations of an aborted communicator, registrations of a
// part of a segment, and operations whose buffers overlap without being in place.
//
// As on a GPU, an operation, or the launch of a graph that contains operations, ends once all
// participating ranks have launched it. The devices' clocks are independent, so query() and
// synchronize() of a SimDevice wait for the other ranks in real time, at most
// SimWorldOptions::host_timeout. Once such a wait was in vain, nothing waits for those ranks again:
// query() returns "not ended"; synchronize() and Nccl::destroy(), which on a GPU would wait
// forever, return an error that names the operation and the missing ranks. A Communicator's
// watchdog measures CommunicatorOptions::timeout by its device's clock: in simulated time, which
// only calls of that SimDevice move, such as advance(). CommunicatorOptions::host_timeout is real
// time.
//
// init(), split() and host_all_gather() wait for the other ranks, at most
// SimWorldOptions::host_timeout (host_all_gather(): or its own timeout, if that is less); the last
// two fail once their rank's communicator has ended. So each rank needs a thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weir/comm/nccl.h"
#include "weir/sim_device.h"

namespace weir {

struct SimWorldOptions {
  int ranks = 1;
  // True: making a communicator connects rings and trees (NCCL_RUNTIME_CONNECT=0). Pairs of ranks
  // always connect at their first operation (Operation::is_point_to_point()).
  bool connects_at_once = true;
  Nanoseconds host_time = 3_us;  // of the caller, for each operation
  Nanoseconds latency = 15_us;   // of an operation's kernel, plus its bytes / bytes_per_nanosecond
  double bytes_per_nanosecond = 300;
  std::chrono::milliseconds host_timeout{10'000};  // real time that a call waits for other ranks
};

// Calls that can be made to fail.
enum class NcclCall {
  init,
  split,
  destroy,
  enqueue,
  allocate_segment,
  register_range,
};

// How many exist now, of all ranks together.
struct SimCounts {
  std::uint64_t communicators = 0, segments = 0, registrations = 0, streams = 0;
};

// The state that the ranks share. It outlives their Nccls. Self-synchronised.
class SimWorld {
 public:
  explicit SimWorld(SimWorldOptions options = {});
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // Returns the NCCL of one rank on a device, which must outlive it, or null if there is no such
  // rank.
  std::unique_ptr<Nccl> rank(int rank, SimDevice& device);

  // Makes the `nth` call of this kind of `rank` from now on (1: the next) fail once.
  void fail(int rank, NcclCall call, std::uint64_t nth);
  // The `nth` operation of `rank` from now on never ends there, nor does later work of its stream;
  // on the other ranks it ends.
  void hang(int rank, std::uint64_t nth);
  // From now on async_error() of every communicator of `rank` returns this error, or success if the
  // text is empty.
  void set_async_error(int rank, std::string error);

  // Returns a description of each operation for which ranks asked differently.
  std::vector<std::string> mismatches() const;
  std::uint64_t operations(int rank) const;  // queued so far
  SimCounts counts() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace weir
