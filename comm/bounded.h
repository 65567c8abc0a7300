// Calls that may never return, for as long as one is willing to wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// As long as a clock can wait: where somebody says "for ever", it would overflow.
inline std::chrono::nanoseconds waitable(Nanoseconds time) {
  constexpr std::chrono::nanoseconds kYear = std::chrono::hours(365 * 24);
  return std::min(std::chrono::nanoseconds(time.count), kYear);
}

// What `call` returns, made in a thread of its own; nothing: it has not returned after `patience`
// (by the real clock). Then it goes on, and what it uses must stay.
std::optional<Status> bounded(Nanoseconds patience, std::function<Status()> call);

}  // namespace weir
