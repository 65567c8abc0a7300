// Which stream heap an address belongs to, without a lock. Self-synchronised.
//
// Heaps reserve addresses in regions of whole slots; a slot belongs to one heap until it is
// cleared.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/range_set.h"
#include "weir/types.h"

namespace weir {

class AddressMap {
 public:
  static constexpr Bytes kSlot = 4_GiB;
  static constexpr std::uint64_t kSlots = 1 << 17;  // 49 bits of address

  static bool covers(Range region) { return region.end().value / kSlot.count <= kSlots; }

  // `region` is made of whole slots, and covered.
  void set(Range region, HeapId heap) { fill(region, static_cast<std::uint16_t>(heap.value + 1)); }
  void clear(Range region) { fill(region, 0); }

  std::optional<HeapId> find(Address address) const {
    const std::uint64_t slot = address.value / kSlot.count;
    if (slot >= kSlots) return std::nullopt;
    const std::uint16_t owner = (*slots_)[slot].load(std::memory_order_acquire);
    if (owner == 0) return std::nullopt;
    return HeapId{static_cast<std::uint32_t>(owner - 1)};
  }

 private:
  using Slots = std::array<std::atomic<std::uint16_t>, kSlots>;

  void fill(Range region, std::uint16_t owner) {
    for (Address at = region.begin; at < region.end(); at = at + kSlot) {
      (*slots_)[at.value / kSlot.count].store(owner, std::memory_order_release);
    }
  }

  std::unique_ptr<Slots> slots_ = std::make_unique<Slots>();
};

}  // namespace weir
