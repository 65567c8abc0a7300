// SPDX-License-Identifier: Apache-2.0
// A communicator: one rank's part of a group of ranks that exchange data, each with a GPU.
//
//   Result<Communicator> world = Communicator::world(allocator);   // of all ranks of the launch
//   Result<Work> sum = world->all_reduce(gradient, gradient, count, DataType::float32, {}, stream);
//
// An operation runs on the caller's stream, after the work that the stream holds so far; work that
// is queued on the stream later runs after the operation. The blocks of the device heap that the
// operation uses may be deallocated as soon as the call returns. (The caller must keep all other
// memory until the work is done.)
//
// Overlap: operations that are asked for with overlapped(stream) run on a communication stream,
// beside later work of the caller's stream:
//
//   Result<Work> sum = world->all_reduce(..., overlapped(compute));
//   heap.deallocate(gradient);           // at once: the block carries a fence
//   Status waited = sum->wait(compute);  // where the result is needed: on the GPU, never the host
//
// In a capture (`stream` is being captured into a graph pool) the operation becomes part of the
// graph. The communicator must be prepared; an unprepared one refuses the operation, and the
// capture stays intact. With overlap Weir forks a communication stream, and joins it if a
// CaptureScope ends the capture; if the program ends the capture by other means, a captured stream
// must wait() for each Work.
//
// NCCL itself waits forever for a rank that is missing. Each communicator has a watchdog thread,
// which looks for errors of NCCL's and for operations that do not end, and then ends the
// communicator: later operations return the error that the watchdog found. Memory is intact, and
// the process can go on without the other ranks.
//
// Threads: any thread may call; operations of several threads are queued one at a time. All ranks
// must ask for operations in the same order.
// Order of destruction: first the graphs of its operations, then registered buffers, then the
// communicator, then the heap. A communicator that was moved from may be destroyed or assigned to,
// nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weir/comm/nccl.h"
#include "weir/comm/operation.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

class Allocator;
class CommState;

struct CommunicatorOptions {
  std::string name = "world";  // appears in messages and in NCCL's logs
  // Longest time that an operation, or the launch of a graph, may take by the device's clock
  // (simulated time on a simulated device). While more than 512 operations are queued, several in a
  // row may be timed as one, with the sum of their limits, so that one that hangs is found later.
  // Zero: no limit. The time begins when the operation is queued or, if that is later, when the
  // communicator's operation before it is seen to end. It includes the wait for earlier work of the
  // caller's stream.
  Nanoseconds timeout{std::int64_t{600} * 1'000'000'000};
  // Longest time that create(), prepare(), split(), end_capture() and close() wait for other ranks.
  // Always real time, and more than zero.
  Nanoseconds host_timeout{std::int64_t{120} * 1'000'000'000};
  // How often the watchdog thread looks. With zero there is no thread, and only poll() looks.
  Nanoseconds watch_every{100'000'000};
};

// What a rank's communicators run on. All three must outlive the communicators.
struct CommContext {
  Nccl& nccl;
  Device& device;
  DeviceHeap& heap;
};

// Where an operation runs: on this stream of the caller's; or, with overlapped(), on the
// communication stream, after the work that the caller's stream holds so far.
struct Where {
  Where(Stream callers) : stream(callers) {}  // NOLINT(google-explicit-constructor)
  Stream stream;
  bool overlap = false;
};
inline Where overlapped(Stream stream) {
  Where where = stream;
  where.overlap = true;
  return where;
}

// The end of an operation, for Work.
struct WorkPoint {
  // The end of an eager operation. If there is none, wait() waits for all that `stream` holds at
  // that call.
  std::optional<Fence> fence;
  Stream stream;                 // the operation runs on it
  std::uint64_t capture = 0;     // the id of the operation's capture; 0 if it is eager
  std::vector<GraphNode> nodes;  // the last nodes of a captured operation
};

// An operation that was queued. A Work may be destroyed after all else, but wait() must come before
// the communicator is closed; for a captured operation, before the capture ends.
class Work {
 public:
  Work() = default;  // no operation: wait() does nothing

  // Makes work queued on `stream` from now on run after the operation. If the operation ran on the
  // caller's stream, that stream need not wait; another one may wait longer: for later work there,
  // too. If the operation was captured, `stream` must be in that capture, or in none (it then
  // joins). Errors: capture (the operation was captured, and the stream is in another capture, or
  // the capture is over; or the operation was eager, and the stream is being captured); device.
  Status wait(Stream stream) const;
  bool captured() const { return end_.capture != 0; }

 private:
  friend class Communicator;
  Work(std::shared_ptr<CommState> state, WorkPoint end)
      : state_(std::move(state)), end_(std::move(end)) {}
  std::shared_ptr<CommState> state_;
  WorkPoint end_;
};

class Communicator {
 public:
  // Makes the communicator of all ranks of this launch (weir/comm/launch.h), each on the device of
  // its allocator that has the local rank's number (or the only one), and prepares it: loads NCCL,
  // finds the other ranks, connects. Without a launcher it has one rank. On a SimDevice it has one
  // simulated rank, whatever the launcher says. Errors: those of load_nccl(), find_launch(),
  // rendezvous(), create() and prepare().
  static Result<Communicator> world(Allocator& allocator, const CommunicatorOptions& options = {});
  // Returns once all ranks have called it. Errors: invalid_argument; device (a rank did not call
  // within `host_timeout`, or NCCL refused).
  static Result<Communicator> create(CommContext context, const UniqueId& id, int ranks, int rank,
                                     const CommunicatorOptions& options = {});
  // The destructor calls close(), and logs its error. If graphs of a CaptureScope, or registered
  // buffers, are alive then, the last of them to go closes the communicator.

  // Returns what the communicator runs on.
  const CommContext& context() const;
  int rank() const;
  int ranks() const;

  // The operations. Counts are NCCL's (weir/comm/operation.h). Where NCCL works in place, `send`
  // may equal `receive`; where one buffer has a part for each rank, the other may be this rank's
  // part. Otherwise the buffers must not overlap. Errors: invalid_argument; capture (the
  // communicator is not prepared; the capture is already invalidated; no pool serves it); device
  // (NCCL refused, which ends the communicator); the error that ended the communicator before.
  Result<Work> all_reduce(const void* send, void* receive, std::uint64_t count, DataType type,
                          ReduceOp reduction, Where where) {
    return run({OperationKind::all_reduce, send, receive, count, type, reduction}, where);
  }
  Result<Work> all_gather(const void* send, void* receive, std::uint64_t count, DataType type,
                          Where where) {
    return run({OperationKind::all_gather, send, receive, count, type, {}}, where);
  }
  Result<Work> reduce_scatter(const void* send, void* receive, std::uint64_t count, DataType type,
                              ReduceOp reduction, Where where) {
    return run({OperationKind::reduce_scatter, send, receive, count, type, reduction}, where);
  }
  // Runs any operation, or several as one group (NCCL: ncclGroupStart, ncclGroupEnd). Two ranks
  // that send to each other must each do the send and the receive in one group, else both sends may
  // wait forever. An empty group gives an empty Work.
  Result<Work> run(const Operation& operation, Where where) {
    return run(std::span<const Operation>(&operation, 1), where);
  }
  Result<Work> run(std::span<const Operation> group, Where where);

  // Connects what would otherwise connect at first use: rings and trees, and this rank with every
  // other rank. Afterwards any operation can be captured, even the first of its kind. All ranks
  // call it; the host waits. If a rank calls later than another's `host_timeout`, prepare() fails
  // on all ranks, and their communicators end. NCCL keeps some tens of MiB of the GPU for a second
  // communicator, over which Weir's ranks agree, and during the call takes 64 MiB more. A second
  // call does nothing.
  Status prepare();
  bool prepared() const;

  // Ends the capture, and agrees with the other ranks that all have captured the same operations: a
  // graph that differs between ranks would wait forever. (Sends and receives are not compared: they
  // differ between ranks by nature.) The host waits. All ranks call it; one whose communicator has
  // ended tells the others, and waits 1 s at most. Other communicators (at most 12) may have
  // operations in the capture if all their ranks are ranks of this one. Errors: invalid_argument
  // (not prepared; a rank made another call that ranks agree in); capture (names a rank whose
  // capture failed or differs, or whose communicator has ended); device (a rank did not call: the
  // communicator has ended). After an error no rank has a graph.
  Result<Graph> end_capture(CaptureScope& capture);
  // Launches the graph. This communicator, and each other one that has operations in the graph,
  // watches that the launch ends; a communicator that can't watch the launch is ended, though the
  // graph runs. Errors: those of Graph::launch; whatever ended one of the communicators.
  Status launch(Graph& graph, Stream stream);

  // Makes a communicator of all ranks that gave the same color, in order of `key`; a rank with a
  // negative color gets none. All ranks call it, in no capture. If a rank does not call within the
  // `host_timeout` of `options`, this communicator ends. On the rank that calls too late split()
  // may succeed, but prepare() of the new communicator fails.
  Result<std::optional<Communicator>> split(int color, int key,
                                            const CommunicatorOptions& options = {});

  // Returns the error that ended the communicator, or success while it works. poll() looks for
  // errors first, as the watchdog does.
  Status status() const;
  Status poll();
  // Ends running operations on this rank; the watchdogs of other ranks find out by themselves.
  // Waits up to 1 s for a call into NCCL that another thread is making. A longer call is taken to
  // wait for other ranks, and is ended.
  void abort(const std::string& why);
  // Waits for the communicator's operations, then gives back what NCCL and Weir hold for it; each
  // takes at most `host_timeout`. No other call may be running. If ranks are threads of one
  // process, let them meet at a barrier after close(): in it NCCL waits for all GPUs of the
  // process, and hangs if one already waits for this rank. Errors: invalid_argument (graphs that
  // captured its operations are alive, or registered buffers are open: the communicator stays as it
  // is); device (an operation, which the message names, did not end by itself and was aborted; or
  // NCCL did not release something, which is kept; all else is gone in both cases).
  Status close();

 private:
  friend class Bucketer;
  friend class RegisteredBuffer;
  explicit Communicator(std::shared_ptr<CommState> state) : state_(std::move(state)) {}

  std::shared_ptr<CommState> state_;
};

}  // namespace weir
