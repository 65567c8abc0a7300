// SPDX-License-Identifier: Apache-2.0
// The events of a graph pool's streams: the device's own, and those of captures.
//
// A stream that is being captured into the pool goes by an identity of its own
// (Stream::in_capture()), beside its eager one: what was captured on it runs whenever the graph is
// launched, in no order with what was queued on it eagerly. An event recorded on such a stream is
// the set of graph nodes that its next node would have depended on; waiting for it makes those
// nodes dependencies of the waiter's next node, unless the graph gives that order already. When the
// capture ends, all of this is past.
//
// Threads: self-synchronised, by a lock that is taken after the pool's Timelines' and before the
// device heap's; the device is called under it.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/pool/node_set.h"
#include "core/time/timelines.h"
#include "weir/device.h"

namespace weir {

class PoolEvents final : public EventCalls {
 public:
  // Both must outlive this. `others` takes the events that the device refuses to destroy, for the
  // device heap to use or try again; null: they are the device's to keep.
  explicit PoolEvents(Device& device, Timelines* others = nullptr)
      : device_(device), others_(others) {}

  // One capture at a time. Whatever was recorded in the one that ends is past.
  void begin();
  void end();

  Result<EventHandle> create_event() override;
  Status destroy_event(EventHandle event) override;
  Status record(EventHandle event, Stream stream) override;
  Status wait(Stream stream, EventHandle event) override;
  Result<bool> query(EventHandle event) override;
  Status synchronize(EventHandle event) override;
  Status record_context(EventHandle event) override { return record(event, Stream::all()); }
  Status synchronize_context() override { return device_.synchronize_context(); }
  Nanoseconds now() const override { return device_.now(); }

 private:
  struct Event {
    EventHandle eager;  // the device's; none (0) until the first record on an eager stream
    bool is_captured = false;
    std::uint64_t capture = 0;  // number of the capture that it was recorded in
    std::vector<GraphNode> nodes;
  };
  // The nodes that a stream's next node is known to come after.
  using Past = NodeSet;

  bool is_past(const Event& event) const WEIR_REQUIRES(mutex_) {
    return !capturing_ || event.capture != capture_;
  }
  Status have_eager(Event& event) WEIR_REQUIRES(mutex_);
  Status wait_in_capture(Stream stream, const Event& event) WEIR_REQUIRES(mutex_);
  Result<std::vector<GraphNode>> not_reached(Stream stream, const std::vector<GraphNode>& nodes)
      WEIR_REQUIRES(mutex_);
  Status walk_back(Past& past, std::vector<GraphNode> from) WEIR_REQUIRES(mutex_);

  Device& device_;
  Timelines* const others_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, Event> events_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t last_event_ WEIR_GUARDED_BY(mutex_) = 0;
  bool capturing_ WEIR_GUARDED_BY(mutex_) = false;
  std::uint64_t capture_ WEIR_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint64_t, Past> pasts_ WEIR_GUARDED_BY(mutex_);  // by Stream::id
};

}  // namespace weir
