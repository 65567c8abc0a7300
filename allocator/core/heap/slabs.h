// SPDX-License-Identifier: Apache-2.0
// Small blocks of one stream heap: packed into slabs, which are ordinary runs of the page heap.
//
// A slab is tiled, from end to end, by records of blocks and of free stretches between them; two
// free stretches never lie side by side. Free stretches are listed by size: exactly below 8 KiB, in
// 16 steps to each doubling above; a request takes the smallest of the first few that it finds (so
// that rarely, where a list is long, a slab is added though a later stretch would do). Source:
// Masmano et al. 2004, "TLSF: a New Dynamic Memory Allocator for Real-Time Systems".
// The last grain of a slab is never given out, so that two slabs side by side stay two.
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/thread_annotations.h"
#include "core/heap/block.h"
#include "core/time/fenced_ranges.h"
#include "weir/types.h"

namespace weir {

struct Slab {
  static constexpr Bytes kSize = 2_MiB;
  // Where no run of that size can be had.
  static constexpr Bytes kLeast = 512_KiB;
  // For finding a tile: the first that begins in each stretch of this size.
  static constexpr Bytes kStretch = 16_KiB;

  Block* run = nullptr;  // its own record
  Bytes used;
  Bytes live;                                    // of `used`, by live blocks: its heap counts them
  std::size_t position = 0;                      // among its heap's slabs
  std::array<Block*, kSize / kStretch> first{};  // null: none begins there

  // The tile that `address`, in the slab, lies in.
  Block* tile_at(Address address) const {
    std::uint64_t stretch = (address - run->begin) / kStretch;
    while (first[stretch] == nullptr || first[stretch]->begin > address) --stretch;
    Block* tile = first[stretch];
    while (tile->after != nullptr && tile->after->begin <= address) tile = tile->after;
    return tile;
  }
};

class Slabs {
 public:
  // The largest block that is small.
  static constexpr Bytes kLargest = 256_KiB;
  static_assert(kLargest < Slab::kLeast);

  struct Emptied {
    Block* run;
    FenceSet fences;  // of work on other streams that may still use it
  };

  // `pool` must outlive this.
  explicit Slabs(BlockPool& pool) : pool_(pool) {}

  // A block of `size` (a multiple of kGrain, at most kLargest), live; null: add a slab.
  Block* allocate(Bytes size);
  // The same, of bytes that `suits(Range)` is true of.
  template <class Suits>
  Block* allocate_if(Bytes size, Suits&& suits) WEIR_NO_THREAD_ANALYSIS;
  // The same, at `at`; null: no slab of this heap's is free there.
  Block* allocate_at(Range block);
  // `run` is Slab::kSize or Slab::kLeast long; it stays the caller's.
  void add(Block* run);
  // A block goes back, for others once its fences are satisfied; its record is gone. When it was
  // the slab's last, the slab goes too.
  std::optional<Emptied> free(Block* block);

  // Fences of other streams on these bytes, which are about to be used again.
  void collect(Range block, FenceSet& into) const {
    fenced_.collect(block.begin.value, block.end().value, into);
  }
  template <class Done>
  void forget_fences_if(Done&& done) {
    fenced_.forget_if(done);
  }
  bool has_fences() const { return !fenced_.empty(); }

  std::size_t size() const { return slabs_.size(); }
  // Broken invariants.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  static constexpr std::uint64_t kExact = 16;  // grains: below, each size has a list of its own
  static constexpr std::uint64_t kSteps = 16;  // lists for each doubling above
  static constexpr std::uint64_t kLists = kExact + kSteps * 8;  // up to a whole slab
  static constexpr int kLookedAt = 8;  // free stretches of a list that are compared

  static std::uint64_t list_of(Bytes size);
  // The first list that is filled, from `list` on; kLists: none.
  std::uint64_t next_filled(std::uint64_t list) const;
  Block* best_of(std::uint64_t list, Bytes size) const;
  Block* take(Block* stretch, Bytes size);
  void link(Block* stretch);
  void unlink(Block* stretch);
  Block* insert_after(Block* tile, Bytes size);
  void remove(Block* tile);
  void validate_tiles(const Slab& slab, std::vector<std::string>& broken) const;

  BlockPool& pool_;
  std::array<Block*, kLists> lists_{};
  std::array<std::uint64_t, kLists / 64 + 1> filled_{};  // a bit for each list that is not empty
  FencedRanges fenced_;                                  // by address
  std::vector<std::unique_ptr<Slab>> slabs_;
};

template <class Suits>
Block* Slabs::allocate_if(Bytes size, Suits&& suits) {
  for (std::uint64_t list = next_filled(list_of(size)); list < kLists;
       list = next_filled(list + 1)) {
    for (Block* at = lists_[list]; at != nullptr; at = at->next) {
      if (at->size < size || !suits(Range{at->begin, size})) continue;
      unlink(at);
      return take(at, size);
    }
  }
  return nullptr;
}

}  // namespace weir
