// SPDX-License-Identifier: Apache-2.0
#include "look/heaps.h"

namespace weir {

std::unordered_map<std::uint32_t, HeapServes> heaps_of(const Recording& recording) {
  std::unordered_map<std::uint32_t, HeapServes> heaps;
  for (const Event& event : recording.events) {
    if (event.kind == EventKind::heap_open) {
      heaps[event.heap.value] = {event.stream, event.pool};
    } else if (event.kind == EventKind::allocate) {
      heaps.try_emplace(event.heap.value, HeapServes{event.stream, event.pool});
    }
  }
  return heaps;
}

}  // namespace weir
