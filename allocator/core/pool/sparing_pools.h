// SPDX-License-Identifier: Apache-2.0
// The graph pools that may have idle memory to spare: who needs memory asks these, and no others.
//
// A pool enters itself whenever something happened in it, by which memory may have become idle, and
// is taken off when it is asked; it stays entered while it has idle memory that can't go yet. So a
// pool that a program leaves alone costs the requests of others nothing.
//
// Threads: self-synchronised. The lock is taken after all others of the core, and none is taken
// under it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace weir {

class CapturePool;

class SparingPools {
 public:
  // `id`: GraphPool::id().
  void enter(std::uint64_t id, std::weak_ptr<CapturePool> pool) {
    const std::lock_guard lock(mutex_);
    pools_.insert_or_assign(id, std::move(pool));
    count_.store(pools_.size(), std::memory_order_release);
  }
  void leave(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    pools_.erase(id);
    count_.store(pools_.size(), std::memory_order_release);
  }
  // All that are entered, in the order in which they were opened. None is any more.
  std::vector<std::shared_ptr<CapturePool>> take() {
    std::vector<std::shared_ptr<CapturePool>> taken;
    if (count_.load(std::memory_order_acquire) == 0) return taken;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entered] : pools_) {
      if (std::shared_ptr<CapturePool> pool = entered.lock()) taken.push_back(std::move(pool));
    }
    pools_.clear();
    count_.store(0, std::memory_order_release);
    return taken;
  }

 private:
  std::atomic<std::size_t> count_{0};
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<CapturePool>> pools_;  // guarded by mutex_
};

}  // namespace weir
