// SPDX-License-Identifier: Apache-2.0
// What a communicator, its collectives, their works and the graphs that hold them have in common.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/bounded.h"
#include "comm/comm_streams.h"
#include "comm/registered_memory.h"
#include "comm/watchdog.h"
#include "weir/comm/communicator.h"

namespace weir {

// A communicator's operations are in a capture, or in its graph, which hold this as long as they
// live: NCCL waits for the graph when the communicator ends. The driver may hold the last
// reference: the destructor makes no call to the device, and needs no CommState.
class InGraph {
 public:
  explicit InGraph(std::shared_ptr<std::atomic<int>> graphs) : graphs_(std::move(graphs)) {
    ++*graphs_;
  }
  ~InGraph() { --*graphs_; }
  InGraph(const InGraph&) = delete;
  InGraph& operator=(const InGraph&) = delete;

 private:
  const std::shared_ptr<std::atomic<int>> graphs_;  // the communicator's count
};

// With a capture that a CaptureScope ends, and its Graph. The communicators of a capture agree on
// it, and watch the graph's launches.
struct CapturedCommunicator final : CaptureResource {
  CapturedCommunicator(std::shared_ptr<CommState> of, std::shared_ptr<InGraph> in)
      : state(std::move(of)), in_graph(std::move(in)) {}
  const std::shared_ptr<CommState> state;
  const std::shared_ptr<InGraph> in_graph;
};

// Of a communicator that was moved from.
Error moved_away();

class CommState : public std::enable_shared_from_this<CommState> {
 public:
  CommState(CommContext context, CommHandle handle, int ranks, int rank,
            CommunicatorOptions options);
  // Nothing is given back that close() did not: NCCL may wait for ever for what is still alive.
  ~CommState();

  // Keeps what the context refers to until the last communicator of it is gone; before other calls.
  void keep(std::shared_ptr<void> context_owner) { context_owner_ = std::move(context_owner); }
  const std::shared_ptr<void>& context_owner() const { return context_owner_; }

  Status prepare();
  // Held for a whole call about the communicator. The call may wait for the communicator's other
  // ranks, and may fail().
  [[nodiscard]] std::unique_lock<std::mutex> lock_calls() { return std::unique_lock(calls_); }
  // Held for one call of NCCL's about the communicator. fail() waits for it, up to 1 s, before it
  // revokes NCCL's communicator. Whoever calls fail() must not hold it.
  [[nodiscard]] std::unique_lock<std::timed_mutex> lock_nccl() {
    return std::unique_lock(nccl_calls_);
  }
  // Makes the call in a thread of its own, and waits for it for `host_timeout`. Nothing: it did not
  // return; close() waits for it once more.
  std::optional<Status> in_time(Nanoseconds host_timeout, std::function<Status()> call);
  Status status() const;
  // As status(); and an error while it is suspended.
  Status usable() const;
  bool closed() const;
  Status poll();
  void fail(const Error& error);
  Status close();
  // As Communicator's.
  Status suspend();
  Status resume();

  using Point = WorkPoint;
  // Runs the group after the work of `stream` and after the points, which are of the stream's
  // capture epoch: all eager, or all of its capture. It runs on `stream` itself, or, if `overlap`,
  // on a communication stream. Returns the point of its end.
  Result<Point> run(std::span<const Operation> group, Stream stream, bool overlap,
                    std::span<const Point> after = {});
  // As Communicator's.
  static Result<std::vector<Work>> run_together(std::span<const Communicator::Part> asked,
                                                Where where);
  // In a capture, the communicator joins the capture, as in run().
  Result<Point> take_point(Stream stream);
  // Makes work queued on `stream` from now on run after the point, which is of the stream's capture
  // epoch; a stream in no capture joins the capture of a captured point. Errors: capture (the point
  // is of another epoch, or its capture is over); device.
  Status wait(Stream stream, const Point& point);

  // Sends this rank's outcome of a capture to the other ranks, and checks that all are equal.
  Status agree(std::uint64_t capture, const Status& mine);
  Status launched(Stream stream) { return watchdog_.launched(stream); }
  // What every rank says in the same call, at most 191 bytes, through the communicator that ranks
  // agree with. If a rank does not call, ranks are out of step, and the communicator ends. Errors:
  // invalid_argument (not prepared; a rank made another call); device.
  Result<std::vector<std::string>> gather_said(const std::string& call, const std::string& mine);
  // Host-waits for what the stream holds, at most `host_timeout`. Errors: device; they do not name
  // the communicator.
  Status finish(Stream stream);

  // Memory registered with NCCL for this communicator, in order of the calls.
  std::shared_ptr<RegisteredMemory> add_memory(Bytes segment);
  void remove_memory(const RegisteredMemory* memory);

  const CommContext context;
  const CommHandle handle;
  const int ranks, rank;
  const CommunicatorOptions options;
  std::atomic<bool> prepared = false;
  // Alive, that captured operations. The driver may count down after the state is gone.
  const std::shared_ptr<std::atomic<int>> graphs = std::make_shared<std::atomic<int>>(0);

  Error error(ErrorCode code, const std::string& what) const;

 private:
  std::shared_ptr<void> context_owner_;  // outlives all that follows

  // enter() makes the stream wait for earlier work; NCCL queues the operations; leave() fences the
  // blocks that they use.
  struct Entered {
    Stream stream;                   // that the operations run on
    CommStream* captured = nullptr;  // null: eager
    bool overlap = false;
  };
  Status check(std::span<const Operation> group) const;
  // These two change nothing. May work of the communicator (the operation; null: none) be part of
  // the stream's capture, if it is in one?
  Result<CaptureInfo> may_use(Stream stream, const Operation* operation) const;
  Result<CaptureInfo> may_enter(const Operation& first, Stream stream,
                                std::span<const Point> after) const;
  Result<Entered> enter(const Operation& first, Stream stream, bool overlap,
                        std::span<const Point> after);
  Status enqueue(std::span<const Operation> group, Stream stream);
  Status note(std::span<const Operation> group, Stream stream);  // in a group of NCCL's
  // Of run_together(): what one communicator is asked for, and where the outcome goes.
  struct Part {
    CommState* state;
    std::span<const Operation> group;
    Work* work;
    Entered entered;
  };
  static Status enqueue_together(std::span<const Part> parts, std::span<CommState* const> in_order,
                                 std::size_t& blamed);
  // `queued`: what NCCL returned.
  Result<Point> leave(std::span<const Operation> group, const Entered& entered,
                      const Status& queued);
  Result<Point> leave_eager(std::span<const Operation> group, const Entered& entered,
                            const Status& queued);
  Result<Point> leave_captured(std::span<const Operation> group, const Entered& entered,
                               const Status& queued);
  // Fences all memory that the group uses, and returns the point, if there is one.
  Result<std::optional<Fence>> fence_used(std::span<const Operation> group, const Entered& entered);
  Result<CommStream*> join_capture(Stream stream, std::uint64_t id);
  Result<Stream> fork(Stream stream, CommStream* captured);
  Result<EventHandle> record_captured(CommStream& captured, Stream stream);
  // Calls visit(block) for each block of registered memory that the group uses.
  template <class Visit>
  void visit_registered(std::span<const Operation> group, Visit visit) const;
  void end_with(const Error& failure);    // as fail(), of an error that names the communicator
  void revoke(CommHandle control);        // and `handle`
  Status finish_whenever(Stream stream);  // without bounds
  Status finish_in_time(std::function<Status()> wait);
  void await_late();
  Status connect(CommStream& comm_stream);
  Status suspend_or_resume(const char* call, bool suspends);
  void run_watchdog();
  void stop_watchdog();

  std::mutex calls_;             // one call at a time; guards comm_streams_
  std::timed_mutex nccl_calls_;  // after calls_; see lock_nccl()
  CommStreams comm_streams_;
  Watchdog watchdog_;
  CommHandle control_;  // written under both locks
  // By NCCL; under calls_, or in the call that in_time() makes.
  bool control_suspended_ = false, handle_suspended_ = false;
  std::atomic<bool> suspended_ = false;  // either
  std::vector<const void*> used_;        // by the group that is queued; kept for its capacity

  std::atomic<bool> ended_ = false;  // it failed, or was closed
  mutable std::mutex state_mutex_;   // of what follows
  std::optional<Error> failure_;
  bool revoked_ = false, closed_ = false, stop_ = false;
  std::condition_variable stopped_;
  std::thread watchdog_thread_;
  std::vector<BoundedCall> late_;  // that did not return in time

  std::atomic<bool> has_memories_ = false;  // or had
  mutable std::mutex memories_mutex_;       // of what follows
  std::uint64_t last_memory_ = 0;
  std::vector<std::shared_ptr<RegisteredMemory>> memories_;
};

}  // namespace weir
