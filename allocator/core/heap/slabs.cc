// SPDX-License-Identifier: Apache-2.0
#include "core/heap/slabs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <set>
#include <utility>

#include "core/base/mechanism.h"
#include "core/memory/tile_index.h"

namespace weir {

// Grains 0 to 15: lists 0 to 15; then the four bits below the leading one choose a list.
std::uint64_t Slabs::list_of(Bytes size) {
  const std::uint64_t grains = size / kGrain;
  if (grains < kExact) return grains;
  const auto doublings = static_cast<std::uint64_t>(std::bit_width(grains)) - 5;
  return kExact + doublings * kSteps + (grains >> doublings) - kSteps;
}

// The smallest, of the list's first few, that fits; of equals, the lowest.
SmallTile* Slabs::best_of(std::uint64_t list, Bytes size) const {
  const auto is_better = [](const SmallTile& a, const SmallTile& b) {
    return a.grains < b.grains || (a.grains == b.grains && a.begin() < b.begin());
  };
  SmallTile* best = nullptr;
  int looked = 0;
  for (SmallTile* at = lists_[list]; at != nullptr && looked < kLookedAt;
       at = at->listed.next, ++looked) {
    if (at->size() >= size &&
        (best == nullptr || (is_better(*at, *best) && !without(Mechanism::slab_best_fit))))
      best = at;
  }
  return best;
}

std::uint64_t Slabs::next_filled(std::uint64_t list) const {
  for (std::uint64_t word = list / 64; word < filled_.size(); ++word, list = word * 64) {
    const std::uint64_t filled = filled_[word] & ~std::uint64_t{0} << list % 64;
    if (filled != 0) return word * 64 + static_cast<std::uint64_t>(std::countr_zero(filled));
  }
  return kLists;
}

SmallTile* Slabs::find(Bytes size) const {
  for (std::uint64_t list = next_filled(list_of(size)); list < kLists;
       list = next_filled(list + 1)) {
    if (SmallTile* const best = best_of(list, size)) return best;
  }
  return nullptr;
}

SmallTile* Slabs::take(SmallTile* stretch, Bytes size) {
  unlink(stretch);
  if (stretch->size() > size) link(cut(stretch, size));
  stretch->held = {};
  stretch->state = BlockState::live;
  stretch->slab->used += size;
  return stretch;
}

SmallTile* Slabs::take_at(const Slab& slab, Range block) {
  SmallTile* const stretch = slab.tile_at(block.begin);
  if (stretch->state != BlockState::free || !stretch->range().contains(block)) return nullptr;
  if (stretch->begin() == block.begin) return take(stretch, block.size);
  unlink(stretch);
  SmallTile* const rest = cut(stretch, block.begin - stretch->begin());
  link(stretch);
  link(rest);
  return take(rest, block.size);
}

void Slabs::link(SmallTile* stretch) {
  const std::uint64_t list = list_of(stretch->size());
  SmallTile* const next = lists_[list];
  stretch->listed = {nullptr, next};
  if (next != nullptr) next->listed.previous = stretch;
  lists_[list] = stretch;
  filled_[list / 64] |= std::uint64_t{1} << list % 64;
}

void Slabs::unlink(SmallTile* stretch) {
  const auto [previous, next] = stretch->listed;
  if (next != nullptr) next->listed.previous = previous;
  if (previous != nullptr) {
    previous->listed.next = next;
    return;
  }
  const std::uint64_t list = list_of(stretch->size());
  lists_[list] = next;
  if (next == nullptr) filled_[list / 64] &= ~(std::uint64_t{1} << list % 64);
}

// Cuts `tile`, which is free, down to `size`; returns the free tile of what is left, behind it.
SmallTile* Slabs::cut(SmallTile* tile, Bytes size) {
  SmallTile* const rest = records_.take();
  Slab& slab = *tile->slab;
  const auto grains = static_cast<std::uint16_t>(size / kGrain);
  rest->slab = &slab;
  rest->first_grain = static_cast<std::uint16_t>(tile->first_grain + grains);
  rest->grains = static_cast<std::uint16_t>(tile->grains - grains);
  rest->uses = tile->uses.copy();
  rest->before = tile;
  rest->after = tile->after;
  if (rest->after != nullptr) rest->after->before = rest;
  tile->after = rest;
  tile->grains = grains;
  SmallTile*& first = slab.first[rest->first_grain / Slab::kStretch];
  if (first == nullptr || first->first_grain > rest->first_grain) first = rest;
  return rest;
}

// `tile` and the one behind it, both free and in no list, become one.
void Slabs::swallow_next(SmallTile* tile) {
  SmallTile* const gone = tile->after;
  Slab& slab = *tile->slab;
  const std::uint64_t stretch = gone->first_grain / Slab::kStretch;
  if (slab.first[stretch] == gone) {
    const bool another =
        gone->after != nullptr && gone->after->first_grain / Slab::kStretch == stretch;
    slab.first[stretch] = another ? gone->after : nullptr;
  }
  tile->grains = static_cast<std::uint16_t>(tile->grains + gone->grains);
  tile->uses.join(std::move(gone->uses));
  tile->after = gone->after;
  if (gone->after != nullptr) gone->after->before = tile;
  records_.give_back(gone);
}

Slab& Slabs::add(Tile* run) {
  static_assert(Slab::kSize == TileIndex::kSlab, "small blocks are found at once");
  assert(run->size == Slab::kSize || run->size == Slab::kLeast);
  Slab& slab = *slabs_.emplace_back(std::make_unique<Slab>());
  slab.run = run;
  slab.begin = run->begin;
  slab.size = run->size;
  slab.position = slabs_.size() - 1;
  SmallTile* const all = records_.take();
  all->slab = &slab;
  all->grains = static_cast<std::uint16_t>((run->size - kGrain) / kGrain);
  slab.first[0] = all;
  link(all);
  return slab;
}

Tile* Slabs::free(SmallTile* block) {
  Slab& slab = *block->slab;
  slab.used -= block->size();
  block->state = BlockState::free;
  if (SmallTile* const after = block->after; after && after->state == BlockState::free) {
    unlink(after);
    swallow_next(block);
  }
  if (SmallTile* const before = block->before; before && before->state == BlockState::free) {
    unlink(before);
    swallow_next(before);
    block = before;
  }
  if (slab.used > 0_B) [[likely]] {
    link(block);
    return nullptr;
  }

  Tile* const run = slab.run;
  run->uses = std::move(block->uses);
  records_.give_back(block);
  slabs_.back()->position = slab.position;
  std::swap(slabs_[slab.position], slabs_.back());
  slabs_.pop_back();
  return run;
}

void Slabs::validate_tiles(const Slab& slab, Broken& broken) const {
  const SmallTile* before = nullptr;
  std::uint64_t at = 0;
  Bytes used;
  decltype(slab.first) first{};
  SmallTile* tile = slab.first[0];
  for (; tile != nullptr; before = tile, tile = tile->after) {
    if (tile->first_grain != at || tile->before != before || tile->slab != &slab) break;
    const bool free = tile->state == BlockState::free;
    broken.note_if(free && before != nullptr && before->state == BlockState::free,
                   "slabs: two free stretches touch");
    broken.note_if(tile->uses && free && !tile->uses->users.empty(),
                   "slabs: a free stretch has users");
    if (!free) used += tile->size();
    if (at / Slab::kStretch >= first.size()) break;
    SmallTile*& named = first[at / Slab::kStretch];
    if (named == nullptr) named = tile;
    at += tile->grains;
  }
  broken.note_if(tile != nullptr || kGrain * (at + 1) != slab.size,
                 "slabs: the tiles of a slab do not cover it");
  broken.note_if(first != slab.first, "slabs: a stretch names another tile than its first");
  broken.note_if(used != slab.used, "slabs: the bytes in use of a slab are counted wrong");
  broken.note_if(used == 0_B, "slabs: an empty slab is kept");
}

std::vector<std::string> Slabs::validate() const {
  Broken broken;
  std::set<const SmallTile*> free;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = *slabs_[i];
    broken.note_if(slab.position != i || (slab.size != Slab::kSize && slab.size != Slab::kLeast),
                   "slabs: a slab is not what it was made as");
    validate_tiles(slab, broken);
    for (const SmallTile* tile = slab.first[0]; tile != nullptr; tile = tile->after) {
      if (tile->state == BlockState::free) free.insert(tile);
    }
  }
  std::size_t listed = 0;
  for (std::uint64_t list = 0; list < kLists; ++list) {
    const bool filled = (filled_[list / 64] >> list % 64 & 1) != 0;
    broken.note_if(filled != (lists_[list] != nullptr),
                   "slabs: a list of free stretches is marked wrong");
    const SmallTile* previous = nullptr;
    for (const SmallTile* at = lists_[list]; at != nullptr; previous = at, at = at->listed.next) {
      const bool is_own =
          free.contains(at) && list_of(at->size()) == list && at->listed.previous == previous;
      broken.note_if(!is_own, "slabs: a list of free stretches has one that is not its own");
      if (!is_own) return broken.rules;
      ++listed;
    }
  }
  broken.note_if(listed != free.size(), "slabs: a free stretch is in no list");
  return broken.rules;
}

}  // namespace weir
