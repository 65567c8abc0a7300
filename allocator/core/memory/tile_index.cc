// SPDX-License-Identifier: Apache-2.0
#include "core/memory/tile_index.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

namespace weir {
namespace {

// Calls visit(Range) for the part of the region in each slot.
template <class Visitor>
void for_each_slot(Range region, Visitor&& visit) {
  for (Address at = region.begin; at < region.end();) {
    const Bytes room = TileIndex::kSlot - Bytes{at.value % TileIndex::kSlot.count};
    const Range part{at, std::min(region.end() - at, room)};
    visit(part);
    at = part.end();
  }
}

}  // namespace

TileIndex::Slot TileIndex::nothing_;

TileIndex::Table TileIndex::make_table() {
  void* const table = ::mmap(nullptr, sizeof(Place) * kSlots, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) throw std::bad_alloc();
  return Table(static_cast<Place*>(table));
}
void TileIndex::Unmap::operator()(Place* table) const { ::munmap(table, sizeof(Place) * kSlots); }

TileIndex::Slot* TileIndex::take_slot() {
  if (spare_slots_.empty()) {
    slots_.push_back(std::make_unique<Slot>());
    return slots_.back().get();
  }
  Slot* const slot = spare_slots_.back();
  spare_slots_.pop_back();
  return slot;
}

TileIndex::Slot& TileIndex::make_slot(Place& place) {
  const std::lock_guard lock(mutex_);
  Slot* const slot = take_slot();
  place.store(slot, std::memory_order_release);
  return *slot;
}

void TileIndex::add_region(Range region) {
  const std::lock_guard lock(mutex_);
  for_each_slot(region, [&](Range part) { add_part(part); });
}

void TileIndex::add_part(Range part) {
  Place& place = place_of(part.begin);
  if (part.size == kSlot) {
    place.store(&nothing_, std::memory_order_release);
    return;
  }
  Slot* slot = place.load(std::memory_order_relaxed);
  if (slot == nullptr) {
    slot = take_slot();
    for (auto& step : slot->steps) step.store(kOutside, std::memory_order_relaxed);
    place.store(slot, std::memory_order_release);
  }
  for (Address at = part.begin; at < part.end(); at = at + kStep) {
    slot->steps[step_of(at)].store(0, std::memory_order_release);
  }
}

void TileIndex::remove_region(Range region) {
  const std::lock_guard lock(mutex_);
  for_each_slot(region, [&](Range part) { remove_part(part); });
}

void TileIndex::remove_part(Range part) {
  Place& place = place_of(part.begin);
  Slot* const slot = place.load(std::memory_order_relaxed);
  if (slot != &nothing_) {
    for (Address at = part.begin; at < part.end(); at = at + kStep) {
      slot->steps[step_of(at)].store(kOutside, std::memory_order_release);
    }
    const bool is_left = std::any_of(slot->steps.begin(), slot->steps.end(), [](const auto& step) {
      return (step.load(std::memory_order_relaxed) & kOutside) == 0;
    });
    if (is_left) return;
  }
  place.store(nullptr, std::memory_order_release);
  if (slot == &nothing_) return;
  for (auto& step : slot->steps) step.store(0, std::memory_order_relaxed);
  spare_slots_.push_back(slot);
}

// The steps behind the one in which the slab begins. (The next tile may begin in the last of them.)
void TileIndex::mark(const Tile& slab, std::uint64_t entry) {
  for (Address at = slab.begin - Bytes{slab.begin.value % kStep.count} + kStep; at < slab.end();
       at = at + kStep) {
    std::atomic<std::uint64_t>& step = own_slot(at).steps[step_of(at)];
    if ((step.load(std::memory_order_relaxed) & kBegins) == 0) {
      step.store(entry, std::memory_order_release);
    }
  }
}

void TileIndex::enter(Tile* tile) {
  Slot& slot = own_slot(tile->begin);
  const std::uint64_t step = step_of(tile->begin);
  const auto record = reinterpret_cast<std::uint64_t>(tile);
  slot.steps[step].store(record | grain_of(tile->begin) << kGrainShift | kBegins,
                         std::memory_order_release);
  slot.begins[step / 64].fetch_or(std::uint64_t{1} << step % 64, std::memory_order_relaxed);
  if (is_slab(*tile)) [[unlikely]]
    mark(*tile, record);
}

void TileIndex::enter_part(Tile* part) {
  const Slot& slot = own_slot(part->begin);
  const std::uint64_t there = slot.steps[step_of(part->begin)].load(std::memory_order_relaxed);
  if ((there & kBegins) == 0) enter(part);
}

void TileIndex::leave(Tile* tile) {
  Slot& slot = own_slot(tile->begin);
  const std::uint64_t step = step_of(tile->begin);
  const std::uint64_t there = slot.steps[step].load(std::memory_order_relaxed);
  if ((there & kBegins) == 0 || tile_in(there) != tile) return;
  slot.steps[step].store(0, std::memory_order_release);
  slot.begins[step / 64].fetch_and(~(std::uint64_t{1} << step % 64), std::memory_order_relaxed);
  if (is_slab(*tile)) [[unlikely]]
    mark(*tile, 0);
}

// Looks for the last step, at or before the address, in which a tile begins. (A slab has entries in
// all its steps, but one beginning.)
Tile* TileIndex::last(Address address, Address floor) const {
  if (const Slot* const slot = slot_of(address)) {
    const std::uint64_t entry = slot->steps[step_of(address)].load(std::memory_order_acquire);
    if ((entry & kBegins) != 0 && grain_in(entry) <= grain_of(address)) return tile_in(entry);
  }
  const Address first = floor - Bytes{floor.value % kSlot.count};
  std::uint64_t end = step_of(address);  // only steps before this one count
  for (Address base = address - Bytes{address.value % kSlot.count};; base = base - kSlot) {
    const Slot* const slot = slot_of(base);
    for (std::uint64_t word = slot == nullptr ? 0 : (end + 63) / 64; word-- > 0;) {
      std::uint64_t bits = slot->begins[word].load(std::memory_order_relaxed);
      if (end < (word + 1) * 64) bits &= (std::uint64_t{1} << end % 64) - 1;
      if (bits == 0) continue;
      const std::uint64_t step =
          word * 64 + 63 - static_cast<std::uint64_t>(std::countl_zero(bits));
      const Address at = base + kStep * step;
      if (at + kStep <= floor) return nullptr;
      const std::uint64_t entry = slot->steps[step].load(std::memory_order_acquire);
      const Address begin = at + kGrain * grain_in(entry);
      return (entry & kBegins) != 0 && begin >= floor ? tile_in(entry) : nullptr;
    }
    if (base <= first || base.value < kSlot.count) return nullptr;
    if (slot == nullptr && floor == Address{}) return nullptr;
    end = kSteps;
  }
}

void TileIndex::set_page(Range mapped, Page* page) {
  for (Address at = mapped.begin; at < mapped.end(); at = at + kGranule) {
    own_slot(at).pages[granule_of(at)] = page;
  }
}

Tile* TileIndex::take_records() {
  const std::lock_guard lock(mutex_);
  if (spare_records_ == nullptr) {
    records_.push_back(std::make_unique<Tile[]>(kRecords));
    Tile* const batch = records_.back().get();
    for (std::size_t i = 0; i + 1 < kRecords; ++i) batch[i].next = &batch[i + 1];
    return batch;
  }
  Tile* const first = std::exchange(spare_records_, nullptr);
  Tile* last = first;
  for (std::size_t i = 1; i < kRecords && last->next != nullptr; ++i) last = last->next;
  spare_records_ = std::exchange(last->next, nullptr);
  return first;
}

void TileIndex::give_back_records(Tile* first) {
  if (first == nullptr) return;
  Tile* last = first;
  while (last->next != nullptr) last = last->next;
  const std::lock_guard lock(mutex_);
  last->next = spare_records_;
  spare_records_ = first;
}

}  // namespace weir
