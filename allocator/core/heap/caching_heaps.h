// SPDX-License-Identifier: Apache-2.0
// The stream heaps with cached blocks: freed, but not given back to the pages that all heaps
// share. Who is about to look for pages asks them for these first, so keeping them costs no memory.
//
// A heap puts itself on the list once, however often it keeps blocks and uses them again, until
// somebody takes them: threads at work on heaps of their own share no line for it.
// Self-synchronised, without a lock. Source: Treiber 1986, "Systems Programming: Coping with
// Parallelism" (the list is only ever taken whole, so no node can come back between two steps).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace weir {

template <class Heap>
class CachingHeaps {
 public:
  // Of each heap. All but `next` is guarded by the heap's lock. `next` belongs to the list while
  // the heap is on it, and to the thread that has taken the list.
  struct Link {
    bool listed = false;
    std::thread::id by;        // put it on the list
    std::uint64_t served = 0;  // what the heap had served when it was last looked at
    Heap* next = nullptr;
  };

  // `heap` is on no list.
  void push(Heap& heap, Link& link) {
    Heap* first = first_.load(std::memory_order_relaxed);
    do {
      link.next = first;
    } while (!first_.compare_exchange_weak(first, &heap, std::memory_order_release,
                                           std::memory_order_relaxed));
  }
  // All heaps on the list, linked; the caller's now.
  Heap* take() {
    if (first_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    return first_.exchange(nullptr, std::memory_order_acquire);
  }

 private:
  std::atomic<Heap*> first_{nullptr};
};

}  // namespace weir
