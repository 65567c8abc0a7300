// Finds out that operations do not end. NCCL waits for a rank that does not come for ever, so the
// host looks at events now and then. It takes no part in the heap's time: what is seen here must
// not change where memory is placed.
//
// The operations of the communicator's own stream are counted as they are queued, and an event is
// recorded behind them when somebody looks: queueing costs a count. Graphs are launched on streams
// that may be gone when somebody looks, so their event is recorded at once.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weir/comm/operation.h"
#include "weir/device.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

std::string seconds(Nanoseconds time);  // "1.0 s"

// Self-synchronised. Only events that were recorded outside of captures are asked about.
class Watch {
 public:
  Watch(Device& device, Nanoseconds timeout, int ranks)
      : device_(device), timeout_(timeout), ranks_(ranks) {}
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Queued on the communicator's eager stream.
  void queued(const Operation& operation);
  // A graph was launched there.
  Status launched(Stream stream);

  // Looks. `eager`: the communicator's eager stream, if it has one. Errors: device (something does
  // not end, which is named; or the device itself is in error).
  Status poll(std::optional<Stream> eager);
  // The first eager operation that was not seen to end, by number and kind; empty: there is none.
  std::string first_open();

 private:
  // An event behind the first `count` operations.
  struct Mark {
    EventHandle event;
    std::uint64_t count = 0;
    Nanoseconds since;
    bool set = false;
  };
  // As many operations are named by what they were.
  static constexpr std::size_t kNamed = 256;

  Status poll_operations(Stream eager);
  Status poll_launches();
  std::string first_open_locked() const;
  Status set(Mark& mark, Stream stream, std::uint64_t count);
  bool is_late(const Mark& mark) const;

  Device& device_;
  const Nanoseconds timeout_;
  const int ranks_;

  std::mutex polling_;  // one at a time; before mutex_
  std::mutex mutex_;    // of what follows; not held while an event is asked about
  std::array<Operation, kNamed> latest_{};
  std::uint64_t queued_ = 0, done_ = 0;
  Mark operations_;
  std::uint64_t launches_ = 0;
  Mark first_launch_, last_launch_;  // the oldest that is watched; the latest
};

}  // namespace weir
