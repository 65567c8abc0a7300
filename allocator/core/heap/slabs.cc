// SPDX-License-Identifier: Apache-2.0
#include "core/heap/slabs.h"

#include <cassert>
#include <utility>

#include "core/base/mechanism.h"
#include "core/memory/tile_index.h"

namespace weir {

SmallTile* Slabs::take_record() {
  if (spare_ == nullptr) [[unlikely]] {
    records_.push_back(std::make_unique<SmallTile[]>(kBatch));
    for (std::size_t i = kBatch; i-- > 0;) give_back_record(&records_.back()[i]);
  }
  SmallTile* const record = std::exchange(spare_, spare_->next);
  *record = SmallTile{};
  return record;
}

void Slabs::give_back_record(SmallTile* record) {
  record->next = spare_;
  spare_ = record;
}

// The smallest of the first few; of equals, the lowest. (What the bins have behind one that is a
// bin larger is no better.)
SmallTile* Slabs::find(Bytes size) const {
  SmallTile* best = nullptr;
  int left = kLookedAt;
  free_.visit_fitting(size, [&](SmallTile& at) {
    const bool is_better = best == nullptr || at.grains < best->grains ||
                           (at.grains == best->grains && at.begin() < best->begin());
    if (is_better && (best == nullptr || !without(Mechanism::slab_best_fit))) best = &at;
    return --left > 0 && at.grains <= best->grains + best->grains / 32;
  });
  return best;
}

SmallTile* Slabs::take(SmallTile* stretch, Bytes size) {
  free_.remove(stretch);
  if (stretch->size() > size) free_.add(cut(stretch, size));
  stretch->held = {};
  stretch->allocated_at = {};
  stretch->state = BlockState::live;
  stretch->slab->used += size;
  return stretch;
}

SmallTile* Slabs::take_at(const Slab& slab, Range block) {
  SmallTile* const stretch = slab.tile_at(block.begin);
  if (stretch->state != BlockState::free || !stretch->range().contains(block)) return nullptr;
  if (stretch->begin() == block.begin) return take(stretch, block.size);
  free_.remove(stretch);
  SmallTile* const rest = cut(stretch, block.begin - stretch->begin());
  free_.add(stretch);
  free_.add(rest);
  return take(rest, block.size);
}

// Cuts `tile`, which is free, down to `size`; returns the free tile of what is left, behind it.
SmallTile* Slabs::cut(SmallTile* tile, Bytes size) {
  SmallTile* const rest = take_record();
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
  give_back_record(gone);
}

Slab& Slabs::add(Tile* run) {
  static_assert(Slab::kSize == TileIndex::kSlab, "small blocks are found at once");
  assert(run->size == Slab::kSize || run->size == Slab::kLeast);
  Slab& slab = *slabs_.emplace_back(std::make_unique<Slab>());
  slab.run = run;
  slab.begin = run->begin;
  slab.size = run->size;
  slab.shift = run->item - Layout::item(0, run->begin, run->size);
  slab.position = slabs_.size() - 1;
  SmallTile* const all = take_record();
  all->slab = &slab;
  all->grains = static_cast<std::uint16_t>((run->size - kGrain) / kGrain);
  slab.first[0] = all;
  free_.add(all);
  return slab;
}

Tile* Slabs::free(SmallTile* block) {
  Slab& slab = *block->slab;
  slab.used -= block->size();
  block->state = BlockState::free;
  if (SmallTile* const after = block->after; after && after->state == BlockState::free) {
    free_.remove(after);
    swallow_next(block);
  }
  if (SmallTile* const before = block->before; before && before->state == BlockState::free) {
    free_.remove(before);
    swallow_next(before);
    block = before;
  }
  if (slab.used > 0_B) [[likely]] {
    free_.add(block);
    return nullptr;
  }

  Tile* const run = slab.run;
  run->uses = std::move(block->uses);
  give_back_record(block);
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
  Broken broken{free_.validate("slabs")};
  std::size_t free = 0;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = *slabs_[i];
    broken.note_if(slab.position != i || (slab.size != Slab::kSize && slab.size != Slab::kLeast),
                   "slabs: a slab is not what it was made as");
    validate_tiles(slab, broken);
    for (const SmallTile* tile = slab.first[0]; tile != nullptr; tile = tile->after) {
      free += tile->state == BlockState::free ? 1 : 0;
    }
  }
  broken.note_if(free != free_.count(), "slabs: a free stretch is not listed");
  return broken.rules;
}

}  // namespace weir
