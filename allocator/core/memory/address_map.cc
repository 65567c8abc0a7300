#include "core/memory/address_map.h"

namespace weir {

void AddressMap::add_region(Range region) {
  const std::lock_guard lock(mutex_);
  for (Address at = region.begin; at < region.end(); at = at + kSlot) {
    std::atomic<Group*>& group = groups_[at.value / kSlot.count / kSlotsInGroup];
    if (group.load(std::memory_order_relaxed) == nullptr) {
      all_groups_.push_back(std::make_unique<Group>());
      group.store(all_groups_.back().get(), std::memory_order_release);
    }
    slot_around(at).store(&no_runs_, std::memory_order_release);
  }
}

// A table may be read yet by who looks up an address that is nobody's: it is kept for another
// region.
void AddressMap::remove_region(Range region) {
  const std::lock_guard lock(mutex_);
  for (Address at = region.begin; at < region.end(); at = at + kSlot) {
    Steps* const steps = slot_around(at).exchange(nullptr, std::memory_order_acq_rel);
    if (steps == nullptr || steps == &no_runs_) continue;
    for (std::atomic<std::uint32_t>& entry : *steps) entry.store(0, std::memory_order_relaxed);
    spare_.push_back(steps);
  }
}

std::atomic<std::uint32_t>& AddressMap::entry_at(Address address) {
  std::atomic<Steps*>& slot = slot_around(address);
  Steps* steps = slot.load(std::memory_order_acquire);
  if (steps == &no_runs_) {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) {
      tables_.push_back(std::make_unique<Steps>());
      spare_.push_back(tables_.back().get());
    }
    steps = spare_.back();
    spare_.pop_back();
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
