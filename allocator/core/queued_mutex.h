// A mutex for data that many threads use at once. Threads that find it taken wait in a queue, each
// on a cache line of its own, and each gets the lock in bounded time.
//
// A free lock goes to the first thread that asks for it. For some 20 us that may also be a thread
// that has just released it: its caches hold what the lock guards, and a hand-over costs more than
// a call. Then the lock is promised to the first thread of the queue, and no other thread gets it
// before. A waiting thread spins for a while, then sleeps. Not recursive. Source: Mellor-Crummey
// and Scott 1991, "Algorithms for Scalable Synchronization on Shared-Memory Multiprocessors" (the
// queue).
#pragma once

#include <atomic>

#include "core/mutex.h"
#include "core/thread_annotations.h"

namespace weir {

class WEIR_CAPABILITY("mutex") QueuedMutex {
 public:
  void lock() WEIR_ACQUIRE() {
    if (!try_lock()) [[unlikely]]
      wait_and_lock();
  }
  bool try_lock() WEIR_TRY_ACQUIRE(true) {
    int free = kFree;
    return state_.compare_exchange_strong(free, kTaken, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  void unlock() WEIR_RELEASE() {
    if (state_.fetch_sub(kTaken, std::memory_order_release) != kTaken) [[unlikely]]
      state_.notify_one();
  }

 private:
  // A waiting thread, on its stack until it has the lock.
  struct Waiter {
    std::atomic<int> first{0};
    std::atomic<Waiter*> next{nullptr};
  };
  void wait_and_lock();
  void take_as_first();

  static constexpr int kFree = 0;
  static constexpr int kTaken = 1;
  // To the first thread of the queue: no other thread takes the lock before.
  static constexpr int kPromised = 2;

  alignas(64) std::atomic<int> state_{kFree};
  std::atomic<Waiter*> last_{nullptr};  // of the queue
};

using QueuedLock = ScopedLock<QueuedMutex>;

}  // namespace weir
