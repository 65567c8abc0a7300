// SPDX-License-Identifier: Apache-2.0
// Callbacks that a program adds and that any thread may call. Self-synchronised by one lock, under
// which none is called.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace weir {

template <class Function>
class Callbacks {
 public:
  // An empty one is not added.
  void add(Function callback) {
    if (!callback) return;
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(callback));
    any_.store(true, std::memory_order_relaxed);
  }
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // In the order in which they were added.
  std::vector<Function> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::vector<Function> all_;
};

}  // namespace weir
