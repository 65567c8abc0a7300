// SPDX-License-Identifier: Apache-2.0
// SimDevice's time on the GPU: streams that run behind the host, and events on them.
//
// All times are on the host's clock, and `now` is given by the caller. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/race_checker.h"
#include "weir/device.h"
#include "weir/sim_device.h"

namespace weir::sim {

constexpr std::uint64_t kDefaultStreamId = 1;  // the legacy default stream's

// The peers that work waits for: of each the latest number, which implies those before it.
class PeerSet {
 public:
  void add(const std::shared_ptr<SimPeers>& peers, std::uint64_t number);
  void join(const PeerSet& other);
  void forget_those_there();
  bool empty() const { return waits_.empty(); }
  // As SimPeers::await(), for each: not within a call of the device.
  Status await() const;

 private:
  struct Wait {
    std::shared_ptr<SimPeers> peers;
    std::uint64_t number = 0;
  };
  std::vector<Wait> waits_;
};

struct StreamState {
  bool alive = true;
  StreamIndex index = 0;  // in the checker
  ContextIndex context = 0;
  Nanoseconds tail;    // when the work queued so far will be done
  Nanoseconds waited;  // time that it stood still for events
  PeerSet peers;       // of the work queued so far

  void meet(const SimRendezvous& rendezvous) {
    if (rendezvous.peers == nullptr) return;
    peers.add(rendezvous.peers, rendezvous.peers->arrive(rendezvous.what));
  }
};

// What an event stands for that was recorded in a capture: the nodes that were the stream's tips.
struct CapturedMark {
  std::uint64_t capture = 0;  // its id; 0 if the event's latest record was not in a capture
  std::vector<std::uint32_t> tips;
};

struct EventState {
  bool recorded = false;  // ever, outside captures
  CapturedMark captured;
  Nanoseconds done_at;
  VectorClock mark;
  PeerSet peers;
};

class Streams {
 public:
  // The legacy default stream is there from the start, and is an ordinary stream here: it waits
  // for no other stream by itself.
  explicit Streams(RaceChecker& checker) : checker_(checker) { add(); }

  Stream add(ContextIndex context = 0);
  Status destroy(Stream stream, Nanoseconds now);
  // The stream of a driver's handle. Errors: device.
  Result<Stream> of_handle(void* handle) const;
  // The same stream, by its own id: of one that Weir met in a capture, the handle says which it is.
  Stream named(Stream stream) const;
  bool is_destroyed(Stream stream) const;
  // Null if there is none (any more).
  StreamState* find(Stream stream);
  const StreamState* find(Stream stream) const;

  EventHandle create_event();
  bool destroy_event(EventHandle event) { return events_.erase(event.value) != 0; }
  EventState* find(EventHandle event);
  const EventState* find(EventHandle event) const;
  std::uint64_t events() const { return events_.size(); }

  static void launch(StreamState& stream, Nanoseconds duration, Nanoseconds now);
  void record(EventState& event, StreamState& stream, Nanoseconds now);
  // The same for the work of all streams of these contexts, destroyed ones included.
  void record_all(EventState& event, std::span<const ContextIndex> contexts, Nanoseconds now);
  void wait(StreamState& stream, const EventState& event, Nanoseconds now);
  Nanoseconds all_done_at() const;

 private:
  RaceChecker& checker_;
  std::vector<std::unique_ptr<StreamState>> streams_;  // by id - 1; ids are not reused
  // Destroyed, and their work may still count; after that streams_ has null for them.
  std::vector<std::uint64_t> destroyed_;
  std::unordered_map<std::uint64_t, EventState> events_;
  std::uint64_t next_event_ = 1;
};

}  // namespace weir::sim
