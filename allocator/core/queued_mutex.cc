#include "core/queued_mutex.h"

#include <thread>

namespace weir {
namespace {

// A waiting thread looks at the lock about once a microsecond. The first thread of the queue looks
// kLooks times before the lock is promised to it, and kLooksPromised times more before it sleeps.
constexpr int kPausesBetweenLooks = 24, kLooks = 16, kLooksPromised = 32;
// The other threads of the queue look so often before they sleep, and yield now and then, since
// there may be more threads than processors. (The first thread does not yield: if the holder is on
// the same processor, the scheduler would run the holder for milliseconds. A sleeping thread is
// woken on another processor.)
constexpr int kLooksInQueue = 96, kLooksBetweenYields = 8;

void pause_between_looks() {
  for (int i = 0; i < kPausesBetweenLooks; ++i) pause_processor();
}

}  // namespace

void QueuedMutex::wait_and_lock() WEIR_NO_THREAD_ANALYSIS {
  Waiter me;
  if (Waiter* const before = last_.exchange(&me, std::memory_order_acq_rel)) {
    before->next.store(&me, std::memory_order_release);
    const auto is_first = [&] { return me.first.load(std::memory_order_acquire) != 0; };
    for (int look = 1; look <= kLooksInQueue && !is_first(); ++look) {
      pause_between_looks();
      if (look % kLooksBetweenYields == 0) std::this_thread::yield();
    }
    me.first.wait(0, std::memory_order_acquire);
  }
  take_as_first();
  Waiter* next = me.next.load(std::memory_order_acquire);
  if (next == nullptr) {
    Waiter* last = &me;
    if (last_.compare_exchange_strong(last, nullptr, std::memory_order_acq_rel)) return;
    // Another thread has joined the queue, and is about to link itself behind this one.
    while ((next = me.next.load(std::memory_order_acquire)) == nullptr) pause_processor();
  }
  // After the store the other thread may return, and `*next` be gone: notify_one() uses its address
  // alone.
  next->first.store(1, std::memory_order_release);
  next->first.notify_one();
}

void QueuedMutex::take_as_first() WEIR_NO_THREAD_ANALYSIS {
  const auto take = [&](int from) {
    return state_.load(std::memory_order_relaxed) == from &&
           state_.compare_exchange_strong(from, kTaken, std::memory_order_acquire);
  };
  for (int look = 0; look < kLooks; ++look, pause_between_looks()) {
    if (take(kFree)) return;
  }
  state_.fetch_or(kPromised, std::memory_order_relaxed);
  for (int look = 0; look < kLooksPromised; ++look, pause_between_looks()) {
    if (take(kPromised)) return;
  }
  while (!take(kPromised)) state_.wait(kTaken | kPromised, std::memory_order_relaxed);
}

}  // namespace weir
