// SPDX-License-Identifier: Apache-2.0
// A mutex for data that many threads use at once. Threads that find it taken wait in a queue, each
// on a cache line of its own, and each gets the lock in bounded time.
//
// A lock stays for a while with the thread that takes it again and again: its caches hold what the
// lock guards, and to move that costs more than a call. So the first thread of the queue takes a
// free lock only if nobody has taken it between two looks. After some 100 us the lock is promised
// to the first, and no other gets it before. A waiting thread spins for a few microseconds, then
// sleeps. Not recursive. Source: Mellor-Crummey and Scott 1991, "Algorithms for Scalable
// Synchronization on Shared-Memory Multiprocessors" (the queue).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/thread_annotations.h"

namespace weir {

class WEIR_CAPABILITY("mutex") QueuedMutex {
 public:
  void lock() WEIR_ACQUIRE() {
    if (!try_lock()) [[unlikely]]
      wait_and_lock();
  }
  bool try_lock() WEIR_TRY_ACQUIRE(true) {
    const std::uint32_t state = seen();
    return (state & (kTaken | kPromised)) == 0 && take(state);
  }
  void unlock() WEIR_RELEASE() {
    if ((state_.fetch_sub(kTaken, std::memory_order_release) & kPromised) != 0) [[unlikely]]
      state_.notify_one();
  }

 private:
  // A waiting thread, on its stack until it has the lock.
  struct Waiter {
    std::atomic<int> first{0};
    std::atomic<Waiter*> next{nullptr};
  };

  std::uint32_t seen() const { return state_.load(std::memory_order_relaxed); }
  static bool is_taken(std::uint32_t state) { return (state & kTaken) != 0; }
  // Since `before` was seen.
  static bool is_taken_anew(std::uint32_t now, std::uint32_t before) {
    return (now | kTaken) != (before | kTaken);
  }
  // `state`: free, as it was seen.
  bool take(std::uint32_t state) {
    return state_.compare_exchange_strong(state, (state & ~kPromised) + kOnce + kTaken,
                                          std::memory_order_acquire, std::memory_order_relaxed);
  }
  void wait_and_lock();
  void take_as_first();

  static constexpr std::uint32_t kTaken = 1;
  // To the first thread of the queue: no other thread takes the lock before.
  static constexpr std::uint32_t kPromised = 2;
  // From there on: how often it was taken, modulo 2^30.
  static constexpr std::uint32_t kOnce = 4;

  alignas(64) std::atomic<std::uint32_t> state_{0};
  std::atomic<Waiter*> last_{nullptr};  // of the queue
};

using QueuedLock = ScopedLock<QueuedMutex>;

// A part of an object that a lock guards, with the lock held for as long as this lives. An object
// that hands its part out in this form only lets nobody reach it without the lock.
template <class Part>
class Locked {
 public:
  Locked(std::unique_lock<QueuedMutex> lock, Part& part) : lock_(std::move(lock)), part_(part) {}

  // False: the lock was only tried, and another thread holds it. Then the part may not be used.
  explicit operator bool() const { return lock_.owns_lock(); }
  Part* operator->() const { return &part_; }

 private:
  std::unique_lock<QueuedMutex> lock_;
  Part& part_;
};

}  // namespace weir
