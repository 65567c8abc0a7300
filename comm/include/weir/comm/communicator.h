// A communicator: one rank's part of a group of ranks that exchange data, each with a GPU.
//
//   Result<Communicator> world = Communicator::create({nccl, device, heap}, id, ranks, rank);
//   Status ready = world->prepare();          // connects everything: captures are possible now
//   Collectives collectives(*world);          // weir/comm/collectives.h
//
// The other ranks notice what fails on one rank. NCCL itself waits forever for a missing rank; a
// watchdog thread of the communicator looks for errors and for operations that do not end, and ends
// the communicator. After that every call returns the error that the watchdog found. Memory is
// intact, and the process can go on, with shrink() or without other ranks.
//
// Threads: any thread may call; calls are made one after the other. All ranks must ask for
// operations in the same order.
// Order of destruction: graphs that captured its operations, then the communicator, then the heap.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/comm/nccl.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/result.h"

namespace weir {

class CaptureGroup;
class CommState;

struct CommunicatorOptions {
  std::string name = "world";  // in messages and in NCCL's logs
  // Longest time that an operation, or the launch of a graph, may take by the device's clock
  // (simulated time on a simulated device); zero: no operation is timed. An operation is timed from
  // when it was queued, or from when the operation before it was seen to have ended; time that it
  // waits for earlier work of the caller's stream counts.
  Nanoseconds timeout{std::int64_t{600} * 1'000'000'000};
  // Longest time that the host waits for other ranks in a call that needs them: create, split,
  // agree, close. Always real time.
  Nanoseconds host_timeout{std::int64_t{120} * 1'000'000'000};
  std::optional<Nanoseconds> patience = std::nullopt;  // old name of host_timeout
  // Does the watchdog end the communicator when it finds an error? Otherwise streams may wait
  // forever.
  bool aborts = true;
  // How often the watchdog thread looks; zero: there is no thread, and only poll() looks.
  Nanoseconds watch_every{100'000'000};
  std::optional<int> max_ctas = std::nullopt;  // of the GPU, for one operation; none: NCCL chooses
  std::optional<int> most_blocks = std::nullopt;  // old name of max_ctas
};

// What a rank's communicators run on. All three must outlive the communicators.
struct CommContext {
  Nccl& nccl;
  Device& device;
  DeviceHeap& heap;
};
using CommPlace [[deprecated("use CommContext")]] = CommContext;

// A moved-from communicator has no rank (-1 of 0) and no name. Its calls, and calls of collectives
// made of it, return errors (invalid_argument).
class Communicator {
 public:
  // Returns once all ranks have called it. Errors: invalid_argument; device (a rank did not call
  // within `host_timeout`, or NCCL refused).
  static Result<Communicator> create(CommContext context, const UniqueId& id, int ranks, int rank,
                                     const CommunicatorOptions& options = {});
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  // close(); an error is logged.
  ~Communicator();

  int rank() const;
  int ranks() const;
  const std::string& name() const;

  // Connects what would otherwise connect at first use: rings and trees, and this rank with every
  // other rank. Afterwards any operation can be captured, even the first of its kind. All ranks
  // call it; the host waits. It costs some tens of MiB of NCCL's own memory, for a second
  // communicator that ranks agree with. A second call does nothing.
  Status prepare();
  bool prepared() const;

  // Ends the capture, and agrees with the other ranks that all have captured the same operations of
  // this communicator: a graph that differs between ranks would wait forever. All ranks call it;
  // the host waits. If other communicators of this rank have operations in the capture, their ranks
  // agree too, in the order in which the communicators joined the capture: one communicator ends
  // the capture, the same one on all of its ranks. Errors: capture (names a rank whose capture
  // failed or differs; then no rank has a graph); device (a rank did not call).
  Result<Graph> end_capture(CaptureScope& capture);
  // Launches the graph, and watches that the launch ends; so do the other communicators whose
  // operations end_capture() found in the graph. Errors: whatever ended one of the communicators;
  // those of Graph::launch.
  Status launch(Graph& graph, Stream stream);

  // Makes a communicator of all ranks that gave the same color, in order of `key`; a rank with a
  // negative color gets none. All ranks call it, in no capture. If a rank does not call within the
  // `host_timeout` of `options`, this communicator ends; shrink() does the same.
  Result<std::optional<Communicator>> split(int color, int key, CommunicatorOptions options = {});
  // Makes a communicator of all ranks but the excluded ones, which do not call. On a communicator
  // that failed, shrink() first ends the operations that are still running.
  Result<Communicator> shrink(std::span<const int> excluded, CommunicatorOptions options = {});

  // What ended the communicator; success: it works. poll() looks for errors first, as the watchdog
  // does.
  Status status() const;
  Status poll();
  // Ends running operations on this rank; the watchdogs of other ranks find out by themselves.
  // Waits up to 1 s for a call into NCCL that another thread is making. A call that takes longer is
  // waiting for other ranks, and is ended.
  void abort(const std::string& why);
  // Waits for the communicator's operations, and gives back what NCCL and Weir hold for it, in at
  // most `host_timeout` for each of the two. No other call may be running. If ranks are threads of
  // one process, synchronise them after close(): NCCL then waits for all GPUs of the process, and
  // so for every rank that waits for this one. Errors: invalid_argument (graphs that captured its
  // operations are alive: the communicator stays as it is); device (an operation did not end: the
  // message names it, and it was ended; or NCCL did not release its part: that part is kept, all
  // else is gone).
  Status close();

 private:
  friend class Bucketer;
  friend class Collectives;
  friend class RegisteredPool;
  explicit Communicator(std::shared_ptr<CommState> state);
  std::vector<std::shared_ptr<CommState>> others_in(
      const std::shared_ptr<CaptureGroup>& captured) const;
  std::shared_ptr<CommState> state_;
};

}  // namespace weir
