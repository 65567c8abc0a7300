// SPDX-License-Identifier: Apache-2.0
#include "core/heap/heap_registry.h"

#include <algorithm>
#include <new>

namespace weir {

HeapRegistry::HeapRegistry() {
  owners_.reset(static_cast<StreamHeap**>(std::calloc(kMostHeaps + 1, sizeof(void*))));
  if (owners_ == nullptr) throw std::bad_alloc();
}

Error HeapRegistry::full() {
  return {ErrorCode::invalid_argument,
          std::to_string(kMostHeaps) +
              " streams have memory of their own in the device's heap and its graph pools, the "
              "most that one device can serve: retire() those that are no longer used, and open "
              "fewer pools"};
}

StreamHeap* HeapRegistry::keep(std::unique_ptr<StreamHeap> heap) {
  if (heap->capture_pool() == nullptr && !fast_paths_) heap->allow_fast_paths(false);
  heaps_.push_back(std::move(heap));
  StreamHeap* const kept = heaps_.back().get();
  owners_[AddressMap::owner_of(kept->id())] = kept;
  return kept;
}

void HeapRegistry::clear() {
  const std::unique_lock lock(mutex_);
  // The latest first: so DeviceFold finds each at once.
  while (!heaps_.empty()) heaps_.pop_back();
}

void HeapRegistry::allow_fast_paths(bool allowed) {
  const std::unique_lock lock(mutex_);
  fast_paths_ = allowed;
  for (const auto& heap : heaps_) {
    if (heap->capture_pool() == nullptr) heap->allow_fast_paths(allowed);
  }
}

bool HeapRegistry::give_back_cached() const {
  const std::shared_lock lock(mutex_);
  bool any = false;
  for (const auto& heap : heaps_) any = heap->give_back_cached() || any;
  return any;
}

void HeapRegistry::reset_peaks() const {
  const std::shared_lock lock(mutex_);
  for (const auto& heap : heaps_) heap->reset_peaks();
}

void HeapRegistry::shrink() const {
  const std::shared_lock lock(mutex_);
  for (const auto& heap : heaps_) heap->shrink();
}

std::vector<StreamHeap*> HeapRegistry::lock_order() const {
  std::vector<StreamHeap*> heaps;
  for (const auto& heap : heaps_) heaps.push_back(heap.get());
  std::stable_partition(heaps.begin(), heaps.end(),
                        [](const StreamHeap* heap) { return heap->capture_pool() != nullptr; });
  return heaps;
}

// Whichever of a run's addresses is looked up, the heap that has the run is found. (Far inside a
// run all look-ups go the same way.)
std::vector<std::string> HeapRegistry::validate(const StreamHeap& heap,
                                                std::span<const Range> runs) const {
  constexpr Bytes kLookedUp = 8_MiB;
  const std::string name = "heap " + std::to_string(heap.id().value) + ": ";
  std::vector<std::string> broken;
  if (owners_[AddressMap::owner_of(heap.id())] != &heap) {
    broken.push_back(name + "found by another's number");
  }
  for (const Range run : runs) {
    bool found = owner_of(run.end() - kGrain) == &heap;
    for (Bytes offset; offset < std::min(run.size, kLookedUp); offset += AddressMap::kStep) {
      found = found && owner_of(run.begin + offset) == &heap;
    }
    if (found) continue;
    broken.push_back(name + "run at " + std::to_string(run.begin.value) +
                     ": its addresses are another heap's, or nobody's");
  }
  return broken;
}

}  // namespace weir
