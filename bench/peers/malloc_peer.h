// SPDX-License-Identifier: Apache-2.0
// The C library's allocator: memory of the host, with no streams. A scale to hold the others
// against. Its memory is not touched, so the kernel gives it no pages.
#pragma once

#include <cstdlib>
#include <new>

#include "bench/peers/peer.h"

namespace weir::peers {

class Malloc {
 public:
  static constexpr bool kFences = false;
  struct StreamRef {};

  StreamRef stream_ref(void*) { return {}; }
  void* allocate(std::size_t bytes, StreamRef) {
    void* const block = std::malloc(bytes);
    if (block == nullptr) [[unlikely]]
      throw std::bad_alloc();
    return block;
  }
  void fence(void*, StreamRef, StreamRef) {}
  void free(void* block, StreamRef) { std::free(block); }
  Reserved reserved() const { return std::nullopt; }
};

}  // namespace weir::peers
