// A lock for what many threads meet at: they wait in a queue, each on a line of its own, and nobody
// waits for ever.
//
// Who comes while it is free takes it at once, and so does, for some 20 us, a thread that let go of
// it and wants it again: its caches have what the lock guards, and a hand-over costs more than a
// call. After that the first of the queue has its turn. Who waits spins for a while, then sleeps.
// Not recursive. Source: Mellor-Crummey and Scott 1991, "Algorithms for Scalable Synchronization on
// Shared-Memory Multiprocessors" (the queue).
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
  // A thread that waits, on its stack until it has the lock.
  struct Waiter {
    std::atomic<int> first{0};
    std::atomic<Waiter*> next{nullptr};
  };
  void wait_and_lock();
  void take_as_first();

  static constexpr int kFree = 0;
  static constexpr int kTaken = 1;
  // The first of the queue has waited long: nobody else takes the lock before it.
  static constexpr int kPromised = 2;

  alignas(64) std::atomic<int> state_{kFree};
  std::atomic<Waiter*> last_{nullptr};  // of the queue
};

using QueuedLock = ScopedLock<QueuedMutex>;

}  // namespace weir
