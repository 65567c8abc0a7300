// SPDX-License-Identifier: Apache-2.0
#include "core/memory/address_map.h"

#include <algorithm>

namespace weir {

namespace {

// Calls visit(Range) for the part of the region in each slot.
template <class Visitor>
void for_each_slot(Range region, Visitor&& visit) {
  for (Address at = region.begin; at < region.end();) {
    const Bytes room = AddressMap::kSlot - Bytes{at.value % AddressMap::kSlot.count};
    const Range part{at, std::min(region.end() - at, room)};
    visit(part);
    at = part.end();
  }
}

}  // namespace

AddressMap::Steps* AddressMap::take_table() {
  if (spare_.empty()) {
    tables_.push_back(std::make_unique<Steps>());
    return tables_.back().get();
  }
  Steps* const table = spare_.back();
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
    add_part(part);
  });
}

void AddressMap::add_part(Range part) {
  std::atomic<Steps*>& slot = slot_around(part.begin);
  if (part.size == kSlot) {
    slot.store(&no_runs_, std::memory_order_release);
    return;
  }
  Steps* steps = slot.load(std::memory_order_relaxed);
  if (steps == nullptr) {
    steps = take_table();
    for (auto& entry : *steps) entry.store(kOutside, std::memory_order_relaxed);
    slot.store(steps, std::memory_order_release);
  }
  for (Address at = part.begin; at < part.end(); at = at + kStep) {
    (*steps)[step_of(at)].store(0, std::memory_order_release);
  }
}

// A table may be read yet by who looks up an address that is nobody's: it is kept for another
// region.
void AddressMap::remove_region(Range region) {
  const std::lock_guard lock(mutex_);
  for_each_slot(region, [&](Range part) { remove_part(part); });
}

void AddressMap::remove_part(Range part) {
  std::atomic<Steps*>& slot = slot_around(part.begin);
  Steps* const steps = slot.load(std::memory_order_relaxed);
  if (steps != &no_runs_) {
    for (Address at = part.begin; at < part.end(); at = at + kStep) {
      (*steps)[step_of(at)].store(kOutside, std::memory_order_release);
    }
    const bool is_left = std::any_of(steps->begin(), steps->end(), [](const auto& entry) {
      return (entry.load(std::memory_order_relaxed) & kOutside) == 0;
    });
    if (is_left) return;
  }
  slot.store(nullptr, std::memory_order_release);
  if (steps == &no_runs_) return;
  for (auto& entry : *steps) entry.store(0, std::memory_order_relaxed);
  spare_.push_back(steps);
}

std::atomic<std::uint32_t>& AddressMap::entry_at(Address address) {
  std::atomic<Steps*>& slot = slot_around(address);
  Steps* steps = slot.load(std::memory_order_acquire);
  if (steps == &no_runs_) {
    const std::lock_guard lock(mutex_);
    steps = take_table();
    slot.store(steps, std::memory_order_release);
  }
  return (*steps)[step_of(address)];
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
    const Steps* const steps = steps_around(at);
    if (steps == nullptr) return 0;
    if (steps == &no_runs_) {
      at = at - Bytes{at.value % kSlot.count};  // nothing begins in this slot
      continue;
    }
    const std::uint32_t entry = (*steps)[step_of(at)].load(std::memory_order_acquire);
    if (entry != 0) return heap_of(entry);
  }
  return 0;
}

}  // namespace weir
