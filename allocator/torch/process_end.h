// SPDX-License-Identifier: Apache-2.0
// Whether device memory can still be used, and has to be given back at all.
//
// Tensors may be freed by destructors of static objects, when the driver is gone, and in children
// of fork(), which have neither the driver's context nor the threads that held locks at the fork:
// in a child no lock of the allocator may be taken.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdlib>

namespace weir::pytorch {

namespace internal {
enum class MemoryState : unsigned char { usable, exiting, forked };
inline constinit std::atomic<MemoryState> memory_state{MemoryState::usable};
}  // namespace internal

// This process uses device memory from now on. Cheap, after the first time.
inline void note_use_of_memory() {
  using internal::memory_state;
  using internal::MemoryState;
  [[maybe_unused]] static const int noted = [] {
    (void)std::atexit([] {
      MemoryState before = MemoryState::usable;
      memory_state.compare_exchange_strong(before, MemoryState::exiting);
    });
    return pthread_atfork(nullptr, nullptr, [] { memory_state.store(MemoryState::forked); });
  }();
}

// Is this a child of fork() of a process that had used memory? Such a child can use none. Cheap;
// takes no lock.
inline bool is_forked_child() {
  return internal::memory_state.load(std::memory_order_relaxed) == internal::MemoryState::forked;
}

// True once the process runs its exit handlers, and in a forked child: what is freed then is
// nobody's. Cheap; takes no lock.
inline bool memory_is_gone() {
  return internal::memory_state.load(std::memory_order_relaxed) != internal::MemoryState::usable;
}

// What a forked child is told.
inline constexpr const char* kUsedAfterFork =
    "weir: CUDA memory of the parent process can't be used after fork(): start processes with "
    "spawn "
    "or forkserver, or fork before anything uses CUDA";

}  // namespace weir::pytorch
