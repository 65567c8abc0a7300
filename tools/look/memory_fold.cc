// SPDX-License-Identifier: Apache-2.0
#include "look/memory_fold.h"

#include <utility>

namespace weir {

bool MemoryFold::apply(const Event& event) {
  switch (event.kind) {
    case EventKind::allocate: {
      // What was at the address has gone: that event is missing.
      Bytes& bytes = blocks_[event.address.value];
      live_ -= std::exchange(bytes, event.bytes);
      live_ += event.bytes;
      return true;
    }
    case EventKind::deallocate: {
      const auto block = blocks_.find(event.address.value);
      if (block == blocks_.end()) return false;
      live_ -= block->second;
      blocks_.erase(block);
      return true;
    }
    case EventKind::create:
      if (!pages_.try_emplace(event.page.value, event.bytes).second) return false;
      reserved_ += event.bytes;
      return true;
    case EventKind::release: {
      const auto page = pages_.find(event.page.value);
      if (page == pages_.end()) return false;
      reserved_ -= page->second;
      pages_.erase(page);
      return true;
    }
    default:
      return false;
  }
}

}  // namespace weir
