// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_loans.h"

#include <algorithm>
#include <utility>

namespace weir {

void PageLoans::note_mappings(const Page& page, std::size_t first, EventKind kind) {
  std::vector<PageMapping> mappings = mappings_of(page);
  mappings.resize(first);
  for (const auto& [at, heap] : mappings) {
    heap_.observer.emit(Event{.kind = kind,
                              .heap = kind == EventKind::map ? heap : HeapId{},
                              .page = page.id,
                              .address = at.begin,
                              .bytes = at.size});
  }
}

std::vector<Page*> PageLoans::scratch() const {
  std::vector<Page*> scratch;
  if (heap_.tables.asleep || heap_.rules.plain) return scratch;
  for (auto& [id, page] : heap_.tables.pages.all()) {
    const bool is_scratch = page.kept == Page::Kept::yes && page.idle() && !page.has_contents;
    if (is_scratch && page.has_memory()) scratch.push_back(&page);
  }
  std::stable_sort(scratch.begin(), scratch.end(),
                   [](const Page* a, const Page* b) { return a->size > b->size; });
  return scratch;
}

std::vector<PageLoans::Loan> PageLoans::lend(Bytes wanted, Bytes most) {
  std::vector<Loan> loans;
  PageTables& tables = heap_.tables;
  Bytes lent;
  for (Page* const page : scratch()) {
    if (lent >= wanted) break;
    const bool over =
        heap_.rules.trusts_context || heap_.timelines.is_seen_complete(tables.users_of(*page));
    if (!over || page->size > most - lent) continue;
    lent += page->size;
    loans.push_back({page->id, {std::exchange(page->handle, {}), page->size, {}}});
    page->lent = true;
    page->unmapped = page->lent_mappings = static_cast<std::uint32_t>(mappings_of(*page).size());
    tables.absent_bytes += page->size;
    tables.absent_mappings += page->unmapped;
    tables.lent_mappings += page->unmapped;
    note_mappings(*page, page->unmapped, EventKind::unmap);
    supply_.note(EventKind::release, page->id, page->size);
  }
  return loans;
}

bool PageLoans::take_back(PageId id, PhysicalHandle memory) {
  Page& page = heap_.tables.pages.all().at(id.value);
  page.handle = memory;
  const std::uint32_t there = std::exchange(page.lent_mappings, 0);
  page.unmapped -= there;
  page.lent = page.unmapped > 0;
  heap_.tables.absent_bytes -= page.size;
  heap_.tables.absent_mappings -= there;
  heap_.tables.lent_mappings -= there;
  supply_.note(EventKind::create, page.id, page.size);
  note_mappings(page, there, EventKind::map);
  return !page.lent;
}

Status PageLoans::part_with(PageId id) {
  Page& page = heap_.tables.pages.all().at(id.value);
  const std::vector<PageMapping> mappings = mappings_of(page);
  while (page.lent_mappings > 0) {
    const Range at = mappings[page.lent_mappings - 1].at;
    if (Status status = heap_.device.unmap(at.begin, at.size); !status) return status;
    --page.lent_mappings;
    --heap_.tables.lent_mappings;
  }
  return {};
}

std::optional<Range> PageLoans::idle(PageId id) const {
  const auto found = heap_.tables.pages.all().find(id.value);
  if (found == heap_.tables.pages.all().end()) return Range{};
  return found->second.idle() ? std::optional(found->second.range()) : std::nullopt;
}

FenceSet PageLoans::users(PageId id) const {
  const auto found = heap_.tables.pages.all().find(id.value);
  return found == heap_.tables.pages.all().end() ? FenceSet()
                                                 : heap_.tables.users_of(found->second);
}

Status PageLoans::give_back(PageId id) {
  std::vector<HeldPage>& held = heap_.tables.held;
  const auto at =
      std::find_if(held.begin(), held.end(), [&](const HeldPage& page) { return page.id == id; });
  if (at != held.end()) {
    (void)supply_.part_with(supply_.take_held(static_cast<std::size_t>(at - held.begin())));
  } else if (auto gone = supply_.unmap_and_part_with(heap_.tables.pages.all().at(id.value));
             !gone) {
    return std::move(gone).error();
  }
  heap_.tables.shrink_peak();
  return {};
}

void PageLoans::keep(PageId id) {
  Page& page = heap_.tables.pages.all().at(id.value);
  heap_.observer.emit(Event{.kind = EventKind::keep,
                            .page = id,
                            .bytes = page.size,
                            .pool = std::exchange(page.lent_by, 0u)});
}

}  // namespace weir
