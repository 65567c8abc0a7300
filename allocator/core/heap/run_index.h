// SPDX-License-Identifier: Apache-2.0
// Finds the run (a large block, or a slab) that an address lies in, among those of one stream heap.
// Not thread-safe.
#pragma once

#include "core/base/granule_index.h"
#include "core/heap/block.h"

namespace weir {

class RunIndex {
 public:
  // No run is where it is.
  void add(Block* run) { runs_.insert_after(runs_.last_at(run->begin), run); }
  void remove(Block* run) { runs_.remove(run); }

  // The run that `address` lies in, or the last that begins before it; null: none does.
  Block* at_or_before(Address address) const { return runs_.last_at(address); }

  // The same; null also where that takes a search.
  Block* at_or_before_near(Address address) const { return runs_.last_at_near(address); }

  // Calls visit(Block*) for every run, by address.
  template <class Visitor>
  void for_each(Visitor&& visit) const {
    for (Block* run = runs_.first(); run != nullptr; run = run->after) visit(run);
  }
  void shrink() { runs_.shrink(); }
  bool consistent() const { return runs_.consistent(); }

 private:
  GranuleIndex<Block> runs_;
};

}  // namespace weir
