// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_listing.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/base/broken.h"

namespace weir {
namespace {

Bytes used_in(const PageTables& tables, const Page& page) {
  Bytes used;
  if (!page.idle()) tables.visit_used(page, [&](Range part) { used += part.size; });
  return used;
}

// --- The invariants of a page heap, checked by counting again.

std::string at_address(Address address) { return " at " + std::to_string(address.value); }

template <class List, class Value>
bool contains(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Pages that are not mapped.
void validate_held(const PageTables& tables, Broken& broken) {
  Bytes held;
  std::set<std::uint64_t> handles;
  for (const auto& [id, page] : tables.pages.all()) handles.insert(page.handle.value);
  for (const HeldPage& page : tables.held) {
    held += page.page.size;
    broken.note_if(!handles.insert(page.page.handle.value).second,
                   "page heap: a page is held unmapped that is mapped, or held twice");
  }
  broken.note_if(held != tables.held_bytes, "page heap: what is held unmapped is summed wrong");
}

// Mappings that are no page's: they lie where none is mapped, or where one that sleeps has not got
// its mapping back.
void validate_strays(const PageTables& tables, const std::vector<Range>& strays, Broken& broken) {
  std::vector<Range> missing;
  for (const auto& [id, page] : tables.pages.all()) {
    std::vector<PageMapping> all = mappings_of(page);
    for (auto gone = page.unmapped; gone > 0 && !all.empty(); --gone, all.pop_back()) {
      missing.push_back(all.back().at);
    }
  }
  for (const Range stray : strays) {
    const Tile* const tile = tables.tiles.at(stray.begin);
    const StitchedRow* const row = tables.rows.around(stray.begin);
    const bool vacant = tile != nullptr
                            ? tile->kind == Tile::Kind::vacant && tile->range().contains(stray)
                            : row != nullptr && stray.begin >= row->begin + row->mapped();
    broken.note_if(!vacant && !contains(missing, stray),
                   "page heap: a stray mapping lies where a page is mapped");
  }
}

// Each region belongs to the home row, or to stitched rows, as far as it is ever mapped.
void validate_regions(const PageTables& tables, const std::vector<Mappings::Region>& regions,
                      const PageRules& rules, Broken& broken) {
  for (const Range& region : regions) {
    Bytes home;
    for (const Tile* tile = tables.tiles.at(region.begin); tile != nullptr; tile = tile->after) {
      home += tile->size;
    }
    const Bytes end = rules.plain ? 0_B : rules.granularity;
    const bool of_rows = tables.rows.has_region(region);
    broken.note_if(of_rows ? home > 0_B : home + end != region.size,
                   "region" + at_address(region.begin),
                   "its addresses are not those of the rows in it");
    broken.note_if(rules.plain && (!tables.pages.is_mapped(region) ||
                                   tables.pages.at(region.begin).range() != region),
                   "segment" + at_address(region.begin), "its addresses are not one page");
  }
  broken.note_if(rules.plain && regions.size() != tables.pages.all().size(),
                 "page heap: its pages are not its segments");
}

void validate_pages(const PageTables& tables, Broken& broken) {
  bool any_kept = false;
  Bytes leased, absent;
  std::size_t unmapped = 0, lent = 0;
  for (const auto& [id, page] : tables.pages.all()) {
    const std::string name = "page " + std::to_string(id);
    const std::size_t mappings = mappings_of(page).size();
    const bool kept = page.kept != Page::Kept::no;
    leased += page.idle() ? 0_B : page.size;
    absent += page.sleeps() ? page.size : 0_B;
    unmapped += page.unmapped;
    lent += page.lent_mappings;
    any_kept = any_kept || kept;
    broken.note_if(page.lent && (page.has_memory() || page.lent_mappings > mappings), name,
                   "lent, with memory of its own");
    broken.note_if(page.has_contents && !kept, name, "with contents that no graph reads");
    const bool free = tables.tiles.run_around(page.range()) != nullptr;
    broken.note_if(page.idle() && !free, name, "in use, yet not leased");
    broken.note_if(!page.idle() && free, name, "idle, yet leased");
    broken.note_if(page.unmapped > mappings, name, "lacks mappings it never had");
    broken.note_if(page.sleeps() && page.unmapped != mappings, name, "mapped without memory");
    broken.note_if(!page.has_memory() && !tables.asleep && !page.lent, name,
                   "without memory, in a page heap that is awake");
    broken.note_if(kept && !tables.keeps_any, name, "kept, yet it is said that none is");
    broken.note_if(page.kept == Page::Kept::for_now && !tables.keeps_used, name,
                   "kept for a capture, and none goes on");
    for (const StitchedRow* const row : page.rows) {
      broken.note_if(!contains(row->pages, &page), name, "in a row that does not have it");
      broken.note_if(page.idle() && row->state == StitchedRow::State::used, name,
                     "idle, in a row that is used");
    }
  }
  broken.note_if(absent != tables.absent_bytes || unmapped != tables.absent_mappings ||
                     lent != tables.lent_mappings,
                 "page heap: what sleeps is summed wrong");
  broken.note_if(tables.keeps_any && !any_kept, "pages: none is kept, yet it is said that one is");
  broken.note_if(leased != tables.leased, "pages: those in use are summed wrong");
}

void validate_rows(const PageTables& tables, const std::vector<StitchedRow*>& retired,
                   Broken& broken) {
  tables.rows.visit_all([&](const StitchedRow& row) {
    const std::string name = "stitched row" + at_address(row.begin);
    const bool is_retired = row.state == StitchedRow::State::retired;
    broken.note_if(contains(retired, &row) != is_retired && !row.pages.empty(), name,
                   "retired, and nobody is going to unmap it; or the reverse");
    if (row.state != StitchedRow::State::used) return;
    auto part = row.parts.begin();
    const bool same = row.visit_parts(row.tile->size, [&](Range home) {
      return part != row.parts.end() && (*part)->range() == home && (*part)->row == &row &&
             (*part++)->kind == Tile::Kind::part;
    });
    broken.note_if(!same || part != row.parts.end(), name, "its bytes are not its parts");
  });
}

// Tiles have memory where pages are mapped, and nowhere else; and the runs given out are exactly
// the used tiles.
void validate_tiles(const PageTables& tables, const std::vector<Range>& in_use, Broken& broken) {
  std::size_t used = 0;
  for (const Tile* tile = tables.tiles.first(); tile != nullptr; tile = tables.tiles.after(tile)) {
    used += tile->kind == Tile::Kind::used ? 1 : 0;
    broken.note_if(tile->kind != Tile::Kind::vacant && !tables.pages.is_mapped(tile->range()),
                   "tiles: one has no memory");
    if (!tile->is_free()) continue;
    broken.note_if(tile->freed_at > tables.requests, "tiles: bytes freed by a request yet to come");
    broken.note_if(tables.single_timeline &&
                       (tile->uses || (tile->by != Tile::kNobody && tile->by != tables.first)),
                   "tiles: somebody must be waited for, yet it is said that nobody need be");
  }
  tables.rows.visit_all([&](const StitchedRow& row) { used += row.tile != nullptr ? 1 : 0; });
  std::set<Address> seen;
  for (const Range run : in_use) {
    const StitchedRow* const row = tables.rows.at(run.begin);
    const Tile* const tile = row == nullptr ? tables.tiles.at(run.begin) : row->tile;
    broken.note_if(tile == nullptr || tile->kind != Tile::Kind::used || tile->range() != run ||
                       !seen.insert(run.begin).second,
                   "run" + at_address(run.begin), "its bytes are not in use, or not by it alone");
  }
  broken.note_if(seen.size() != used, "tiles: bytes are in use that were not given out");
}

}  // namespace

PageListing::Totals PageListing::totals() const {
  Bytes leased = heap_.tables.leased, used = heap_.tables.tiles.used();
  if (heap_.tables.absent_bytes > 0_B) {
    for (const auto& [id, page] : heap_.tables.pages.all()) {
      if (!page.sleeps()) continue;
      leased -= page.idle() ? 0_B : page.size;
      used -= used_in(heap_.tables, page);
    }
  }
  return {.total = heap_.tables.total(),
          .leased = leased,
          .used = used,
          .limit = heap_.placer.limit(),
          .peak_total = std::max(heap_.tables.peak_total, heap_.tables.total()),
          .mappings = heap_.tables.mappings() - heap_.tables.lent_mappings,
          .short_of_mappings = heap_.tables.short_of_mappings};
}

Bytes PageListing::kept() const {
  Bytes kept;
  for (const auto& [id, page] : heap_.tables.pages.all()) {
    kept += page.kept != Page::Kept::no ? page.size : 0_B;
  }
  return kept;
}

std::vector<PageInfo> PageListing::pages() const {
  std::vector<PageInfo> pages;
  for (const auto& [id, page] : heap_.tables.pages.all()) {
    if (page.sleeps()) continue;
    PageInfo info{page.id, page.size, used_in(heap_.tables, page), page.lease,
                  0,       {},        heap_.rules.memory(),        page.lent_by};
    for (const auto& [at, heap] : mappings_of(page)) info.mapped_at.push_back({at.begin, heap});
    info.mapped_at.resize(info.mapped_at.size() - page.unmapped);
    info.mappings = static_cast<std::uint32_t>(info.mapped_at.size());
    pages.push_back(std::move(info));
  }
  for (const auto& [id, page] : heap_.tables.held) {
    pages.push_back({id, page.size, 0_B, std::nullopt, 0, {}, heap_.rules.memory()});
    if (page.lent) pages.back().lent_by = page.lent->pool;
  }
  std::sort(pages.begin(), pages.end(),
            [](const PageInfo& a, const PageInfo& b) { return a.page < b.page; });
  return pages;
}

template <class Visitor>
void PageListing::visit_pages(Range block, Visitor&& visit) const {
  if (const StitchedRow* const row = heap_.tables.rows.around(block.begin)) {
    row->visit_pages(block, visit);
  } else if (heap_.tables.pages.is_mapped(block)) {  // it may have been freed since it was found
    heap_.tables.pages.walk(block, visit);
  }
}

std::vector<PagePart> PageListing::parts(Range block) const {
  std::vector<PagePart> parts;
  if (heap_.tables.asleep) return parts;
  visit_pages(block, [&](const Page& page, Bytes offset, Bytes size) {
    parts.push_back({page.handle, page.size, offset, size, heap_.rules.memory()});
  });
  return parts;
}

std::vector<Range> PageListing::home_of(Range block) const {
  std::vector<Range> parts;
  visit_pages(block, [&](const Page& page, Bytes offset, Bytes size) {
    parts.push_back({page.home + offset, size});
  });
  return parts;
}

std::vector<PageId> PageListing::pages_under(Range block) const {
  std::vector<PageId> pages;
  const StitchedRow* const row = heap_.tables.rows.around(block.begin);
  // (Of a row all pages, since the run uses bytes of each: StitchedRow::fits().)
  visit_pages(row == nullptr ? block : Range{row->begin, row->mapped()},
              [&](const Page& page, Bytes, Bytes) { pages.push_back(page.id); });
  return pages;
}

bool PageListing::has_addresses(Range run) const {
  const Tile* tile = heap_.tables.tiles.at(run.begin);
  if (tile == nullptr) {
    const StitchedRow* const row = heap_.tables.rows.at(run.begin);
    return row != nullptr && row->state != StitchedRow::State::retired
               ? row->size >= run.size
               : heap_.tables.rows.has_addresses(heap_.rules.granules_around(run));
  }
  while (tile->end() < run.end() && tile->after != nullptr) tile = tile->after;
  return run.end() <= tile->end() && (!heap_.rules.plain || heap_.tables.pages.is_mapped(run));
}

std::vector<std::string> PageListing::validate(const std::vector<Range>& in_use) const {
  const PageTables& tables = heap_.tables;
  Broken broken;
  broken.add(tables.pages.validate());
  broken.add(tables.tiles.validate());
  broken.add(tables.rows.validate());
  // What follows walks them: it needs what they say of themselves to hold.
  if (!broken.rules.empty()) return broken.rules;
  broken.note_if(tables.tiles.used() > tables.peak_used, "page heap: more in use than the peak");
  validate_held(tables, broken);
  validate_strays(tables, mappings_.strays(), broken);
  validate_regions(tables, mappings_.regions(), heap_.rules, broken);
  validate_pages(tables, broken);
  validate_rows(tables, mappings_.retired(), broken);
  validate_tiles(tables, in_use, broken);
  return broken.rules;
}

}  // namespace weir
