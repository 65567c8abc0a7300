// SPDX-License-Identifier: Apache-2.0
// What many threads did to one device heap: every call, and the stamps between which it took place.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sanitized.h"
#include "weir/device_heap.h"
#include "weir/result.h"
#include "weir/sim_device.h"
#include "weir/types.h"

namespace weir::test {

// A reading of the one clock of a history. Moment `m` is the time between stamps `m` and `m + 1`: a
// call had its effect at one of the moments `begin` .. `end - 1`.
using Stamp = std::uint64_t;
inline constexpr Stamp kNever = std::numeric_limits<Stamp>::max();

// Every reading is another, and a call that ended before another began has the lower stamps.
class StampClock {
 public:
  Stamp now() { return next_.fetch_add(1, kOrder); }

 private:
  // Under ThreadSanitizer the clock must order nothing, or it would hide the races it is to see.
  // (There the counter itself is exact all the same, on the machines that have the sanitizer.)
  static constexpr std::memory_order kOrder =
      kThreadSanitizer ? std::memory_order_relaxed : std::memory_order_seq_cst;
  alignas(64) std::atomic<Stamp> next_{1};
};

struct Call {
  enum class Kind : std::uint8_t {
    allocate,
    deallocate,
    fence,
    record_stream,
    find,
    snapshot,
    statistics,
    validate,
    trim,
    set_limit,
    reset_peaks,
    retire,
  };

  Kind kind = Kind::find;
  std::uint32_t thread = 0;
  Stamp begin = 0, end = 0;
  std::uint64_t stream = 0;  // Stream::id that was named
  Bytes bytes;               // that were named
  // The pointers that were named; of an allocate, the block that was given out.
  std::vector<Address> addresses;

  std::optional<ErrorCode> error;
  std::string message;              // of the error
  std::vector<BlockInfo> blocks;    // of a find (none: nothing found) or a snapshot
  std::vector<PageInfo> pages;      // of a snapshot
  std::vector<std::string> broken;  // of a validate
  std::shared_ptr<Statistics> statistics;
  std::vector<Segment> segments;  // of an allocate: the bytes of pages under the block
};

using History = std::vector<Call>;

std::string describe(const Call& call);
std::string hex(Address address);

}  // namespace weir::test
