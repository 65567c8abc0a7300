#include "core/memory/address_map.h"

#include <algorithm>

namespace weir {

// Calls visit(Range) for the part of the region in each slot.
template <class Visitor>
static void for_each_slot(Range region, Visitor&& visit) {
  for (Address at = region.begin; at < region.end();) {
    const Bytes room = AddressMap::kSlot - Bytes{at.value % AddressMap::kSlot.count};
    const Range part{at, std::min(region.end() - at, room)};
    visit(part);
    at = part.end();
  }
}

AddressMap::Slot* AddressMap::take_table() {
  if (spare_.empty()) {
    tables_.push_back(std::make_unique<Slot>());
    return tables_.back().get();
  }
  Slot* const table = spare_.back();
  spare_.pop_back();
  return table;
}

void AddressMap::add_region(Range region) {
  const std::lock_guard lock(mutex_);
  for_each_slot(region, [&](Range part) {
    std::atomic<Group*>& group = groups_[part.begin.value / kSlot.count / kSlotsInGroup];
    if (group.load(std::memory_order_relaxed) == nullptr) {
      all_groups_.push_back(std::make_unique<Group>());
      group.store(all_groups_.back().get(), std::memory_order_release);
    }
    add_units(part);
  });
}

void AddressMap::add_units(Range part) {
  std::atomic<Slot*>& slot = slot_around(part.begin);
  if (part.size == kSlot) {
    slot.store(&no_runs_, std::memory_order_release);
    return;
  }
  Slot* table = slot.load(std::memory_order_relaxed);
  if (table == nullptr) table = take_table();
  for (Address at = part.begin; at < part.end(); at = at + kUnit) {
    table->units[unit_of(at) / 64].fetch_or(std::uint64_t{1} << unit_of(at) % 64,
                                            std::memory_order_acq_rel);
  }
  slot.store(table, std::memory_order_release);
}

// A table may be read yet by who looks up an address that is nobody's: it is kept for another
// region.
void AddressMap::remove_region(Range region) {
  const std::lock_guard lock(mutex_);
  for_each_slot(region, [&](Range part) { remove_units(part); });
}

void AddressMap::remove_units(Range part) {
  std::atomic<Slot*>& slot = slot_around(part.begin);
  Slot* const table = slot.load(std::memory_order_relaxed);
  if (table == &no_runs_) {
    slot.store(nullptr, std::memory_order_release);
    return;
  }
  for (Address at = part.begin; at < part.end(); at = at + kStep) {
    table->steps[step_of(at)].store(0, std::memory_order_relaxed);
  }
  std::uint64_t left = 0;
  for (Address at = part.begin; at < part.end(); at = at + kUnit) {
    table->units[unit_of(at) / 64].fetch_and(~(std::uint64_t{1} << unit_of(at) % 64),
                                             std::memory_order_acq_rel);
  }
  for (const auto& word : table->units) left |= word.load(std::memory_order_relaxed);
  if (left != 0) return;
  slot.store(nullptr, std::memory_order_release);
  spare_.push_back(table);
}

std::atomic<std::uint32_t>& AddressMap::entry_at(Address address) {
  std::atomic<Slot*>& slot = slot_around(address);
  Slot* table = slot.load(std::memory_order_acquire);
  if (table == &no_runs_) {
    const std::lock_guard lock(mutex_);
    table = take_table();
    for (auto& word : table->units) word.store(~std::uint64_t{0}, std::memory_order_relaxed);
    slot.store(table, std::memory_order_release);
  }
  return table->steps[step_of(address)];
}

void AddressMap::add_run(Range run, HeapId heap) {
  const std::uint32_t whose = std::uint32_t{owner_of(heap)} << 16;
  entry_at(run.begin).store(whose | kBegins | grain_of(run.begin), std::memory_order_release);
  if (run.size == kSlab) mark(run, whose);
}

// The steps behind the one in which the run begins. (The next run may begin in the last of them.)
void AddressMap::mark(Range run, std::uint32_t whose) {
  for (Address at = run.begin - Bytes{run.begin.value % kStep.count} + kStep; at < run.end();
       at = at + kStep) {
    std::atomic<std::uint32_t>& entry = entry_at(at);
    if ((entry.load(std::memory_order_relaxed) & kBegins) == 0) {
      entry.store(whose, std::memory_order_release);
    }
  }
}

void AddressMap::remove_run(Range run) {
  entry_at(run.begin).store(0, std::memory_order_release);
  if (run.size == kSlab) mark(run, 0);
}

// Nothing in the address's own step begins before it.
std::uint16_t AddressMap::search(Address address) const {
  Address at = address - Bytes{address.value % kStep.count};
  while (at.value >= kStep.count) {
    at = at - kStep;
    const Slot* const slot = slot_at(at);
    if (slot == nullptr) return 0;
    if (slot == &no_runs_) {
      at = at - Bytes{at.value % kSlot.count};  // nothing begins in this slot
      continue;
    }
    const std::uint32_t entry = slot->steps[step_of(at)].load(std::memory_order_acquire);
    if (entry != 0) return heap_of(entry);
  }
  return 0;
}

}  // namespace weir
