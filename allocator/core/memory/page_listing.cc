// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_listing.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

Bytes used_in(const PageTables& tables, const Page& page) {
  Bytes used;
  if (!page.idle()) tables.visit_used(page, [&](Range part) { used += part.size; });
  return used;
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
          .mappings = heap_.tables.mappings(),
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
                  0,       {},        heap_.rules.memory()};
    for (const auto& [at, heap] : mappings_of(page)) info.mapped_at.push_back({at.begin, heap});
    info.mapped_at.resize(info.mapped_at.size() - page.unmapped);
    info.mappings = static_cast<std::uint32_t>(info.mapped_at.size());
    pages.push_back(std::move(info));
  }
  for (const auto& [id, page] : heap_.tables.held) {
    pages.push_back({id, page.size, 0_B, std::nullopt, 0, {}, heap_.rules.memory()});
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
    return row != nullptr && row->size >= run.size;
  }
  while (tile->end() < run.end() && tile->after != nullptr) tile = tile->after;
  return run.end() <= tile->end() && (!heap_.rules.plain || heap_.tables.pages.is_mapped(run));
}

std::vector<PageListing::FreeInUse> PageListing::free_in_use_by(
    const std::vector<TimelineId>& users) const {
  std::vector<FreeInUse> free;
  for (const Tile* tile = heap_.tables.tiles.first(); tile != nullptr;
       tile = heap_.tables.tiles.after(tile)) {
    if (!tile->is_free() || !tile->uses) continue;
    FenceSet uses;
    for (const Fence fence : tile->uses->fences) {
      if (std::find(users.begin(), users.end(), fence.timeline) != users.end()) uses.join(fence);
    }
    if (!uses.empty()) free.push_back({tile->size, std::move(uses)});
  }
  return free;
}

}  // namespace weir
