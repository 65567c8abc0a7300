// SPDX-License-Identifier: Apache-2.0
// Finds out that operations do not end. NCCL waits forever for a rank that does not come, so the
// host looks at events now and then. The watchdog takes no part in the heap's time: what it sees
// must not change where memory is placed.
//
// An event is recorded behind each eager operation, and behind each launch of a graph: at once, as
// the caller's stream may be captured or destroyed by the time that the watchdog looks. NCCL runs
// them in the order in which they were queued. The first that has not ended is timed: from when it
// was queued, or from when the one before it was seen to have ended, whichever is later. Each may
// take the timeout, however many are queued. At most kMost events are kept: where more work is
// queued, one event stands for several operations in a row, which may take as many times as long
// together.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/comm/operation.h"
#include "weir/device.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

std::string seconds(Nanoseconds time);  // "1.0 s"

// Self-synchronised. Only events that were recorded outside of captures are asked about.
class Watchdog {
 public:
  Watchdog(EventCalls& device, Nanoseconds timeout, int ranks)
      : device_(device), timeout_(timeout), ranks_(ranks) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Operations that NCCL runs as one were queued on the stream; none: a graph was launched there.
  Status queued(std::span<const Operation> group, Stream stream);

  // Looks. Errors: device (something does not end, which is named; or the device itself is in
  // error).
  Status poll();
  // Host-waits for what was queued so far.
  Status synchronize();
  // The first operation or launch that was not seen to end, by number and kind; empty: there is
  // none.
  std::string first_open();
  // Destroys all events: the device may go afterwards. Nothing is queued any more. Returns the
  // first error.
  Status close();

 private:
  // An event behind what is counted up to `count`: `pieces` groups, or launches, since the mark
  // before it, of which `first` is the first; no operation: a launch.
  struct Mark {
    EventHandle event;
    std::optional<Operation> first;
    std::uint64_t count = 0;
    std::int64_t pieces = 1;
  };
  static constexpr std::size_t kMost = 1024;
  static constexpr std::array<std::int64_t, 4> kPieces{1, 1, 2, 8};  // of a mark, by how full it is

  std::string first_open_locked() const;

  EventCalls& device_;
  const Nanoseconds timeout_;
  const int ranks_;

  std::mutex polling_;  // one at a time; before mutex_
  std::mutex mutex_;    // of what follows; not held while an event is asked about
  std::uint64_t queued_ = 0, done_ = 0;
  std::deque<Mark> marks_;         // only poll() and close() take the first away
  std::vector<EventHandle> idle_;  // for marks to come; none once a look found no mark
  Nanoseconds since_;              // from when the first mark is timed
};

}  // namespace weir
