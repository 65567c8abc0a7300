// SPDX-License-Identifier: Apache-2.0
// Errors of frees, kept until an allocation can report them: a free happens in destructors, which
// must not throw.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "weir/result.h"

namespace weir::pytorch {

// Threads: self-synchronised.
class FailedFrees {
 public:
  // The free of `block` failed with `error`, and its memory stays in use.
  void note(const void* block, const Error& error);
  // Has any free failed since the last take()?
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // The first error since the last take(), with the block's address and the number of later ones.
  std::optional<Error> take();

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::optional<Error> first_;  // guarded by mutex_
  std::uint64_t later_ = 0;     // guarded by mutex_
};

}  // namespace weir::pytorch
