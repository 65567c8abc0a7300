// SPDX-License-Identifier: Apache-2.0
// Work that waits for other processes: NCCL's kernels, which end when other ranks come.
//
// An event of the whole context that is recorded while such work runs covers it. A stream that
// waits for the event waits for the other ranks too, and if one of them waits for that stream, none
// of them goes on. So page heaps ask here before they have a stream wait for an event of the
// context.
//
// Threads: self-synchronised, by a lock that is taken after those of pages and before Timelines'.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "core/base/mutex.h"
#include "core/time/fence_set.h"

namespace weir {

class RemoteWork {
 public:
  // `is_over`: is the work up to there seen to be done? It may ask the device.
  explicit RemoteWork(std::function<bool(const FenceSet&)> is_over)
      : is_over_(std::move(is_over)) {}

  // The work up to `end` waits for other processes.
  void note(Fence end) {
    const MutexLock lock(mutex_);
    ends_.join(end);
    any_.store(true, std::memory_order_relaxed);
  }

  // Was work noted that is not known to be over? Takes no lock.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Does such work go on, as far as can be seen now? Asks the device, up to the first that does;
  // what is seen to be over is forgotten.
  bool goes_on() {
    const MutexLock lock(mutex_);
    FenceSet left;
    for (const Fence end : ends_) {
      if (!left.empty() || !is_over_(end)) left.join(end);
    }
    ends_ = std::move(left);
    any_.store(!ends_.empty(), std::memory_order_relaxed);
    return !ends_.empty();
  }

 private:
  const std::function<bool(const FenceSet&)> is_over_;
  std::atomic<bool> any_{false};
  Mutex mutex_;
  FenceSet ends_ WEIR_GUARDED_BY(mutex_);  // of each stream, the last
};

}  // namespace weir
