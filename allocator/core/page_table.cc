#include "core/page_table.h"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace weir {

std::vector<std::pair<Bytes, Bytes>> Page::used_ranges() const {
  std::vector<std::pair<Bytes, Bytes>> ranges;
  for (std::size_t i = 0; i + 1 < edges.size(); i += 2) {
    ranges.emplace_back(edges[i], edges[i + 1] - edges[i]);
  }
  return ranges;
}

namespace {

using Edges = std::vector<Bytes>;

// Apart from flip(), which then needs no stack in the usual case.
[[gnu::noinline]] void insert_both(Edges& edges, Edges::iterator at, Bytes begin, Bytes end) {
  edges.insert(at, {begin, end});
}
[[gnu::noinline]] void erase_both(Edges& edges, Edges::iterator at) { edges.erase(at, at + 2); }

// A stretch that is all free, or all in use, becomes the other: an edge at either end comes, or
// goes where another stretch touches.
void flip(Edges& edges, Bytes begin, Bytes end) {
  const auto at = std::lower_bound(edges.begin(), edges.end(), begin);
  assert(at == edges.end() || *at == begin || end <= *at);
  if (at == edges.end() || end < *at) {
    insert_both(edges, at, begin, end);
  } else if (*at == end) {
    *at = begin;
  } else if (const auto next = at + 1; next != edges.end() && *next == end) {
    erase_both(edges, at);
  } else {
    assert(next == edges.end() || end < *next);
    *at = end;
  }
}

std::uint32_t grains(Bytes size) {
  assert(size % kGrain == 0_B);
  return static_cast<std::uint32_t>(size / kGrain);
}

// The one that begins at `at`.
template <class Mappings>
auto& find_mapping(Mappings& mappings, Address at) {
  const auto found = std::find_if(mappings.begin(), mappings.end(),
                                  [&](const Mapping& mapping) { return mapping.at == at; });
  assert(found != mappings.end());
  return *found;
}

}  // namespace

const PageTable::Ends& PageTable::ends(HeapId heap) const {
  static const Ends none;
  refresh();
  const auto known = ends_.find(heap);
  return known == ends_.end() ? none : known->second;
}

void PageTable::unindex(const Page& page) const {
  const Page::Indexed indexed = std::exchange(page.indexed, {});
  if (indexed.where == Page::Indexed::Where::nowhere) return;
  if (indexed.where == Page::Indexed::Where::idle) {
    idle_.erase({page.size, page.id});
    return;
  }
  Ends& ends = ends_[indexed.heap];
  ends.tails.erase({indexed.tail, page.id});
  ends.heads.erase({indexed.head, page.id});
}

void PageTable::refresh() const {
  for (const PageId id : outdated_) {
    const auto known = pages_.find(id.value);
    if (known == pages_.end()) continue;
    const Page& page = known->second;
    unindex(page);
    if (!page.lease) {
      page.indexed = {.current = true, .where = Page::Indexed::Where::idle};
      idle_.emplace(page.size, id);
      continue;
    }
    page.indexed = {true, Page::Indexed::Where::ends, *page.lease, page.tail(), page.head()};
    Ends& ends = ends_[*page.lease];
    if (page.tail() > 0_B) ends.tails.emplace(page.tail(), id);
    if (page.head() > 0_B) ends.heads.emplace(page.head(), id);
  }
  outdated_.clear();
}

void PageTable::add(PageId id, PhysicalHandle handle, Bytes size) {
  Page& page = pages_[id.value];
  page.id = id;
  page.size = size;
  page.handle = handle;
  if (free_slots_.empty()) {
    page.slot = slots_++;
  } else {
    page.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  total_ += size;
  outdated_.push_back(id);
}

void PageTable::remove(PageId id) {
  const Page& page = pages_.at(id.value);
  assert(!page.lease && page.mappings.empty());
  unindex(page);
  total_ -= page.size;
  free_slots_.push_back(page.slot);
  pages_.erase(id.value);
}

void PageTable::add_mapping(PageId id, HeapId heap, Address at, RowId row) {
  Page& page = pages_.at(id.value);
  withdraw_long_unused(page, heap, kMostOffered - 1);
  page.mappings.push_back(Mapping{.at = at, .heap = heap, .row = row});
  page.home = page.mappings.front().at;
  granules_.set({at, page.size}, page);
  ++mappings_;
  offer(page, page.mappings.back());
}

PageMapping PageTable::mapping(Address at) const {
  const Page& page = *granules_.at(at).page;
  return {find_mapping(page.mappings, at), page.id};
}

void PageTable::remove_mapping(Address at) {
  Page& page = *granules_.at(at).page;
  assert(!page.lease || is_retired(at));
  withdraw(page, find_mapping(page.mappings, at), Mapping::Gives::nothing);
  std::erase_if(page.mappings, [&](const Mapping& mine) { return mine.at == at; });
  page.home = page.mappings.empty() ? Address{} : page.mappings.front().at;
  granules_.clear({at, page.size});
  --mappings_;
}

void PageTable::retire(Address at) {
  Page& page = *granules_.at(at).page;
  Mapping& mapping = find_mapping(page.mappings, at);
  assert(mapping.used_grains == 0);
  withdraw(page, mapping, Mapping::Gives::nothing);
}

void PageTable::restore(Address at) {
  Page& page = *granules_.at(at).page;
  Mapping& mapping = find_mapping(page.mappings, at);
  assert(mapping.retired());
  mapping.used_at = uses_;
  offer(page, mapping);
}

bool PageTable::is_retired(Address at) const {
  const GranuleMap::Entry* const entry = granules_.find(at);
  return entry != nullptr && entry->offset == 0_B && mapping(at).retired();
}

// Those used so long ago that their numbers would be below zero are as old as any.
void PageTable::lower_uses() {
  constexpr std::uint32_t kBy = kUsesEnd / 2;
  for (auto& [id, page] : pages_) {
    for (Mapping& mapping : page.mappings) mapping.used_at -= std::min(mapping.used_at, kBy);
  }
  uses_ -= kBy;
}

void PageTable::use(PageId id, Bytes offset, Bytes size, HeapId heap) {
  use_part(pages_.at(id.value), offset, size, heap, Address{});
}

void PageTable::free(PageId id, Bytes offset, Bytes size) {
  free_part(pages_.at(id.value), offset, size, Address{});
}

void PageTable::use_part(Page& page, Bytes offset, Bytes size, HeapId heap, Address through) {
  assert(!page.lease || *page.lease == heap);
  const bool leases = !page.lease;
  bool offers = false;
  if (leases) {
    page.lease = heap;
    leased_ += page.size;
  }
  for (Mapping& mapping : page.mappings) {
    if (mapping.heap != heap) {
      if (leases && mapping.told) list(mapping);
      continue;
    }
    if (mapping.at == through) {
      offers = !mapping.offered();
      offer(page, mapping);
      mapping.used_grains += grains(size);
      mapping.used_at = uses_;
    } else if (mapping.offered()) {
      offer(page, mapping);
      listener_.unusable(heap, {mapping.at + offset, size});
    }
  }
  page.used += size;
  used_ += size;
  flip(page.edges, offset, offset + size);
  outdate(page);
  if (offers) withdraw_long_unused(page, heap, kMostOffered);
}

void PageTable::free_part(Page& page, Bytes offset, Bytes size, Address through) {
  assert(page.lease);
  const HeapId heap = *page.lease;
  page.used -= size;
  used_ -= size;
  flip(page.edges, offset, offset + size);
  outdate(page);
  if (page.used == 0_B) {
    page.lease.reset();
    leased_ -= page.size;
  }
  for (Mapping& mapping : page.mappings) {
    if (mapping.heap != heap) {
      if (!page.lease && mapping.offered() && !mapping.told) list(mapping);
    } else if (mapping.at == through) {
      mapping.used_grains -= grains(size);
      mapping.used_at = uses_;
    } else if (mapping.offered()) {
      listener_.usable(heap, {mapping.at + offset, size});
    }
  }
}

bool PageTable::row_has(RowId row, PageId id) const {
  const Page& page = pages_.at(id.value);
  return std::any_of(page.mappings.begin(), page.mappings.end(),
                     [&](const Mapping& mapping) { return mapping.row == row; });
}

std::vector<PageMapping> PageTable::list_mappings() const {
  std::vector<PageMapping> all;
  for (const auto& [id, page] : pages_) {
    for (const Mapping& mapping : page.mappings) all.push_back({mapping, PageId{id}});
  }
  std::sort(all.begin(), all.end(), [](const Mapping& a, const Mapping& b) { return a.at < b.at; });
  return all;
}

bool PageTable::is_mapped(Range range) const {
  for (Address at = range.begin; at < range.end();) {
    if (granules_.find(at) == nullptr) return false;
    at = at - Bytes{at.value % GranuleMap::kGranule.count} + GranuleMap::kGranule;
  }
  return true;
}

}  // namespace weir
