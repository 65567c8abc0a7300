// NCCL without a GPU: the ranks of one process, each on a simulated device of its own. An operation
// is a kernel on its stream that reads and writes what the operation does, so the happens-before
// checker sees what a program left unordered. It moves no data.
//
// It obeys NCCL's rules where programs break them: ranks must ask for the same operations in the
// same order; what connects lazily cannot do so in a capture; nothing is asked of a communicator
// that was aborted, or of memory that is not registered whole.
//
// An operation, or the launch of a graph that holds one, ends once all ranks that take part have
// launched it, as on a GPU. Devices' clocks know nothing of each other, so who asks whether it has
// ended (query(), synchronize()) waits for the other ranks by the real clock, `patience` at most,
// and does not wait again for ranks that it once waited for in vain: query() says no then, and
// synchronize() and destroy(), which would wait for ever, are errors that name the operation and
// who is missing. Time that a Communicator's watch measures (CommunicatorOptions::timeout) is that
// of its device, and so simulated: it is over once advance() or other calls have moved that clock.
// CommunicatorOptions::patience is real time.
//
// init(), split(), shrink() and exchange() wait for the other ranks as long, each time: have a
// thread for each rank. An id serves one init() of each rank; one that comes twice is refused.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weir/comm/nccl.h"
#include "weir/sim_device.h"

namespace weir {

struct SimWorldOptions {
  int ranks = 1;
  // Are rings and trees connected when a communicator is made (NCCL_RUNTIME_CONNECT=0)? Sends and
  // receives connect at the first use of each pair always.
  bool connects_at_once = true;
  Nanoseconds host_time = 3_us;                // of the caller, for each operation
  Nanoseconds latency = 15_us;                 // of an operation's kernel, and
  double bytes_per_nanosecond = 300;           // on top
  std::chrono::milliseconds patience{10'000};  // real time, with ranks that don't come
};

// Calls that can be made to fail.
enum class NcclCall { init, split, destroy, enqueue, group_end, allocate_segment, register_range };

// What the ranks share. It outlives their Nccls. Self-synchronised.
class SimWorld {
 public:
  explicit SimWorld(SimWorldOptions options = {});
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // The device must outlive it. Null: there is no such rank.
  std::unique_ptr<Nccl> rank(int rank, SimDevice& device);

  // Makes the `nth` call of this kind of `rank` from now on (1: the next) fail once.
  void fail(int rank, NcclCall call, std::uint64_t nth);
  // Makes the `nth` operation of `rank` from now on never end there, nor those after it; the other
  // ranks' parts do.
  void hang(int rank, std::uint64_t nth);
  // From now on every communicator of `rank` reports this error; empty: none.
  void set_async_error(int rank, std::string error);

  // What ranks did not agree on, said in words. Empty: they asked for the same so far.
  std::vector<std::string> mismatches() const;
  // Connections made by an operation that found none; those in captures failed.
  std::uint64_t lazy_connections() const;
  std::uint64_t refused_in_captures() const;
  std::uint64_t operations(int rank) const;  // queued so far
  std::uint64_t made_communicators() const;  // so far, by all ranks
  std::uint64_t live_communicators() const;  // of all ranks
  std::uint64_t live_segments() const;
  std::uint64_t live_registrations() const;
  std::uint64_t live_streams() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace weir
