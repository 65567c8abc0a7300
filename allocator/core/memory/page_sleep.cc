// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_sleep.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

// Stretches of bytes in use that lie closer are copied as one: a copy takes about as long to begin
// as so many bytes take to be copied.
constexpr Bytes kLeastGap = 128_KiB;

std::vector<Range> bytes_in_use(const PageTables& tables, const Page& page) {
  std::vector<Range> in_use;
  tables.visit_used(page, [&](Range used) {
    if (!in_use.empty() && used.begin - in_use.back().end() <= kLeastGap) {
      in_use.back().size = used.end() - in_use.back().begin;
    } else {
      in_use.push_back(used);
    }
  });
  return in_use;
}

// Its blocks were freed meanwhile, and no graph needs it: memory for it would be idle.
bool may_forget(const Page& page) {
  if (!page.idle() || page.kept != Page::Kept::no || !page.sleeps()) return false;
  const auto is_whole = [](const Page* each) { return each->has_memory() || each->sleeps(); };
  return std::all_of(page.rows.begin(), page.rows.end(), [&](const StitchedRow* row) {
    return std::all_of(row->pages.begin(), row->pages.end(), is_whole);
  });
}

}  // namespace

std::vector<PageSleep::SleepingPage> PageSleep::pages_to_sleep(bool kept_whole) const {
  std::vector<SleepingPage> pages;
  for (const auto& [id, page] : heap_.tables.pages.all()) {
    if (page.sleeps()) continue;
    const bool whole = kept_whole && page.kept != Page::Kept::no;
    pages.push_back({page.id, page.range(),
                     whole ? std::vector{page.range()} : bytes_in_use(heap_.tables, page)});
  }
  return pages;
}

void PageSleep::note_lease(const Page& page, EventKind kind) {
  if (!page.lease) return;
  heap_.observer.emit(
      Event{.kind = kind, .heap = *page.lease, .page = page.id, .bytes = page.size});
}

Status PageSleep::take_memory(PageId id) {
  mappings_.unmap_strays();
  Page& page = heap_.tables.pages.all().at(id.value);
  if (page.sleeps()) return {};
  const std::vector<PageMapping> mappings = mappings_of(page);
  while (page.unmapped < mappings.size()) {
    const PageMapping& last = mappings[mappings.size() - page.unmapped - 1];
    if (Status status = mappings_.unmap(page.id, last); !status) return status;
    ++page.unmapped;
    ++heap_.tables.absent_mappings;
  }
  if (Status status = heap_.device.release(page.handle); !status) return status;
  page.handle = {};
  heap_.tables.absent_bytes += page.size;
  note_lease(page, EventKind::unlease);
  supply_.note(EventKind::release, page.id, page.size);
  return {};
}

bool PageSleep::needs_memory(PageId id) const {
  const auto found = heap_.tables.pages.all().find(id.value);
  return found != heap_.tables.pages.all().end() && found->second.sleeps() &&
         !may_forget(found->second);
}

Result<bool> PageSleep::renew_memory(PageId id) {
  mappings_.unmap_strays();
  const auto found = heap_.tables.pages.all().find(id.value);
  if (found == heap_.tables.pages.all().end()) return false;
  Page& page = found->second;
  if (may_forget(page)) {
    if (Status status = supply_.forget(page); !status) return std::move(status).error();
    return false;
  }
  if (page.sleeps()) {
    if (page.size > heap_.placer.room()) {
      return Error(ErrorCode::out_of_memory, "the limit leaves no room");
    }
    const Result<PhysicalHandle> handle = heap_.device.create(page.size);
    if (!handle) return handle.error();
    page.handle = *handle;
    heap_.tables.absent_bytes -= page.size;
    supply_.note(EventKind::create, page.id, page.size);
    note_lease(page, EventKind::lease);
  }
  const std::vector<PageMapping> mappings = mappings_of(page);
  while (page.unmapped > 0) {
    const auto& [at, heap] = mappings[mappings.size() - page.unmapped];
    if (Status status = mappings_.map(page.handle, at); !status) return std::move(status).error();
    heap_.observer.emit(Event{.kind = EventKind::map,
                              .heap = heap,
                              .page = page.id,
                              .address = at.begin,
                              .bytes = at.size});
    --page.unmapped;
    --heap_.tables.absent_mappings;
  }
  page.lent = false;
  return true;
}

}  // namespace weir
