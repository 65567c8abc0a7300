// SPDX-License-Identifier: Apache-2.0
// Calls that may never return, bounded by a host timeout.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// As long as a clock can wait: where somebody says "for ever", it would overflow.
inline std::chrono::nanoseconds waitable(Nanoseconds time) {
  constexpr std::chrono::nanoseconds kYear = std::chrono::hours(365 * 24);
  return std::min(std::chrono::nanoseconds(time.count), kYear);
}

// A call that is made in a thread of its own, at once.
class BoundedCall {
 public:
  explicit BoundedCall(std::function<Status()> call);
  // What it returned, once; nothing: it has not returned after `host_timeout` (by the real clock).
  // Then it goes on, and what it uses must stay, until another wait() says that it has.
  std::optional<Status> wait(Nanoseconds host_timeout);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Calls `look` in a thread of its own, every so often, until it says that it is enough. A period of
// zero: never.
class Ticker {
 public:
  Ticker(Nanoseconds period, std::function<bool()> look);
  ~Ticker() { stop(); }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  void stop();  // waits for a look that goes on

 private:
  std::jthread thread_;
};

}  // namespace weir
