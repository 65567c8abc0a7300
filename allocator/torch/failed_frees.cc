// SPDX-License-Identifier: Apache-2.0
#include "torch/failed_frees.h"

#include <sstream>
#include <string>
#include <utility>

namespace weir::pytorch {

void FailedFrees::note(const void* block, const Error& error) {
  std::ostringstream message;
  message << "an earlier free of the block at " << block
          << " failed, and its memory stays in use: " << error.message();
  const std::lock_guard lock(mutex_);
  if (first_) {
    ++later_;
  } else {
    first_ = Error(error.code(), message.str(), error.driver_code());
  }
  any_.store(true, std::memory_order_relaxed);
}

std::optional<Error> FailedFrees::take() {
  const std::lock_guard lock(mutex_);
  std::optional<Error> first = std::exchange(first_, std::nullopt);
  const std::uint64_t later = std::exchange(later_, 0);
  any_.store(false, std::memory_order_relaxed);
  if (first && later > 0) {
    first = Error(first->code(),
                  first->message() + " (and " + std::to_string(later) + " later frees failed)",
                  first->driver_code());
  }
  return first;
}

}  // namespace weir::pytorch
