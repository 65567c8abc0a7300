// SPDX-License-Identifier: Apache-2.0
// The stream heaps of one device, of its own and of its graph pools: by number, and by address.
//
// A heap that was added stays, so that looking one up by address takes no lock. The registry also
// says whether the heaps' fast paths are open, as a heap that is added later must follow.
//
// Threads: self-synchronised by one lock, taken before every heap's.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/heap/stream_heap.h"
#include "core/memory/address_map.h"
#include "weir/result.h"

namespace weir {

class HeapRegistry {
 public:
  // As many as AddressMap can tell apart.
  static constexpr std::size_t kMostHeaps = 65'000;
  using Heaps = std::span<const std::unique_ptr<StreamHeap>>;  // by HeapId

  HeapRegistry();

  AddressMap& addresses() { return addresses_; }
  // Does a page heap's region of addresses lie around `address`?
  bool has_region_around(Address address) const { return addresses_.contains(address); }
  // The heap of the last run that begins at `address` or before; null: none does. Whether the
  // address lies in that run, the heap knows.
  StreamHeap* owner_of(Address address) const { return owners_[addresses_.owner(address)]; }

  // Adds make(HeapId), a std::unique_ptr<StreamHeap>. Error: invalid_argument (there are kMostHeaps
  // already).
  template <class Make>
  Result<StreamHeap*> add(Make&& make) {
    const std::unique_lock lock(mutex_);
    if (heaps_.size() >= kMostHeaps) return full();
    return keep(make(HeapId{static_cast<std::uint32_t>(heaps_.size())}));
  }

  // Destroys all heaps: before what they were made with, which their pools and the observer are.
  void clear();

  // Of the device heap's own: graph pools' have none.
  void allow_fast_paths(bool allowed);
  // Has every heap give back its cached blocks; returns whether there were any.
  bool give_back_cached() const;
  void reset_peaks() const;
  // StreamHeap::shrink() of each.
  void shrink() const;

  // Calls function(heaps) with every heap's lock held, and no heap being added.
  template <class Function>
  void at_one_moment(Function&& function) const WEIR_NO_THREAD_ANALYSIS {
    const std::shared_lock lock(mutex_);
    const std::vector<StreamHeap*> in_order = lock_order();
    for (StreamHeap* const heap : in_order) heap->lock();
    function(Heaps(heaps_));
    for (StreamHeap* const heap : in_order) heap->unlock();
  }

  // At one moment. Is every heap found by its number, and by the addresses of its `runs`?
  std::vector<std::string> validate(const StreamHeap& heap, std::span<const Range> runs) const;

 private:
  static Error full();
  StreamHeap* keep(std::unique_ptr<StreamHeap> heap);
  // In which the heaps' locks are taken: graph pools' first.
  std::vector<StreamHeap*> lock_order() const;

  AddressMap addresses_;
  // By AddressMap's owner; null where none is. Written before the heap's first address is there to
  // be looked up, and then never changed, so it is read without a lock.
  struct Free {
    void operator()(void* table) const { std::free(table); }
  };
  std::unique_ptr<StreamHeap*[], Free> owners_;

  mutable std::shared_mutex mutex_;
  std::vector<std::unique_ptr<StreamHeap>> heaps_;  // by HeapId
  bool fast_paths_ = true;

  friend struct TestAccess;
};

}  // namespace weir
