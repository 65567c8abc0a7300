// SPDX-License-Identifier: Apache-2.0
// Calls that may never return, bounded by a host timeout.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
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
  explicit BoundedCall(std::function<Status()> call) {
    std::packaged_task<Status()> task([call = std::move(call)]() mutable {
      Status status = call();
      call = nullptr;  // what it holds goes before anybody is told
      return status;
    });
    returned_ = task.get_future();
    std::thread(std::move(task)).detach();
  }
  // What it returned, once; nothing: it has not returned after `host_timeout` (by the real clock).
  // Then it goes on, and what it uses must stay, until another wait() says that it has.
  std::optional<Status> wait(Nanoseconds host_timeout) {
    const auto state = returned_.wait_for(waitable(host_timeout));
    return state == std::future_status::ready ? std::optional(returned_.get()) : std::nullopt;
  }

 private:
  std::future<Status> returned_;
};

}  // namespace weir
