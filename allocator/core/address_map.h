// Which stream heap an address belongs to, without a lock. Self-synchronised.
//
// Heaps reserve addresses in regions of whole slots; a slot belongs to one heap until it is
// cleared.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include "core/range_set.h"
#include "weir/types.h"

namespace weir {

class AddressMap {
 public:
  static constexpr Bytes kSlot = 4_GiB;
  static constexpr std::uint64_t kSlots = 1 << 17;  // 49 bits of address

  static bool covers(Range region) { return region.end().value / kSlot.count <= kSlots; }

  // Heaps as they are in the map: a number from 1; 0 stands for none.
  static std::uint16_t owner_of(HeapId heap) { return static_cast<std::uint16_t>(heap.value + 1); }

  // `region` is made of whole slots, and covered.
  void set(Range region, HeapId heap) { fill(region, owner_of(heap)); }
  void clear(Range region) { fill(region, 0); }

  std::uint16_t owner(Address address) const {
    const std::uint64_t slot = address.value / kSlot.count;
    return slot < kSlots ? (*slots_)[slot].load(std::memory_order_acquire) : std::uint16_t{0};
  }
  std::optional<HeapId> find(Address address) const {
    const std::uint16_t owner = this->owner(address);
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

  struct Free {
    void operator()(void* slots) const { std::free(slots); }
  };
  // Zeroed by the system, page by page as it is touched.
  static Slots* make() {
    void* const zeroed = std::calloc(1, sizeof(Slots));
    if (zeroed == nullptr) throw std::bad_alloc();
    return static_cast<Slots*>(zeroed);
  }

  std::unique_ptr<Slots, Free> slots_{make()};
};

}  // namespace weir
