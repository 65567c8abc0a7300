// SPDX-License-Identifier: Apache-2.0
// Which stream heap has the run that an address lies in, without a lock.
//
// For each step of 256 KiB there is what begins in it: at most one run, since runs are longer than
// a step. Of a run as long as a slab all steps say so, so that the small blocks of a slab are found
// at once; inside others the look-up goes back step by step. Whether the address is still within
// the run its heap knows.
//
// Threads: owner() and find() from any; a run's begin and end under the lock of its page heap,
// regions under any lock that orders them before their runs.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/range.h"
#include "weir/types.h"

namespace weir {

class AddressMap {
 public:
  static constexpr Bytes kStep = 256_KiB;
  // Runs of this size are found at once by every address in them.
  static constexpr Bytes kSlab = 2_MiB;
  // Tables are of this size.
  static constexpr Bytes kSlot = 256_MiB;
  // Regions are made of these.
  static constexpr Bytes kUnit = 2_MiB;
  static constexpr Address kEnd{std::uint64_t{1} << 49};

  AddressMap() = default;
  AddressMap(const AddressMap&) = delete;
  AddressMap& operator=(const AddressMap&) = delete;

  static bool covers(Range region) { return region.end() <= kEnd; }

  // Heaps as they are in the map: a number from 1; 0 stands for none.
  static std::uint16_t owner_of(HeapId heap) { return static_cast<std::uint16_t>(heap.value + 1); }

  // `region` is made of whole units, is covered, and shares none with another.
  void add_region(Range region);
  void remove_region(Range region);

  // `run` lies in a region, is longer than kStep, and begins at a multiple of kGrain.
  void add_run(Range run, HeapId heap);
  void remove_run(Range run);

  // The heap of the last run that begins at `address` or before, in its region or in regions side
  // by side with it; 0: none does.
  std::uint16_t owner(Address address) const {
    const Steps* const steps = steps_around(address);
    if (steps == nullptr) [[unlikely]]
      return 0;
    const std::uint32_t entry = (*steps)[step_of(address)].load(std::memory_order_acquire);
    if (entry == 0 || offset_of(entry) > grain_of(address)) [[unlikely]]
      return search(address);
    return heap_of(entry);
  }
  // Does it lie in a region?
  bool contains(Address address) const {
    const Steps* const steps = steps_around(address);
    return steps != nullptr &&
           ((*steps)[step_of(address)].load(std::memory_order_acquire) & kOutside) == 0;
  }
  std::optional<HeapId> find(Address address) const {
    const std::uint16_t owner = this->owner(address);
    if (owner == 0) return std::nullopt;
    return HeapId{static_cast<std::uint32_t>(owner - 1)};
  }

 private:
  friend struct TestAccess;
  static constexpr std::uint64_t kStepsInSlot = kSlot.count / kStep.count;
  static constexpr std::uint64_t kSlotsInGroup = 1 << 12;  // 1 TiB
  static constexpr std::uint64_t kGroups = kEnd.value / kSlot.count / kSlotsInGroup;
  using Steps = std::array<std::atomic<std::uint32_t>, kStepsInSlot>;
  using Group = std::array<std::atomic<Steps*>, kSlotsInGroup>;

  // An entry: the heap, above the grain in the step from which on it holds, and whether a run
  // begins there.
  static constexpr std::uint32_t kBegins = 1 << 9;
  // The step lies in no region, in a table that has others: nobody's.
  static constexpr std::uint32_t kOutside = 1 << 10;
  static std::uint32_t offset_of(std::uint32_t entry) { return entry & (kBegins - 1); }
  static std::uint16_t heap_of(std::uint32_t entry) {
    return static_cast<std::uint16_t>(entry >> 16);
  }
  static std::uint32_t grain_of(Address address) {
    return static_cast<std::uint32_t>(address.value % kStep.count / kGrain.count);
  }
  static std::uint64_t step_of(Address address) {
    return address.value / kStep.count % kStepsInSlot;
  }
  static_assert(kStep.count / kGrain.count == kBegins);

  // Null: no region is near.
  const Steps* steps_around(Address address) const {
    const std::uint64_t group = address.value / (kSlot.count * kSlotsInGroup);
    if (group >= kGroups) [[unlikely]]
      return nullptr;
    const Group* const slots = groups_[group].load(std::memory_order_acquire);
    if (slots == nullptr) [[unlikely]]
      return nullptr;
    return (*slots)[address.value / kSlot.count % kSlotsInGroup].load(std::memory_order_acquire);
  }
  // The slot around an address whose group there is.
  std::atomic<Steps*>& slot_around(Address address) {
    const std::uint64_t slot = address.value / kSlot.count;
    Group* const group = groups_[slot / kSlotsInGroup].load(std::memory_order_acquire);
    return (*group)[slot % kSlotsInGroup];
  }
  [[gnu::cold, gnu::noinline]] std::uint16_t search(Address address) const;
  std::atomic<std::uint32_t>& entry_at(Address address);
  void mark(Range run, std::uint32_t whose);
  // An unused one.
  Steps* take_table();
  // Puts `part`, which is of one slot, in a region, or takes it out.
  void add_part(Range part);
  void remove_part(Range part);

  inline static Steps no_runs_{};  // of a slot that lies in one region whole, and has no run yet
  std::array<std::atomic<Group*>, kGroups> groups_{};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> all_groups_;  // guarded by mutex_
  std::vector<std::unique_ptr<Steps>> tables_;      // guarded by mutex_
  std::vector<Steps*> spare_;                       // of regions that are gone; guarded by mutex_
};

}  // namespace weir
