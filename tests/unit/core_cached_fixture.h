// SPDX-License-Identifier: Apache-2.0
// A device heap's blocks that are cached, for tests of who gets them and when they go back.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tests/unit/core_heap_fixture.h"
#include "tests/unit/core_test_access.h"

namespace weir::test {

class BlocksAtHand : public CoreHeap {
 protected:
  static StreamHeap& stream_heap(DeviceHeap& heap, std::size_t id) {
    return TestAccess::stream_heap(heap, id);
  }
  // How many the stream heap keeps.
  static std::size_t kept(DeviceHeap& heap, std::size_t id = 0) {
    return TestAccess::kept(stream_heap(heap, id));
  }
  static bool is_cached(DeviceHeap& heap, void* block, std::size_t id = 0) {
    const auto& cached = TestAccess::cached(stream_heap(heap, id));
    const auto end = cached.begin() + static_cast<long>(kept(heap, id));
    return std::any_of(cached.begin(), end,
                       [&](const auto& c) { return c.block.begin() == Address::of(block); });
  }
  // Sizes of pages that were leased so far: unchanged while blocks are served from hand.
  static std::uint64_t leased_in_all(DeviceHeap& heap) {
    return heap.statistics().leased_bytes.total;
  }
  std::uint64_t waits() const { return device_.calls(DeviceCall::wait); }
  // `user`, behind the block's own stream `owner`, works on it for long.
  void use_elsewhere(DeviceHeap& heap, void* block, Bytes bytes, Stream owner, Stream user) {
    write(owner, block, bytes);
    write_after(user, owner, block, bytes, 5_ms);
    ASSERT_TRUE(heap.fence(block, user).ok());
  }
};

}  // namespace weir::test
