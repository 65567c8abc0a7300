// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_sleep.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

// Stretches of bytes in use that lie closer are copied as one: a copy takes about as long to begin
// as so many bytes take to be copied.
constexpr Bytes kLeastGap = 128_KiB;

// A tile may go on in the page before, or the next.
std::vector<Range> in_use(const Tiles& tiles, const Page& page) {
  std::vector<Range> in_use;
  for (const Tile* tile = tiles.at(page.home); tile != nullptr && tile->begin < page.end();
       tile = tile->after) {
    if (tile->is_free() || tile->kind == Tile::Kind::vacant) continue;
    const Address from = std::max(tile->begin, page.home), to = std::min(tile->end(), page.end());
    if (!in_use.empty() && from - in_use.back().end() <= kLeastGap) {
      in_use.back().size = to - in_use.back().begin;
    } else {
      in_use.push_back({from, to - from});
    }
  }
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

void PageSleep::set_asleep(bool asleep) {
  const QueuedLock lock(heap_.mutex_);
  heap_.asleep_.store(asleep, std::memory_order_release);
}

Result<Bytes> PageSleep::give_idle() {
  const QueuedLock lock(heap_.mutex_);
  return heap_.trim_locked(PageHeap::kUnlimited);
}

std::vector<PageSleep::SleepingPage> PageSleep::pages_to_sleep(bool kept_whole) const {
  const QueuedLock lock(heap_.mutex_);
  std::vector<SleepingPage> pages;
  for (const auto& [id, page] : heap_.tables_.pages.all()) {
    if (page.sleeps()) continue;
    const bool whole = kept_whole && page.kept != Page::Kept::no;
    pages.push_back({page.id, page.range(),
                     whole ? std::vector{page.range()} : in_use(heap_.tables_.tiles, page)});
  }
  return pages;
}

std::vector<Range> PageSleep::home_of(Range block) const {
  const QueuedLock lock(heap_.mutex_);
  const StitchedRow* const row = heap_.tables_.rows.around(block.begin);
  if (row == nullptr) return {block};
  std::vector<Range> parts;
  row->visit_pages(block, [&](const Page& page, Bytes offset, Bytes size) {
    parts.push_back({page.home + offset, size});
  });
  return parts;
}

std::vector<PageId> PageSleep::pages_under(Range block) const {
  const QueuedLock lock(heap_.mutex_);
  std::vector<PageId> pages;
  if (const StitchedRow* const row = heap_.tables_.rows.around(block.begin)) {
    for (const Page* const page : row->pages) pages.push_back(page->id);
  } else {
    heap_.tables_.pages.walk(block,
                             [&](const Page& page, Bytes, Bytes) { pages.push_back(page.id); });
  }
  return pages;
}

Status PageSleep::take_memory(PageId id) {
  const QueuedLock lock(heap_.mutex_);
  PageTables& tables = heap_.tables_;
  heap_.driver_.unmap_strays();
  Page& page = tables.pages.all().at(id.value);
  if (page.sleeps()) return {};
  for (std::size_t left = PageDriver::mappings_of(page) - page.unmapped; left-- > 0;) {
    const auto [range, heap] = PageDriver::mapping(page, left);
    if (Status status = heap_.driver_.unmap_page(page.id, range, heap); !status) return status;
    ++page.unmapped;
    ++tables.absent_mappings;
  }
  if (Status status = heap_.device_.release(page.handle); !status) return status;
  page.handle = {};
  tables.absent_bytes += page.size;
  heap_.budget_.give_back(page.size);
  if (page.lease) {
    heap_.observer_.emit(Event{
        .kind = EventKind::unlease, .heap = *page.lease, .page = page.id, .bytes = page.size});
  }
  heap_.observer_.emit(Event{.kind = EventKind::release, .page = page.id, .bytes = page.size});
  return {};
}

Result<bool> PageSleep::renew_memory(PageId id) {
  const QueuedLock lock(heap_.mutex_);
  PageTables& tables = heap_.tables_;
  heap_.driver_.unmap_strays();
  Page& page = tables.pages.all().at(id.value);
  if (may_forget(page)) {
    if (Status status = heap_.driver_.forget(page); !status) return std::move(status).error();
    return false;
  }
  if (page.sleeps()) {
    if (page.size > heap_.placer_.room()) {
      return Error(ErrorCode::out_of_memory, "the limit leaves no room");
    }
    Result<PhysicalHandle> handle = heap_.device_.create(page.size);
    if (!handle) return std::move(handle).error();
    page.handle = *handle;
    tables.absent_bytes -= page.size;
    heap_.budget_.take(page.size);
    heap_.observer_.emit(Event{.kind = EventKind::create, .page = page.id, .bytes = page.size});
    if (page.lease) {
      heap_.observer_.emit(Event{
          .kind = EventKind::lease, .heap = *page.lease, .page = page.id, .bytes = page.size});
    }
  }
  while (page.unmapped > 0) {
    const auto [range, heap] =
        PageDriver::mapping(page, PageDriver::mappings_of(page) - page.unmapped);
    if (Status status = heap_.driver_.map(range, page.handle); !status) {
      return std::move(status).error();
    }
    heap_.observer_.emit(Event{.kind = EventKind::map,
                               .heap = heap,
                               .page = page.id,
                               .address = range.begin,
                               .bytes = range.size});
    --page.unmapped;
    --tables.absent_mappings;
  }
  return true;
}

bool PageSleep::has_memory(PageId id) const {
  const QueuedLock lock(heap_.mutex_);
  return heap_.tables_.pages.all().at(id.value).has_memory();
}

bool PageSleep::has_all_memory() const {
  const QueuedLock lock(heap_.mutex_);
  return heap_.tables_.absent_mappings == 0 && heap_.tables_.absent_bytes == 0_B;
}

Bytes PageSleep::absent_bytes() const {
  const QueuedLock lock(heap_.mutex_);
  return heap_.tables_.absent_bytes;
}

}  // namespace weir
