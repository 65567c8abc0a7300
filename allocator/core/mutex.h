// A lock that costs one atomic exchange when nobody contends for it, and a plain store to let go.
//
// Who finds it taken spins for a microsecond or so, then yields, then sleeps between looks: a
// holder that was descheduled, or that makes a driver call, is not disturbed, and unlock() has
// nobody to wake. Not fair: under contention the holder often takes it again, which keeps its lines
// in its cache. Not recursive.
#pragma once

#include <atomic>

#include "core/thread_annotations.h"

namespace weir {

class WEIR_CAPABILITY("mutex") Mutex {
 public:
  void lock() WEIR_ACQUIRE() {
    if (taken_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      wait_and_lock();
  }
  bool try_lock() WEIR_TRY_ACQUIRE(true) {
    return !taken_.exchange(true, std::memory_order_acquire);
  }
  void unlock() WEIR_RELEASE() { taken_.store(false, std::memory_order_release); }

 private:
  bool looks_free() const { return !taken_.load(std::memory_order_relaxed); }
  void wait_and_lock();

  std::atomic<bool> taken_{false};
};

class WEIR_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WEIR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() WEIR_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace weir
