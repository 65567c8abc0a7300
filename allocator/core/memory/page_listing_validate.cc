// SPDX-License-Identifier: Apache-2.0
// The invariants of a page heap, checked by counting again.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/memory/page_listing.h"

namespace weir {
namespace {

using Broken = std::vector<std::string>;

std::string name_of(const Page& page) { return "page " + std::to_string(page.id.value) + ": "; }
std::string name_of(const StitchedRow& row) {
  return "stitched row at " + std::to_string(row.begin.value) + ": ";
}

// Pages that are not mapped, and what is mapped and no page's.
void validate_held(const PageTables& tables, const Mappings& mappings, Broken& broken) {
  Bytes held;
  std::set<std::uint64_t> handles;
  for (const auto& [id, page] : tables.pages.all()) handles.insert(page.handle.value);
  for (const HeldPage& page : tables.held) {
    held += page.page.size;
    if (!handles.insert(page.page.handle.value).second) {
      broken.emplace_back("page heap: a page is held unmapped that is mapped, or held twice");
    }
  }
  if (held != tables.held_bytes) {
    broken.emplace_back("page heap: what is held unmapped is summed wrong");
  }
  for (const Range stray : mappings.strays()) {
    const Tile* const tile = tables.tiles.at(stray.begin);
    const StitchedRow* const row = tables.rows.around(stray.begin);
    const bool vacant = tile != nullptr
                            ? tile->kind == Tile::Kind::vacant && tile->range().contains(stray)
                            : row != nullptr && stray.begin >= row->begin + row->mapped();
    // Or it is that of a page which sleeps, and has not got it back.
    const auto is_missing = [&](const auto& entry) {
      const std::vector<PageMapping> all = mappings_of(entry.second);
      const std::size_t gone = std::min<std::size_t>(entry.second.unmapped, all.size());
      return std::any_of(all.end() - static_cast<std::ptrdiff_t>(gone), all.end(),
                         [&](const PageMapping& mapping) { return mapping.at == stray; });
    };
    const auto& all = tables.pages.all();
    if (!vacant && std::none_of(all.begin(), all.end(), is_missing)) {
      broken.emplace_back("page heap: a stray mapping lies where a page is mapped");
    }
  }
}

// Pages without memory, and without some of their mappings.
void validate_asleep(const PageTables& tables, Broken& broken) {
  Bytes absent;
  std::size_t unmapped = 0;
  for (const auto& [id, page] : tables.pages.all()) {
    const std::size_t mappings = mappings_of(page).size();
    unmapped += page.unmapped;
    if (page.unmapped > mappings) broken.push_back(name_of(page) + "lacks mappings it never had");
    if (page.sleeps()) {
      absent += page.size;
      if (page.unmapped != mappings) broken.push_back(name_of(page) + "mapped without memory");
    }
    if (!page.has_memory() && !tables.asleep) {
      broken.push_back(name_of(page) + "without memory, in a page heap that is awake");
    }
  }
  if (absent != tables.absent_bytes || unmapped != tables.absent_mappings) {
    broken.emplace_back("page heap: what sleeps is summed wrong");
  }
}

// Each region belongs to the home row, or to stitched rows, as far as it is ever mapped.
void validate_regions(const PageTables& tables, const std::vector<Range>& regions,
                      const PageRules& rules, Broken& broken) {
  for (const Range region : regions) {
    Bytes home;
    for (const Tile* tile = tables.tiles.at(region.begin); tile != nullptr; tile = tile->after) {
      home += tile->size;
    }
    const Bytes end = rules.plain ? 0_B : rules.granularity;
    const Bytes stitched = tables.rows.addresses_in(region);
    if ((home == 0_B || stitched > 0_B || home + end != region.size) &&
        (home > 0_B || stitched != tables.rows.usable(region).size)) {
      broken.push_back("region at " + std::to_string(region.begin.value) +
                       ": its addresses are not those of the rows in it");
    }
    if (rules.plain &&
        (!tables.pages.is_mapped(region) || tables.pages.at(region.begin).range() != region)) {
      broken.push_back("segment at " + std::to_string(region.begin.value) +
                       ": its addresses are not one page");
    }
  }
  if (rules.plain && regions.size() != tables.pages.all().size()) {
    broken.emplace_back("page heap: its pages are not its segments");
  }
}

// Tiles have memory where pages are mapped, and nowhere else.
void validate_tiles(const PageTables& tables, Broken& broken) {
  for (const Tile* tile = tables.tiles.first(); tile != nullptr; tile = tables.tiles.after(tile)) {
    if (tile->kind != Tile::Kind::vacant && !tables.pages.is_mapped(tile->range())) {
      broken.emplace_back("tiles: one has no memory");
    }
    if (tile->is_free() && tile->freed_at > tables.requests) {
      broken.emplace_back("tiles: bytes freed by a request yet to come");
    }
    if (tile->is_free() && tables.single_timeline &&
        (tile->uses || (tile->by != Tile::kNobody && tile->by != tables.first))) {
      broken.emplace_back("tiles: somebody must be waited for, yet it is said that nobody need be");
    }
  }
}

void validate_pages(const PageTables& tables, Broken& broken) {
  bool any_kept = false;
  Bytes leased;
  for (const auto& [id, page] : tables.pages.all()) {
    leased += page.idle() ? 0_B : page.size;
    if (page.idle() != (tables.tiles.run_around(page.range()) != nullptr)) {
      broken.push_back(name_of(page) +
                       (page.idle() ? "in use, yet not leased" : "idle, yet leased"));
    }
    any_kept = any_kept || page.kept != Page::Kept::no;
    if (page.kept != Page::Kept::no && !tables.keeps_any) {
      broken.push_back(name_of(page) + "kept, yet it is said that none is");
    }
    if (page.kept == Page::Kept::for_now && !tables.keeps_used) {
      broken.push_back(name_of(page) + "kept for a capture, and none goes on");
    }
    for (const StitchedRow* const row : page.rows) {
      if (std::find(row->pages.begin(), row->pages.end(), &page) == row->pages.end()) {
        broken.push_back(name_of(page) + "in a row that does not have it");
      } else if (page.idle() && row->state == StitchedRow::State::used) {
        broken.push_back(name_of(page) + "idle, in a row that is used");
      }
    }
  }
  if (tables.keeps_any && !any_kept) {
    broken.emplace_back("pages: none is kept, yet it is said that one is");
  }
  if (leased != tables.leased) broken.emplace_back("pages: those in use are summed wrong");
}

void validate_rows(const PageTables& tables, const Mappings& mappings, Broken& broken) {
  const std::vector<StitchedRow*>& retired = mappings.retired();
  tables.rows.visit_all([&](const StitchedRow& row) {
    const bool waits = std::find(retired.begin(), retired.end(), &row) != retired.end();
    if (waits != (row.state == StitchedRow::State::retired) && !row.pages.empty()) {
      broken.push_back(name_of(row) + "retired, and nobody is going to unmap it; or the reverse");
    }
    if (row.state != StitchedRow::State::used) return;
    auto part = row.parts.begin();
    const bool same = row.visit_parts(row.tile->size, [&](Range home) {
      return part != row.parts.end() && (*part)->range() == home && (*part)->row == &row &&
             (*part++)->kind == Tile::Kind::part;
    });
    if (!same || part != row.parts.end()) {
      broken.push_back(name_of(row) + "its bytes are not its parts");
    }
  });
}

// The runs given out are exactly the used tiles.
void validate_runs(const PageTables& tables, const std::vector<Range>& in_use, Broken& broken) {
  std::size_t used = 0;
  for (const Tile* tile = tables.tiles.first(); tile != nullptr; tile = tables.tiles.after(tile)) {
    used += tile->kind == Tile::Kind::used ? 1 : 0;
  }
  tables.rows.visit_all([&](const StitchedRow& row) { used += row.tile != nullptr ? 1 : 0; });
  std::set<Address> seen;
  for (const Range run : in_use) {
    const StitchedRow* const row = tables.rows.at(run.begin);
    const Tile* const tile = row == nullptr ? tables.tiles.at(run.begin) : row->tile;
    if (tile == nullptr || tile->kind != Tile::Kind::used || tile->range() != run ||
        !seen.insert(run.begin).second) {
      broken.push_back("run at " + std::to_string(run.begin.value) +
                       ": its bytes are not in use, or not by it alone");
    }
  }
  if (seen.size() != used) broken.emplace_back("tiles: bytes are in use that were not given out");
}

}  // namespace

std::vector<std::string> PageListing::validate(const std::vector<Range>& in_use) const {
  std::vector<std::string> broken;
  for (auto& part : {heap_.tables.pages.validate(), heap_.tables.tiles.validate(),
                     heap_.tables.rows.validate()}) {
    broken.insert(broken.end(), part.begin(), part.end());
  }
  // What follows walks them: it needs what they say of themselves to hold.
  if (!broken.empty()) return broken;
  if (heap_.tables.tiles.used() > heap_.tables.peak_used) {
    broken.emplace_back("page heap: more in use than the peak");
  }
  validate_held(heap_.tables, mappings_, broken);
  validate_asleep(heap_.tables, broken);
  validate_regions(heap_.tables, mappings_.regions(), heap_.rules, broken);
  validate_tiles(heap_.tables, broken);
  validate_pages(heap_.tables, broken);
  validate_rows(heap_.tables, mappings_, broken);
  validate_runs(heap_.tables, in_use, broken);
  return broken;
}

}  // namespace weir
