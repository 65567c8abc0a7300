// SPDX-License-Identifier: Apache-2.0
// Live and reserved bytes after each event of a recording.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "weir/event.h"
#include "weir/types.h"

namespace weir {

// Memory at one moment. Both of the values hold from then on.
struct MemoryPoint {
  static constexpr std::uint32_t kInitial = ~std::uint32_t{0};

  Nanoseconds time;
  Bytes live, reserved;
  std::uint32_t event = kInitial;  // that made it so; kInitial: what was there at the beginning
};

// Needs memory for what is live only. Not thread-safe.
class MemoryFold {
 public:
  // Whether the event is one that changes memory, be it to what it was.
  bool apply(const Event& event);
  Bytes live() const { return live_; }
  Bytes reserved() const { return reserved_; }

 private:
  Bytes live_, reserved_;
  std::unordered_map<std::uint64_t, Bytes> blocks_;  // by address
  std::unordered_map<std::uint32_t, Bytes> pages_;
};

}  // namespace weir
