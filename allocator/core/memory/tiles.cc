// SPDX-License-Identifier: Apache-2.0
#include "core/memory/tiles.h"

#include <iterator>
#include <tuple>
#include <utility>

#include "core/base/broken.h"
#include "core/base/mechanism.h"

namespace weir {
namespace {

std::uint32_t most_notes() { return without(Mechanism::notes) ? 1 : Tiles::kMost; }

}  // namespace

Tiles::~Tiles() {
  while (!regions_.empty()) remove_region(regions_.begin()->first);
  give_back_spare();
}

Tile* Tiles::take_record() {
  if (spare_ == nullptr) [[unlikely]]
    spare_ = index_.take_records();
  return std::exchange(spare_, spare_->next);
}

// What is read without a lock, or set whenever it is needed, stays.
void Tiles::give_back_record(Tile* tile) {
  tile->heap.store(nullptr, std::memory_order_relaxed);
  tile->uses.reset();
  tile->late.reset();
  tile->row = nullptr;
  tile->slab = nullptr;
  tile->before = tile->after = nullptr;
  tile->next = spare_;
  spare_ = tile;
}

Tile* Tiles::insert_after(Tile* before, Address begin, Bytes size, Tile::Kind kind) {
  Tile* const tile = take_record();
  tile->begin = begin;
  tile->size = size;
  tile->kind = kind;
  tile->before = before;
  tile->after = before->after;
  before->after = tile;
  if (tile->after != nullptr) tile->after->before = tile;
  return tile;
}

Tile* Tiles::split(Tile* tile, Address at) {
  Tile* const behind = insert_after(tile, at, tile->end() - at, tile->kind);
  tile->size = at - tile->begin;
  behind->by = tile->by;
  behind->released = tile->released;
  behind->freed_at = tile->freed_at;
  behind->uses = tile->uses.copy();
  return behind;
}

void Tiles::absorb_next(Tile* tile) {
  Tile* const next = tile->after;
  tile->size += next->size;
  tile->after = next->after;
  if (next->after != nullptr) next->after->before = tile;
  give_back_record(next);
}

bool Tiles::says_the_same(const Tile& a, const Tile& b) {
  return a.by == b.by && a.released == b.released && a.uses.same_fences(b.uses);
}

void Tiles::join_note(Tile& into, const Tile& other) const {
  if (into.by == Tile::kNobody) {
    into.by = other.by;
    into.released = other.released;
  } else if (into.by == other.by) {
    into.released = std::max(into.released, other.released);
  } else if (other.by != Tile::kNobody) {
    into.uses.get().fences.join(release_point(other));
  }
  if (other.uses) into.uses.get().fences.join(other.uses->fences);
  into.freed_at = std::max(into.freed_at, other.freed_at);
}

// Of neighbours, those of one stream come first, then those that cover the fewest bytes together;
// last of all those of which one was never used: who takes new memory is not to wait.
void Tiles::shorten(Tile* head) {
  while (head->tiles > most_notes()) {
    const auto cost = [](const Tile* at) {
      const TimelineId one = at->by, other = at->after->by;
      const bool unlike = one != other;
      const bool new_memory = unlike && (one == Tile::kNobody || other == Tile::kNobody);
      return std::tuple(new_memory, unlike, at->size + at->after->size);
    };
    Tile* best = head;
    for (Tile* at = head->after; at != head->edge; at = at->after) {
      if (cost(at) < cost(best)) best = at;
    }
    join_note(*best, *best->after);
    if (head->edge == best->after) {
      head->edge = best;
      best->edge = head;
    }
    absorb_next(best);
    --head->tiles;
  }
}

void Tiles::list_run(Tile* head, Tile* edge, Bytes run, std::uint32_t tiles) {
  head->run = run;
  head->tiles = tiles;
  head->edge = edge;
  edge->edge = head;
  runs_.add(head);
}

void Tiles::add_region(Range region) {
  Tile* const tile = take_record();
  tile->begin = region.begin;
  tile->size = tile->run = region.size;
  tile->kind = Tile::Kind::vacant;
  tile->before = tile->after = nullptr;
  regions_[region.begin] = {tile, region.end()};
  index_.enter(tile);
  vacant_.add(tile);
}

void Tiles::remove_region(Address begin) {
  Tile* const first = regions_.at(begin).first;
  for (Tile* tile = first; tile != nullptr;) {
    if (tile->kind == Tile::Kind::vacant) vacant_.remove(tile);
    if (tile->is_free() && (tile == first || !tile->before->is_free())) runs_.remove(tile);
    if (tile->kind == Tile::Kind::used || tile->kind == Tile::Kind::part) used_ -= tile->size;
    tile = tile->after;
  }
  for (Tile* tile = first; tile != nullptr;) {
    index_.leave(tile);
    give_back_record(std::exchange(tile, tile->after));
  }
  regions_.erase(begin);
}

void Tiles::fill(Range range) {
  Tile* tile = at(range.begin);
  vacant_.remove(tile);
  if (tile->begin < range.begin) {
    Tile* const front = tile;
    tile = split(front, range.begin);
    front->run = front->size;
    vacant_.add(front);
  } else {
    index_.leave(tile);
  }
  if (range.end() < tile->end()) {
    Tile* const rest = split(tile, range.end());
    rest->run = rest->size;
    vacant_.add(rest);
    index_.enter(rest);
  }
  used_ += range.size;
  tile->kind = Tile::Kind::used;  // and so it becomes free
  (void)release(tile, {Tile::kNobody, {}, 0});
}

void Tiles::vacate(Range range) {
  Tile* const head = run_around(range);
  runs_.remove(head);
  become_vacant(cut(head, range));
}

void Tiles::become_vacant(Tile* tile) {
  tile->uses.reset();
  tile->by = Tile::kNobody;
  tile->released = {};
  tile->freed_at = 0;
  tile->kind = Tile::Kind::vacant;
  if (Tile* const next = tile->after; next != nullptr && next->kind == Tile::Kind::vacant) {
    vacant_.remove(next);
    index_.leave(next);
    absorb_next(tile);
  }
  if (Tile* const front = tile->before; front != nullptr && front->kind == Tile::Kind::vacant) {
    vacant_.remove(front);
    absorb_next(front);
    tile = front;
  } else {
    index_.enter(tile);
  }
  tile->run = tile->size;
  vacant_.add(tile);
}

Tile* Tiles::cut(Tile* head, Range range) {
  Tile* edge = head->edge;
  const Range run = head->run_range();
  std::uint32_t left = 0, all = head->tiles;
  Tile* tile = head;
  if (range.begin != run.begin && range.end() == run.end()) {
    tile = edge;
    for (left = all - 1; tile->begin > range.begin; --left) tile = tile->before;
  } else {
    for (; tile->end() <= range.begin; ++left) tile = tile->after;
  }
  if (tile->begin < range.begin) {
    Tile* const behind = split(tile, range.begin);
    if (edge == tile) edge = behind;
    tile = behind;
    ++left;
    ++all;
  }
  std::uint32_t taken = 1;
  while (tile->end() < range.end()) {
    Tile* const next = tile->after;
    if (next->end() > range.end()) {  // it stays, in part
      next->size = next->end() - range.end();
      next->begin = range.end();
      tile->size = range.end() - tile->begin;
      break;
    }
    if (edge == next) edge = tile;
    absorb_next(tile);
    ++taken;
  }
  if (tile->end() > range.end()) {
    Tile* const rest = split(tile, range.end());
    if (edge == tile) edge = rest;
    ++all;
  }
  if (left > 0) list_run(head, tile->before, range.begin - run.begin, left);
  if (range.end() < run.end()) {
    list_run(tile->after, edge, run.end() - range.end(), all - left - taken);
  }
  return tile;
}

Tile* Tiles::take(Tile* head, Range range, Tile::Kind kind) {
  runs_.remove(head);
  Tile* const tile = cut(head, range);
  tile->uses.reset();
  tile->kind = kind;
  used_ += range.size;
  if (kind == Tile::Kind::used) {
    tile->name = 0;
    index_.enter(tile);
  } else {
    index_.enter_part(tile);
  }
  return tile;
}

Tile* Tiles::release(Tile* tile, const Release& release) {
  index_.leave(tile);
  tile->kind = Tile::Kind::free;
  tile->row = nullptr;
  tile->slab = nullptr;
  tile->heap.store(nullptr, std::memory_order_relaxed);
  tile->by = release.by;
  tile->released = release.released;
  tile->freed_at = release.freed_at;
  tile->uses.join(std::move(tile->late));
  used_ -= tile->size;

  Tile *head = tile, *edge = tile;
  Bytes run = tile->size;
  std::uint32_t tiles = 1;
  if (Tile* const next = tile->after; next != nullptr && next->is_free()) {
    runs_.remove(next);
    run += next->run;
    tiles += next->tiles;
    edge = next->edge;
    if (says_the_same(*tile, *next)) {
      if (edge == next) edge = tile;
      tile->freed_at = std::max(tile->freed_at, next->freed_at);
      absorb_next(tile);
      --tiles;
    }
  }
  if (Tile* const front = tile->before; front != nullptr && front->is_free()) {
    head = front->edge;
    runs_.remove(head);
    run += head->run;
    tiles += head->tiles;
    if (says_the_same(*front, *tile)) {
      if (edge == tile) edge = front;
      front->freed_at = std::max(front->freed_at, tile->freed_at);
      absorb_next(front);
      --tiles;
    }
  }
  list_run(head, edge, run, tiles);
  if (tiles > most_notes()) [[unlikely]]
    shorten(head);
  return head;
}

void Tiles::add_fences(Range range, const FenceSet& fences) {
  for (Tile* tile = at(range.begin); tile != nullptr && tile->begin < range.end();
       tile = tile->after) {
    if (tile->is_free() && tile->by != Tile::kNobody) {
      tile->uses.join(fences);
    } else if (tile->kind == Tile::Kind::used || tile->kind == Tile::Kind::part) {
      tile->late.join(fences);
    }
  }
}

// Between two tiles that are entered lie runs, and parts of rows.
Tile* Tiles::head_around(Address address) const {
  const auto next = regions_.upper_bound(address);
  if (next == regions_.begin()) return nullptr;
  const auto& [begin, region] = *std::prev(next);
  if (address >= region.end) return nullptr;
  Tile* tile = index_.last(address, begin);
  if (tile == nullptr) tile = region.first;
  while (tile != nullptr && address >= (tile->is_free() ? tile->run_end() : tile->end())) {
    tile = tile->is_free() ? tile->edge->after : tile->after;
  }
  return tile;
}

Tile* Tiles::at(Address address) const {
  Tile* tile = head_around(address);
  while (tile != nullptr && tile->end() <= address) tile = tile->after;
  return tile;
}

Tile* Tiles::run_around(Range range) const {
  Tile* const head = head_around(range.begin);
  const bool holds = head != nullptr && head->is_free() && range.end() <= head->run_end();
  return holds ? head : nullptr;
}

const Tile* Tiles::after(const Tile* tile) const {
  if (tile->after != nullptr) return tile->after;
  const auto next = regions_.upper_bound(tile->begin);
  return next == regions_.end() ? nullptr : next->second.first;
}

std::vector<std::string> Tiles::validate() const {
  Broken broken{runs_.validate("runs")};
  broken.add(vacant_.validate("vacant tiles"));
  std::size_t runs = 0, vacant = 0;
  Bytes used;
  for (const auto& [begin, region] : regions_) {
    Address end = begin;
    const Tile* head = nullptr;
    Bytes run;
    std::uint32_t tiles = 0;
    for (const Tile* tile = region.first; tile != nullptr; tile = tile->after) {
      const std::string name = "tile at " + std::to_string(tile->begin.value);
      const Tile* const after = tile->after;
      const bool is_next = tile->begin == end && tile->size > 0_B;
      const bool is_linked = after == nullptr || after->before == tile;
      broken.note_if(!is_next, name, "it does not begin where the one before ends");
      broken.note_if(!is_linked, name, "linked wrong");
      if (!is_next || !is_linked) return broken.rules;
      end = tile->end();
      const bool is_entered = index_.last(tile->begin, tile->begin) == tile;
      broken.note_if(tile->kind != Tile::Kind::part && is_entered == tile->is_free(), name,
                     is_entered ? "free, yet in the index" : "not in the index");
      used += tile->kind == Tile::Kind::used || tile->kind == Tile::Kind::part ? tile->size : 0_B;
      if (tile->kind == Tile::Kind::vacant) {
        ++vacant;
        broken.note_if(tile->run != tile->size, name, "vacant, of another size");
        broken.note_if(bool{tile->uses}, name, "without memory, yet with users");
        broken.note_if(after != nullptr && after->kind == tile->kind, name,
                       "vacant, as the next is");
      }
      if (!tile->is_free()) continue;
      broken.note_if(bool{tile->late}, name, "free, with fences that came late");
      if (head == nullptr) {
        head = tile;
        run = 0_B;
        tiles = 0;
        ++runs;
      }
      run += tile->size;
      ++tiles;
      if (after != nullptr && after->is_free()) continue;
      broken.note_if(
          head->run != run || head->tiles != tiles || head->edge != tile || tile->edge != head,
          name, "its run is another than its head says");
      broken.note_if(tiles > kMost, name, "its run has too many tiles");
      head = nullptr;
    }
    broken.note_if(end != region.end, "tiles: they end before their region does");
  }
  broken.note_if(runs != runs_.count(), "tiles: a run is not listed");
  broken.note_if(vacant != vacant_.count(), "tiles: a vacant one is not listed");
  broken.note_if(used != used_, "tiles: the bytes in use are summed wrong");
  return broken.rules;
}

}  // namespace weir
