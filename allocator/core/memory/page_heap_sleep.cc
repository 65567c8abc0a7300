// SPDX-License-Identifier: Apache-2.0
// Pages without memory: of a page heap that sleeps, each page gives its physical memory back, and
// gets other memory, mapped at the same addresses. Step by step: what a driver call that fails
// leaves undone, the next call of either direction goes on from.
//
// A page's mappings have an order: that of the home row first, then those of its stitched rows.
// They go from the last to the first, and come from the first to the last; Page::unmapped counts
// those that are gone.
#include <algorithm>
#include <string>
#include <utility>

#include "core/memory/page_heap.h"

namespace weir {
namespace {

// Stretches of bytes in use that lie closer are copied as one: a copy takes about as long to begin
// as so many bytes take to be copied.
constexpr Bytes kLeastGap = 128_KiB;

std::size_t mappings_of(const Page& page) { return 1 + page.rows.size(); }

}  // namespace

void PageHeap::set_asleep(bool asleep) {
  const QueuedLock lock(mutex_);
  asleep_.store(asleep, std::memory_order_release);
}

Error PageHeap::asleep_error() {
  return {ErrorCode::asleep, "the memory sleeps: wake it first, or ask for memory of another tag"};
}

Result<Bytes> PageHeap::give_idle() {
  const QueuedLock lock(mutex_);
  return trim_locked(0_B);
}

bool PageHeap::is_mapped(const Page& page, std::size_t mapping) {
  return mapping + page.unmapped < mappings_of(page);
}

std::size_t PageHeap::mapping_in(const Page& page, const StitchedRow& row) {
  const auto found = std::find(page.rows.begin(), page.rows.end(), &row);
  return 1 + static_cast<std::size_t>(found - page.rows.begin());
}

PageHeap::PageMapping PageHeap::mapping(const Page& page, std::size_t mapping) {
  if (mapping == 0) return {page.range(), page.heap};
  const StitchedRow& row = *page.rows[mapping - 1];
  Address at = row.begin;
  for (const Page* const each : row.pages) {
    if (each == &page) break;
    at = at + each->size;
  }
  return {{at, page.size}, row.heap};
}

std::vector<PageHeap::SleepingPage> PageHeap::pages_to_sleep(bool kept_whole) const {
  const QueuedLock lock(mutex_);
  std::vector<SleepingPage> pages;
  for (const auto& [id, page] : pages_.all()) {
    if (page.handle == PhysicalHandle{}) continue;
    SleepingPage one{page.id, page.range(), {}};
    if (kept_whole && page.kept != Page::Kept::no) {
      one.in_use.push_back(page.range());
    } else {
      list_in_use(page, one.in_use);
    }
    pages.push_back(std::move(one));
  }
  return pages;
}

// A chunk may go on in the page before, or the next.
void PageHeap::list_in_use(const Page& page, std::vector<Range>& in_use) const {
  const Address end = page.range().end();
  for (const Chunk* chunk = chunks_.at(page.home); chunk != nullptr && chunk->begin < end;
       chunk = chunk->after) {
    if (chunk->state != Chunk::State::used) continue;
    const Address from = std::max(chunk->begin, page.home), to = std::min(chunk->end(), end);
    if (!in_use.empty() && from - in_use.back().end() <= kLeastGap) {
      in_use.back().size = to - in_use.back().begin;
    } else {
      in_use.push_back({from, to - from});
    }
  }
}

std::vector<Range> PageHeap::home_of(Range block) const {
  const QueuedLock lock(mutex_);
  const StitchedRow* const row = rows_.around(block.begin);
  if (row == nullptr) return {block};
  std::vector<Range> parts;
  Bytes skip = block.begin - row->begin;
  for (const Page* const page : row->pages) {
    const Bytes part = skip < page->size ? std::min(block.size, page->size - skip) : 0_B;
    if (part > 0_B) parts.push_back({page->home + skip, part});
    block.size -= part;
    skip -= std::min(skip, page->size);
  }
  return parts;
}

std::vector<PageId> PageHeap::pages_under(Range block) const {
  const QueuedLock lock(mutex_);
  std::vector<PageId> pages;
  const StitchedRow* const row = rows_.around(block.begin);
  if (row == nullptr) {
    pages_.walk(block, [&](const Page& page, Bytes, Bytes) { pages.push_back(page.id); });
  } else {
    for (const Page* const page : row->pages) pages.push_back(page->id);
  }
  return pages;
}

Status PageHeap::take_memory(PageId id) {
  const QueuedLock lock(mutex_);
  unmap_strays();
  Page& page = pages_.all().at(id.value);
  if (page.handle == PhysicalHandle{}) return {};
  while (page.unmapped < mappings_of(page)) {
    const auto [range, heap] = mapping(page, mappings_of(page) - page.unmapped - 1);
    if (Status status = unmap_page(page.id, range, heap); !status) return status;
    ++page.unmapped;
    ++absent_mappings_;
  }
  if (Status status = device_.release(page.handle); !status) return status;
  page.handle = {};
  absent_bytes_ += page.size;
  budget_.give_back(page.size);
  if (page.lease) {
    observer_.emit(Event{
        .kind = EventKind::unlease, .heap = *page.lease, .page = page.id, .bytes = page.size});
  }
  observer_.emit(Event{.kind = EventKind::release, .page = page.id, .bytes = page.size});
  return {};
}

Result<bool> PageHeap::renew_memory(PageId id) {
  const QueuedLock lock(mutex_);
  unmap_strays();
  Page& page = pages_.all().at(id.value);
  if (may_forget(page)) {
    if (Status status = forget(page); !status) return std::move(status).error();
    return false;
  }
  if (page.handle == PhysicalHandle{}) {
    device_room_.reset();
    if (page.size > room()) {
      return Error(ErrorCode::out_of_memory, "the limit leaves no room");
    }
    Result<PhysicalHandle> handle = device_.create(page.size);
    if (!handle) return std::move(handle).error();
    page.handle = *handle;
    absent_bytes_ -= page.size;
    budget_.take(page.size);
    observer_.emit(Event{.kind = EventKind::create, .page = page.id, .bytes = page.size});
    if (page.lease) {
      observer_.emit(Event{
          .kind = EventKind::lease, .heap = *page.lease, .page = page.id, .bytes = page.size});
    }
  }
  while (page.unmapped > 0) {
    const auto [range, heap] = mapping(page, mappings_of(page) - page.unmapped);
    if (Status status = map_again(page, range, heap); !status) return std::move(status).error();
    --page.unmapped;
    --absent_mappings_;
  }
  return true;
}

Status PageHeap::map_again(const Page& page, Range at, HeapId heap) {
  if (Status status = device_.map(at.begin, at.size, page.handle); !status) return status;
  if (Status status = device_.set_access(at.begin, at.size); !status) {
    if (!device_.unmap(at.begin, at.size)) strays_.push_back(at);
    return status;
  }
  observer_.emit(Event{.kind = EventKind::map,
                       .heap = heap,
                       .page = page.id,
                       .address = at.begin,
                       .bytes = at.size});
  return {};
}

// Its blocks were freed meanwhile, and no graph needs it: memory for it would be idle.
bool PageHeap::may_forget(const Page& page) const {
  if (!page.idle() || page.kept != Page::Kept::no || page.handle != PhysicalHandle{}) return false;
  const auto is_whole = [](const Page* each) {
    return each->has_memory() || each->handle == PhysicalHandle{};
  };
  return std::all_of(page.rows.begin(), page.rows.end(), [&](const StitchedRow* row) {
    return std::all_of(row->pages.begin(), row->pages.end(), is_whole);
  });
}

Status PageHeap::forget(Page& page) {
  while (!page.rows.empty()) {
    if (Status status = unmap_row(*page.rows.back()); !status) return status;
  }
  chunks_.vacate(page.range());
  absent_bytes_ -= page.size;
  absent_mappings_ -= page.unmapped;
  pages_.remove(page);
  shrink_peak();
  return {};
}

bool PageHeap::has_memory(PageId id) const {
  const QueuedLock lock(mutex_);
  return pages_.all().at(id.value).has_memory();
}

bool PageHeap::has_all_memory() const {
  const QueuedLock lock(mutex_);
  return absent_mappings_ == 0 && absent_bytes_ == 0_B;
}

// Pages without memory, and without some of their mappings, recounted.
void PageHeap::validate_asleep(std::vector<std::string>& broken) const {
  Bytes absent;
  std::size_t unmapped = 0;
  for (const auto& [id, page] : pages_.all()) {
    const std::string name = "page " + std::to_string(id) + ": ";
    unmapped += page.unmapped;
    if (page.unmapped > mappings_of(page)) broken.push_back(name + "lacks mappings it never had");
    if (page.handle == PhysicalHandle{}) {
      absent += page.size;
      if (page.unmapped != mappings_of(page)) broken.push_back(name + "mapped without memory");
    }
    if (!page.has_memory() && !is_asleep()) {
      broken.push_back(name + "without memory, in a page heap that is awake");
    }
  }
  if (absent != absent_bytes_ || unmapped != absent_mappings_) {
    broken.emplace_back("page heap: what sleeps is summed wrong");
  }
}

}  // namespace weir
