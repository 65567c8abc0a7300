// SPDX-License-Identifier: Apache-2.0
// What a communicator, its works and the graphs that hold its operations have in common.
#pragma once

#include <atomic>
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
#include "comm/captures.h"
#include "comm/watchdog.h"
#include "weir/comm/communicator.h"

namespace weir {

// With a capture that a CaptureScope ends, and its Graph. Ranks agree on the communicators of a
// capture, which watch the graph's launches. `in_graph`: see CommState::graphs.
struct CapturedCommunicator final : CaptureResource {
  CapturedCommunicator(std::shared_ptr<CommState> of, std::shared_ptr<void> in)
      : state(std::move(of)), in_graph(std::move(in)) {}
  const std::shared_ptr<CommState> state;  // CommState::open()
  const std::shared_ptr<void> in_graph;    // goes first
};

constexpr Nanoseconds kSecond{1'000'000'000};  // that ranks which have ended wait for the others

// Host-waits for what the stream holds.
Status host_wait(EventCalls& device, Stream stream);

// Its destructor gives nothing back that close() did not: NCCL may wait for ever for what is still
// alive.
class CommState : public std::enable_shared_from_this<CommState> {
 public:
  // `owner`: as in create_comm_state().
  CommState(std::shared_ptr<void> owner, CommContext context, CommHandle handle, int ranks,
            int rank, CommunicatorOptions options);

  // Holds the communicator open: the last of these pointers that goes closes it, and logs an error.
  // Null: they are gone. What only uses the communicator has shared_from_this().
  std::shared_ptr<CommState> open() { return open_.lock(); }

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
  Status poll();
  void fail(const Error& error);
  Status close();
  // A registered buffer that could not be closed is gone. close() frees its memory by `left`, once
  // the device is done.
  void leave_to_close(std::function<Status()> left);

  // Runs the group after the work of `stream`: on `stream` itself, or, if `overlap`, on a
  // communication stream. Returns the point of its end.
  Result<WorkPoint> run(std::span<const Operation> group, Stream stream, bool overlap);
  // Makes work queued on `stream` from now on run after the point, which is of the stream's capture
  // epoch; a stream in no capture joins the capture of a captured point. Errors: capture (the point
  // is of another epoch, or its capture is over); device.
  Status wait(Stream stream, const WorkPoint& point);

  // What ranks compare of a capture, of one communicator.
  struct Entry {
    std::uint64_t group = 0;  // the communicator: the same number on its ranks alone
    std::uint64_t ranks = 0;
    CapturedOperations operations;
  };
  Entry captured(std::uint64_t capture);
  // A graph with its operations was launched.
  Status launched(Stream stream);
  // Every rank makes the same call, and has failed (`mine`), or passes what it captured; returns
  // what each rank captured. If a rank does not call, ranks are out of step, and the communicator
  // ends. If it has ended here, the others are told all the same, and waited for 1 s at most; the
  // error is what ended it. Errors: `failed` (a rank has failed); invalid_argument (not prepared; a
  // rank made another call); device.
  static constexpr std::size_t kMostSaid = 440, kMostEntries = kMostSaid / sizeof(Entry);
  Result<std::vector<std::vector<Entry>>> agree(const std::string& call, const Status& mine,
                                                ErrorCode failed,
                                                std::span<const Entry> captured = {});
  // Host-waits for its operations, and for what the stream holds, at most `host_timeout`. Errors:
  // device; they do not name the communicator.
  Status finish(std::optional<Stream> stream = {});

  const std::shared_ptr<void> owner;  // outlives all that follows
  const CommContext context;
  const CommHandle handle;
  const int ranks, rank;
  const CommunicatorOptions options;
  std::atomic<bool> prepared = false;
  std::atomic<int> registered = 0;  // RegisteredBuffer objects that are open
  // Captures, and their graphs, that have its operations and are alive: NCCL waits for them when
  // the communicator ends. Each holds an object that counts down as it goes. The driver may hold
  // the last reference, so that this makes no call to the device, and needs no CommState.
  const std::shared_ptr<std::atomic<int>> graphs = std::make_shared<std::atomic<int>>(0);

  // Names the communicator.
  Error error(ErrorCode code, const std::string& what) const;
  Error error(const Error& why) const { return error(why.code(), why.message()); }

 private:
  // enter() makes the stream wait for earlier work; NCCL queues the operations; leave() fences what
  // they use.
  struct Entered {
    Stream stream;                 // that the operations run on
    std::uint64_t capture = 0;     // its id, and
    Captured* captured = nullptr;  // what is known of it; null: eager
    bool overlap = false;
  };
  Result<Entered> enter(Stream stream, bool overlap, const CaptureInfo& info);
  Status enqueue(std::span<const Operation> group, Stream stream);
  // `queued`: what NCCL returned.
  Result<WorkPoint> leave(std::span<const Operation> group, const Entered& entered,
                          const Status& queued);
  // Fences all memory that the group uses, and returns the point, if there is one.
  Result<std::optional<Fence>> fence_used(std::span<const Operation> group, const Entered& entered);
  Result<Captured*> join_capture(Stream stream, std::uint64_t id);
  Result<Stream> fork(Stream stream, const Entered& entered);
  // Ends what waits on control_: ranks can't agree any more.
  void end_agreement();
  void await_late(Nanoseconds longest);
  Status connect(Stream stream);
  Status tell(Status mine);
  Status connect_all(Stream stream, Address memory, std::uint64_t whole);

  std::mutex calls_;                // one call at a time; guards captures_
  std::timed_mutex nccl_calls_;     // after calls_; see lock_nccl()
  std::timed_mutex control_calls_;  // after nccl_calls_; the same for control_
  Captures captures_;
  Watchdog watchdog_;
  std::atomic<CommHandle> control_{};  // that ranks agree with; 0 before prepare()
  std::atomic<bool> gave_up_ = false;  // prepare() waits for its call no more
  std::uint64_t group_ = 0;            // Entry::group, from prepare() on
  std::vector<const void*> used_;      // by the group that is queued; kept for its capacity

  std::atomic<bool> ended_ = false;  // it failed, or was closed
  mutable std::mutex state_mutex_;   // of what follows
  std::optional<Error> failure_;
  bool closed_ = false;
  std::vector<BoundedCall> late_;                       // that did not return in time
  std::vector<std::function<Status()>> left_segments_;  // by registered buffers

  friend std::shared_ptr<CommState> open_comm_state(std::shared_ptr<CommState> state);
  std::weak_ptr<CommState> open_;
  std::jthread ticker_;  // polls every `watch_every`; goes first
};

// The first CommState::open() of a new communicator.
std::shared_ptr<CommState> open_comm_state(std::shared_ptr<CommState> state);
// `owner` of what the context refers to, if somebody owns it: kept as long as the communicator, and
// as long as a call of NCCL's goes on that was not waited for to its end. Returns its open().
Result<std::shared_ptr<CommState>> create_comm_state(std::shared_ptr<void> owner,
                                                     CommContext context, const UniqueId& id,
                                                     int ranks, int rank,
                                                     const CommunicatorOptions& options);
// CommState::in_time() for the communicator's own host_timeout; an error names the communicator.
// `late`: what it says if the call did not return.
Status in_own_time(CommState& comm, const std::string& late, std::function<Status()> call);
// Memory of NCCL's; where there is too little, the heap first gives back what it holds idle, once
// the work on it is done. Errors: as Nccl::allocate_segment().
Result<Address> allocate_segment(const CommContext& context, Bytes bytes);
// Errors: capture (the stream is being captured; `remedy`: what to do); device.
Status check_not_captured(const CommState& comm, Stream stream, const std::string& remedy);
// Errors: invalid_argument (graphs that captured its operations are alive still after 0.1 s).
Status await_graphs(const CommState& comm);
// Tells the ranks of the first of these communicators how a capture of all of them ended here, and
// checks that all ranks have captured the same of each.
Status agree_on_capture(const std::vector<std::shared_ptr<CommState>>& all, std::uint64_t capture,
                        Status mine);

}  // namespace weir
