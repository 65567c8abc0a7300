// SPDX-License-Identifier: Apache-2.0
#include "core/base/queued_mutex.h"

#include <chrono>
#include <thread>

namespace weir {
namespace {

// The first thread of the queue looks at the lock about once a microsecond, the others at their own
// place in the queue: a few times, and then they sleep, since a thread that spins slows its
// neighbours on the processor, the holder among them. The first sleeps for kPatience only; then the
// lock is promised to it.
constexpr int kPausesBetweenLooks = 24, kLooks = 4, kLooksPromised = 32;
constexpr std::chrono::microseconds kPatience{100};
// Another thread is at work between two instructions, unless the system has taken its processor.
constexpr int kPausesForALink = 256;

void pause_between_looks() {
  for (int i = 0; i < kPausesBetweenLooks; ++i) pause_processor();
}

}  // namespace

void QueuedMutex::wait_and_lock() WEIR_NO_THREAD_ANALYSIS {
  Waiter me;
  if (Waiter* const before = last_.exchange(&me, std::memory_order_acq_rel)) {
    before->next.store(&me, std::memory_order_release);
    const auto is_first = [&] { return me.first.load(std::memory_order_acquire) != 0; };
    for (int look = 0; look < kLooks && !is_first(); ++look) pause_between_looks();
    me.first.wait(0, std::memory_order_acquire);
  }
  take_as_first();
  Waiter* next = me.next.load(std::memory_order_acquire);
  if (next == nullptr) {
    Waiter* last = &me;
    if (last_.compare_exchange_strong(last, nullptr, std::memory_order_acq_rel)) return;
    // Another thread has joined the queue, and is about to link itself behind this one.
    for (int look = 0; (next = me.next.load(std::memory_order_acquire)) == nullptr; ++look) {
      if (look < kPausesForALink) {
        pause_processor();
      } else {
        std::this_thread::yield();
      }
    }
  }
  // After the store the other thread may return, and `*next` be gone: notify_one() uses its address
  // alone.
  next->first.store(1, std::memory_order_release);
  next->first.notify_one();
}

void QueuedMutex::take_as_first() WEIR_NO_THREAD_ANALYSIS {
  std::uint32_t before = seen();
  // Takes it if nobody has taken it since the last look.
  const auto take_if_left = [&] {
    const std::uint32_t now = seen();
    const bool left = !is_taken(now) && !is_taken_anew(now, before);
    before = now;
    return left && take(now);
  };
  for (int look = 0; look < kLooks; ++look) {
    pause_between_looks();
    if (take_if_left()) return;
  }
  std::this_thread::sleep_for(kPatience);
  if (take_if_left()) return;

  std::uint32_t now = state_.fetch_or(kPromised, std::memory_order_relaxed) | kPromised;
  for (int look = 0;; ++look, now = seen()) {
    if (!is_taken(now) && take(now)) return;
    if (look < kLooksPromised) {
      pause_between_looks();
    } else {
      state_.wait(now, std::memory_order_relaxed);
    }
  }
}

}  // namespace weir
