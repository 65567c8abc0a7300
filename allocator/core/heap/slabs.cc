// SPDX-License-Identifier: Apache-2.0
#include "core/heap/slabs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/mutation.h"
#include "core/memory/address_map.h"

namespace weir {

// Grains 0 to 15: lists 0 to 15; then the four bits below the leading one choose a list.
std::uint64_t Slabs::list_of(Bytes size) {
  const std::uint64_t grains = size / kGrain;
  if (grains < kExact) return grains;
  const auto doublings = static_cast<std::uint64_t>(std::bit_width(grains)) - 5;
  return kExact + doublings * kSteps + (grains >> doublings) - kSteps;
}

// The smallest, of the list's first few, that fits; of equals, the lowest.
Block* Slabs::best_of(std::uint64_t list, Bytes size) const {
  Block* best = nullptr;
  int looked = 0;
  for (Block* at = lists_[list]; at != nullptr && looked < kLookedAt; at = at->next, ++looked) {
    if (at->size < size) continue;
    if (best == nullptr || std::pair(at->size, at->begin) < std::pair(best->size, best->begin))
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

Block* Slabs::allocate(Bytes size) {
  std::uint64_t list = list_of(size);
  Block* block = nullptr;
  for (std::uint64_t word = list / 64; word < filled_.size(); ++word, list = word * 64) {
    std::uint64_t filled = filled_[word] & ~std::uint64_t{0} << list % 64;
    for (; filled != 0 && block == nullptr; filled &= filled - 1) {
      block = best_of(word * 64 + static_cast<std::uint64_t>(std::countr_zero(filled)), size);
    }
    if (block != nullptr) break;
  }
  if (block == nullptr) return nullptr;
  unlink(block);
  return take(block, size);
}

// The beginning of a free stretch that is in no list.
Block* Slabs::take(Block* stretch, Bytes size) {
  if (stretch->size > size) link(insert_after(stretch, size));
  stretch->uses = nullptr;
  stretch->state = Block::State::live;
  stretch->slab->used += size;
  return stretch;
}

Block* Slabs::allocate_at(Range wanted) {
  const auto slab = std::find_if(slabs_.begin(), slabs_.end(), [&](const auto& each) {
    return each->run->range().contains(wanted);
  });
  if (slab == slabs_.end()) return nullptr;
  Block* stretch = (*slab)->tile_at(wanted.begin);
  if (stretch->state != Block::State::free || !stretch->range().contains(wanted)) return nullptr;
  unlink(stretch);
  if (stretch->begin < wanted.begin) {
    Block* const rest = insert_after(stretch, wanted.begin - stretch->begin);
    link(stretch);
    stretch = rest;
  }
  return take(stretch, wanted.size);
}

void Slabs::link(Block* stretch) {
  const std::uint64_t list = list_of(stretch->size);
  stretch->previous = nullptr;
  stretch->next = lists_[list];
  if (stretch->next != nullptr) stretch->next->previous = stretch;
  lists_[list] = stretch;
  filled_[list / 64] |= std::uint64_t{1} << list % 64;
}

void Slabs::unlink(Block* stretch) {
  if (stretch->next != nullptr) stretch->next->previous = stretch->previous;
  if (stretch->previous != nullptr) {
    stretch->previous->next = stretch->next;
    return;
  }
  const std::uint64_t list = list_of(stretch->size);
  lists_[list] = stretch->next;
  if (stretch->next == nullptr) filled_[list / 64] &= ~(std::uint64_t{1} << list % 64);
}

// Cuts `tile` down to `size`; returns the tile of what is left, behind it.
Block* Slabs::insert_after(Block* tile, Bytes size) {
  Block* const rest = pool_.take();
  Slab& slab = *tile->slab;
  rest->begin = tile->begin + size;
  rest->size = tile->size - size;
  rest->slab = &slab;
  rest->before = tile;
  rest->after = tile->after;
  if (rest->after != nullptr) rest->after->before = rest;
  tile->after = rest;
  tile->size = size;
  Block*& first = slab.first[(rest->begin - slab.run->begin) / Slab::kStretch];
  if (first == nullptr || first->begin > rest->begin) first = rest;
  return rest;
}

// The tile joins the one before it, which the caller has made longer.
void Slabs::remove(Block* tile) {
  Slab& slab = *tile->slab;
  const auto stretch_of = [&](const Block* of) {
    return (of->begin - slab.run->begin) / Slab::kStretch;
  };
  const std::uint64_t stretch = stretch_of(tile);
  if (slab.first[stretch] == tile) {
    const bool another = tile->after != nullptr && stretch_of(tile->after) == stretch;
    slab.first[stretch] = another ? tile->after : nullptr;
  }
  tile->before->after = tile->after;
  if (tile->after != nullptr) tile->after->before = tile->before;
  pool_.give_back(tile);
}

void Slabs::add(Block* run) {
  static_assert(Slab::kSize == AddressMap::kSlab, "small blocks are found at once");
  assert(run->size == Slab::kSize || run->size == Slab::kLeast);
  slabs_.push_back(std::make_unique<Slab>());
  Slab* const slab = slabs_.back().get();
  slab->run = run;
  slab->position = slabs_.size() - 1;
  run->slab = slab;
  run->state = Block::State::slab;
  Block* const all = pool_.take();
  all->begin = run->begin;
  all->size = run->size - kGrain;
  all->slab = slab;
  slab->first[0] = all;
  link(all);
}

std::optional<Slabs::Emptied> Slabs::free(Block* block) {
  Slab& slab = *block->slab;
  slab.used -= block->size;
  if (block->uses != nullptr) [[unlikely]] {
    fenced_.add(block->begin.value, block->end().value, block->uses->fences);
    pool_.drop_uses(*block);
  }
  block->state = Block::State::free;
  if (Block* const after = block->after; after && after->state == Block::State::free) {
    unlink(after);
    block->size += after->size;
    remove(after);
  }
  if (Block* const before = block->before; before && before->state == Block::State::free) {
    unlink(before);
    before->size += block->size;
    remove(block);
    block = before;
  }
  if (slab.used > 0_B) [[likely]] {
    link(block);
    return std::nullopt;
  }

  Emptied emptied{slab.run, {}};
  const Range range = slab.run->range();
  collect(range, emptied.fences);
  if (mutation::left_out(mutation::Site::fence_goes_with_slab)) emptied.fences.clear();
  fenced_.forget(range.begin.value, range.end().value);
  pool_.give_back(block);
  slab.run->slab = nullptr;
  slabs_.back()->position = slab.position;
  std::swap(slabs_[slab.position], slabs_.back());
  slabs_.pop_back();
  return emptied;
}

void Slabs::validate_tiles(const Slab& slab, std::vector<std::string>& broken) const {
  const Block* before = nullptr;
  Address at = slab.run->begin;
  Bytes used;
  std::array<const Block*, std::tuple_size_v<decltype(slab.first)>> first{};
  const Block* tile = slab.first[0];
  for (; tile != nullptr; before = tile, tile = tile->after) {
    if (tile->begin != at || tile->before != before || tile->slab != &slab) break;
    const bool free = tile->state == Block::State::free;
    if (free && before != nullptr && before->state == Block::State::free) {
      broken.push_back("slabs: two free stretches touch");
    }
    if (!free) used += tile->size;
    const Block*& named = first[(at - slab.run->begin) / Slab::kStretch];
    if (named == nullptr) named = tile;
    at = at + tile->size;
  }
  if (tile != nullptr || at != slab.run->begin + (slab.run->size - kGrain)) {
    broken.push_back("slabs: the tiles of a slab do not cover it");
  }
  if (!std::equal(first.begin(), first.end(), slab.first.begin())) {
    broken.push_back("slabs: a stretch names another tile than its first");
  }
  if (used != slab.used) broken.push_back("slabs: the bytes in use of a slab are counted wrong");
  if (used == 0_B) broken.push_back("slabs: an empty slab is kept");
}

std::vector<std::string> Slabs::validate() const {
  std::vector<std::string> broken;
  std::set<const Block*> free;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = *slabs_[i];
    if (slab.position != i || slab.run->slab != &slab ||
        (slab.run->size != Slab::kSize && slab.run->size != Slab::kLeast) ||
        slab.run->state != Block::State::slab) {
      broken.push_back("slabs: a slab and its run do not know each other");
    }
    validate_tiles(slab, broken);
    for (const Block* tile = slab.first[0]; tile != nullptr; tile = tile->after) {
      if (tile->state == Block::State::free) free.insert(tile);
    }
  }
  std::size_t listed = 0;
  for (std::uint64_t list = 0; list < kLists; ++list) {
    const bool filled = (filled_[list / 64] >> list % 64 & 1) != 0;
    if (filled != (lists_[list] != nullptr)) {
      broken.push_back("slabs: a list of free stretches is marked wrong");
    }
    const Block* previous = nullptr;
    for (const Block* at = lists_[list]; at != nullptr; previous = at, at = at->next) {
      if (!free.contains(at) || list_of(at->size) != list || at->previous != previous) {
        broken.push_back("slabs: a list of free stretches has one that is not its own");
        return broken;
      }
      ++listed;
    }
  }
  if (listed != free.size()) broken.push_back("slabs: a free stretch is in no list");
  return broken;
}

}  // namespace weir
