// SPDX-License-Identifier: Apache-2.0
#include "torch/process_end.h"

#include <pthread.h>

#include <cstdlib>

namespace weir::pytorch {

using internal::memory_state;
using internal::MemoryState;

void note_use_of_memory() {
  static const bool noted = [] {
    (void)std::atexit([] {
      MemoryState before = MemoryState::usable;
      memory_state.compare_exchange_strong(before, MemoryState::exiting);
    });
    return pthread_atfork(nullptr, nullptr, [] { memory_state.store(MemoryState::forked); }) == 0;
  }();
  (void)noted;
}

}  // namespace weir::pytorch
