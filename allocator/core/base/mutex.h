// SPDX-License-Identifier: Apache-2.0
// A lock that costs one atomic exchange when nobody contends for it, and a plain store to let go.
//
// Who finds it taken spins for a microsecond or so, then yields, then sleeps between looks: a
// holder that was descheduled, or that makes a driver call, is not disturbed, and unlock() has
// nobody to wake. Not fair: under contention the holder often takes it again, which keeps its lines
// in its cache. Not recursive.
#pragma once

#include <atomic>

#include "core/base/thread_annotations.h"

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
  // Just now. To look takes the cache line from nobody.
  bool looks_free() const { return !taken_.load(std::memory_order_relaxed); }

 private:
  void wait_and_lock();

  std::atomic<bool> taken_{false};
};

template <class Lockable>
class WEIR_SCOPED_CAPABILITY ScopedLock {
 public:
  explicit ScopedLock(Lockable& mutex) WEIR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ScopedLock() WEIR_RELEASE() { mutex_.unlock(); }
  ScopedLock(const ScopedLock&) = delete;
  ScopedLock& operator=(const ScopedLock&) = delete;

 private:
  Lockable& mutex_;
};
using MutexLock = ScopedLock<Mutex>;

// Says that this thread spins.
inline void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace weir
