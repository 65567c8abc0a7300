// SPDX-License-Identifier: Apache-2.0
// The driver calls of PageHeap, each with its bookkeeping: what fails leaves both as they were.
#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "core/memory/page_heap.h"

namespace weir {
namespace {

// Addresses reserved at a time. Addresses cost nothing, but only some 60 TiB can be had: where
// there are many regions, in all page heaps of the device, less each.
Bytes region_size(std::uint64_t regions) {
  if (regions < 64) return 256_GiB;
  return regions < 512 ? 32_GiB : 4_GiB;
}
constexpr Bytes kRegionUnit = 4_GiB;
static_assert(kRegionUnit % AddressMap::kSlot == 0_B);

// How many mappings are given up at a time when there are too many.
constexpr std::size_t kMappingsShed = 256;

// From so many new pages on, the device is asked first whether it has them.
constexpr std::size_t kManyPages = 8;

}  // namespace

PageHeap::~PageHeap() {
  const QueuedLock lock(mutex_);
  // What the driver refuses here is lost: nobody is left to tell.
  rows_.visit_all([&](const StitchedRow& row) WEIR_REQUIRES(mutex_) {
    Address at = row.begin;
    for (const Page* const page : row.pages) {
      if (is_mapped(*page, mapping_in(*page, row))) (void)device_.unmap(at, page->size);
      at = at + page->size;
    }
  });
  if (!plain_) {
    for (const auto& [id, page] : pages_.all()) {
      if (is_mapped(page, 0)) (void)device_.unmap(page.home, page.size);
    }
  }
  unmap_strays();
  for (const Range region : regions_) addresses_.remove_region(region);
  for (const auto& [id, page] : pages_.all()) {
    if (page.handle != PhysicalHandle{}) (void)release({page.handle, page.size});
  }
  for (const HeldPage& held : held_) (void)release(held.page);
  if (plain_) return;
  for (const Range region : regions_) (void)device_.unreserve(region.begin, region.size);
}

Status PageHeap::release(const UnmappedPage& page) {
  if (plain_) return device_.free_segment(Address{page.handle.value}, page.size);
  return device_.release(page.handle);
}

Result<Range> PageHeap::reserve(Bytes least) {
  least = round_up(least + granularity_, kRegionUnit);
  Bytes wanted = std::max(least, region_size(budget_.regions()));
  Result<Address> base = device_.reserve(wanted, kRegionUnit);
  while (!base && wanted > least) {
    wanted = std::max(least, round_up(wanted / 4, kRegionUnit));
    base = device_.reserve(wanted, kRegionUnit);
  }
  if (!base) return std::move(base).error();
  const Range region{*base, wanted};
  if (!AddressMap::covers(region)) {
    (void)device_.unreserve(region.begin, region.size);
    return Error(ErrorCode::device, "the device reserves addresses beyond 49 bits");
  }
  addresses_.add_region(region);
  regions_.push_back(region);
  budget_.count_region();
  return region;
}

Status PageHeap::begin_region(Bytes least) {
  const Result<Range> region = reserve(least);
  if (!region) return region.error();
  if (row_begin_ == Address{}) row_begin_ = region->begin;
  // The end is never mapped: two regions, side by side by chance, are two rows.
  chunks_.add_region({region->begin, region->size - granularity_});
  return {};
}

Result<Address> PageHeap::vacancy(Bytes room) {
  const auto lowest = [&]() WEIR_REQUIRES(mutex_) {
    const Chunk* best = nullptr;
    for (const Chunk* hole = chunks_.vacant(); hole != nullptr; hole = hole->next) {
      if (hole->size >= room && (best == nullptr || hole->begin < best->begin)) best = hole;
    }
    return best;
  };
  const Chunk* hole = lowest();
  if (hole == nullptr) {
    if (Status status = begin_region(room); !status) return std::move(status).error();
    hole = lowest();
  }
  return hole->begin;
}

PageHeap::HeldPage PageHeap::add(UnmappedPage loose) {
  const PageId id = budget_.next_page();
  budget_.take(loose.size);
  observer_.emit(
      Event{.kind = EventKind::create, .plain = plain_, .page = id, .bytes = loose.size});
  return {id, loose};
}

void PageHeap::hold(HeldPage page) {
  held_.push_back(page);
  held_bytes_ += page.page.size;
}

Result<PageHeap::HeldPage> PageHeap::create(Bytes size) {
  Result<PhysicalHandle> handle = device_.create(size);
  if (!handle) {
    if (handle.error().code() == ErrorCode::out_of_memory) {
      const Result<MemoryInfo> info = device_.memory_info();
      const Bytes free = info ? round_down(info->free, granularity_) : 0_B;
      device_room_ = std::min(free, size - granularity_);
    }
    return std::move(handle).error();
  }
  if (device_room_) *device_room_ -= std::min(*device_room_, size);
  return add({*handle, size});
}

// On an error the pages that were held stay held, and those that were created go back: the device
// has room for a part of the request only, and a program that runs out of memory is told what is
// free.
Result<std::vector<PageHeap::HeldPage>> PageHeap::obtain(Bytes size) {
  std::vector<HeldPage> pages;
  Bytes have;
  while (have < size && !held_.empty()) {
    pages.push_back(held_.back());
    held_.pop_back();
    held_bytes_ -= pages.back().page.size;
    have += pages.back().page.size;
  }
  if (have >= size) return pages;
  const std::size_t held = pages.size();
  const auto fail = [&](Error error) WEIR_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if (i < held) {
        hold(pages[i]);
      } else if (give_back(take_out(pages[i])) && device_room_) {
        *device_room_ += pages[i].page.size;
      }
    }
    return error;
  };
  const std::vector<Bytes> sizes = page_sizes(size - have);
  if (size - have > room()) {
    return fail(Error(ErrorCode::out_of_memory, "the limit leaves no room"));
  }
  // Rather than fail half way, and be left with pages that serve nobody, ask first where it is
  // much.
  if (sizes.size() >= kManyPages) {
    Bytes all;
    for (const Bytes each : sizes) all += each;
    if (const Result<MemoryInfo> info = device_.memory_info(); info && info->free < all) {
      device_room_ = round_down(info->free, granularity_);
      return fail(Error(ErrorCode::out_of_memory, "the device has too little free memory"));
    }
  }
  for (const Bytes each : sizes) {
    Result<HeldPage> page = create(each);
    if (!page) return fail(std::move(page).error());
    pages.push_back(*page);
  }
  return pages;
}

Status PageHeap::map_page(const Owner& owner, PageId page, PhysicalHandle handle, Range at) {
  if (Status status = device_.map(at.begin, at.size, handle); !status) return status;
  if (Status status = device_.set_access(at.begin, at.size); !status) {
    // Should the driver not even take it back, it is tried again later.
    if (!device_.unmap(at.begin, at.size)) strays_.push_back(at);
    return status;
  }
  observer_.emit(
      owner.fold,
      Event{.kind = EventKind::map, .page = page, .address = at.begin, .bytes = at.size});
  return {};
}

// Who has registered the memory is told before it goes. On an error it is there again.
Status PageHeap::unmap_page(PageId page, Range at, HeapId heap) {
  observer_.emit(
      Event{.kind = EventKind::unmap, .page = page, .address = at.begin, .bytes = at.size});
  Status unmapped = device_.unmap(at.begin, at.size);
  if (!unmapped) {
    observer_.emit(Event{
        .kind = EventKind::map, .heap = heap, .page = page, .address = at.begin, .bytes = at.size});
  }
  return unmapped;
}

// On an error what could not be mapped stays held.
Result<std::vector<Page*>> PageHeap::map_home(const Owner& owner, Address at,
                                              const std::vector<HeldPage>& pages) {
  std::vector<Page*> mapped;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto& [id, loose] = pages[i];
    const Range home{at, loose.size};
    if (Status status = map_page(owner, id, loose.handle, home); !status) {
      for (; i < pages.size(); ++i) hold(pages[i]);
      return std::move(status).error();
    }
    chunks_.fill(home);
    mapped.push_back(&pages_.add(id, loose.handle, home, owner.id));
    at = at + loose.size;
  }
  return mapped;
}

Result<std::vector<Page*>> PageHeap::extend(Owner& owner, Address at, Bytes size) {
  unmap_strays();
  if (Status status = make_room_for_mappings(page_sizes(size).size() + held_.size()); !status) {
    return std::move(status).error();
  }
  Result<std::vector<HeldPage>> pages = obtain(size);
  if (!pages) return std::move(pages).error();
  return map_home(owner, at, *pages);
}

Status PageHeap::fill(Owner& owner, Range vacant) {
  unmap_strays();
  const std::vector<Bytes> sizes = page_sizes(vacant.size);
  if (Status status = make_room_for_mappings(sizes.size()); !status) return status;
  if (vacant.size > room()) {
    return Error(ErrorCode::out_of_memory, "the limit leaves no room");
  }
  std::vector<HeldPage> pages;
  for (const Bytes each : sizes) {
    Result<HeldPage> page = create(each);
    if (!page) {
      for (const HeldPage& made : pages) (void)give_back(take_out(made));
      return std::move(page).error();
    }
    pages.push_back(*page);
  }
  Result<std::vector<Page*>> mapped = map_home(owner, vacant.begin, pages);
  return mapped ? Status{} : Status(std::move(mapped).error());
}

Status PageHeap::map_held(Owner& owner) {
  unmap_strays();
  if (Status status = make_room_for_mappings(held_.size()); !status) return status;
  Result<Address> at = vacancy(held_bytes_);
  if (!at) return std::move(at).error();
  const std::vector<HeldPage> pages = std::exchange(held_, {});
  held_bytes_ = 0_B;
  Result<std::vector<Page*>> mapped = map_home(owner, *at, pages);
  return mapped ? Status{} : Status(std::move(mapped).error());
}

void PageHeap::unmap_strays() {
  std::erase_if(strays_, [&](Range stray) WEIR_REQUIRES(mutex_) {
    if (!device_.unmap(stray.begin, stray.size)) return false;
    StitchedRow* const row = rows_.around(stray.begin);
    if (row != nullptr && row->pages.empty()) rows_.remove(*row);
    return true;
  });
}

Status PageHeap::unmap_last(StitchedRow& row) {
  Page& page = *row.pages.back();
  if (page.handle == PhysicalHandle{}) {  // it sleeps
    --page.unmapped;
    --absent_mappings_;
    rows_.drop_last(row);
    return {};
  }
  Address at = row.begin;
  for (const Page* const each : row.pages) at = at + (each == &page ? 0_B : each->size);
  if (Status status = unmap_page(page.id, {at, page.size}, row.heap); !status) return status;
  rows_.drop_last(row);
  return {};
}

// Nobody uses its addresses any more. On an error it is retired, with what is still mapped.
Status PageHeap::unmap_row(StitchedRow& row) {
  if (row.state == StitchedRow::State::idle) {
    rows_.retire(row);
    retired_.push_back(&row);
  }
  while (!row.pages.empty()) {
    if (Status status = unmap_last(row); !status) return status;
  }
  std::erase(retired_, &row);
  const auto is_in_row = [&](Range stray)
                             WEIR_REQUIRES(mutex_) { return rows_.around(stray.begin) == &row; };
  // Else its addresses are not free yet.
  if (std::none_of(strays_.begin(), strays_.end(), is_in_row)) rows_.remove(row);
  return {};
}

Result<PageHeap::UnmappedPage> PageHeap::take_out(Page& page) {
  while (!page.rows.empty()) {
    if (Status status = unmap_row(*page.rows.back()); !status) return std::move(status).error();
  }
  const Range home = page.range();
  const HeldPage taken{page.id, {page.handle, page.size}};
  if (plain_) {
    forget_segment(page);
  } else {
    if (Status status = unmap_page(page.id, home, page.heap); !status) {
      return std::move(status).error();
    }
    chunks_.vacate(home);
  }
  pages_.remove(page);
  return take_out(taken);
}

PageHeap::UnmappedPage PageHeap::take_out(HeldPage held) {
  budget_.give_back(held.page.size);
  observer_.emit(
      Event{.kind = EventKind::release, .plain = plain_, .page = held.id, .bytes = held.page.size});
  return held.page;
}

// To the driver.
Status PageHeap::give_back(UnmappedPage loose) {
  Status released = release(loose);
  if (!released) hold(add(loose));  // it is still there
  return released;
}

// What was once in use in pages that are gone is no reason to grow again: only the next requests
// are.
void PageHeap::shrink_peak() {
  peak_used_ = std::max(pages_.used(), std::min(peak_used_, total()));
}

void PageHeap::forget_if_empty() {
  if (!is_empty()) return;
  placements_.clear();
  timelines_.drop_old_events();
}

void PageHeap::tidy() {
  const QueuedLock lock(mutex_);
  if (!is_empty()) return;
  placements_.clear();
  timelines_.drop_complete_events();
  pages_.shrink();
  if (held_.empty()) held_ = {};
}

// On an error a region stays.
void PageHeap::give_back_addresses() {
  tidy();
  const QueuedLock lock(mutex_);
  if (!is_empty() || rows_.count() > 0 || !strays_.empty()) return;
  std::erase_if(regions_, [&](Range region) WEIR_REQUIRES(mutex_) {
    addresses_.remove_region(region);  // before another heap may be given the same
    if (!device_.unreserve(region.begin, region.size)) {
      addresses_.add_region(region);
      return false;
    }
    budget_.discount_region();
    if (chunks_.at(region.begin) == nullptr) {
      rows_.remove_region(region);
    } else {
      chunks_.remove_region({region.begin, region.size - granularity_});
    }
    return true;
  });
  if (regions_.empty()) row_begin_ = Address{};
  chunks_.shrink();
}

std::vector<Page*> PageHeap::idle_pages() {
  std::vector<Page*> idle;
  if (absent_mappings_ > 0) return idle;  // a row that goes with a page may lack some
  for (auto& [id, page] : pages_.all()) {
    if (page.idle() && page.kept == Page::Kept::no) idle.push_back(&page);
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [](const Page* a, const Page* b) { return a->size > b->size; });
  return idle;
}

Result<Bytes> PageHeap::give_to_device(Bytes wanted) {
  const QueuedLock lock(mutex_);
  if (is_asleep()) return 0_B;
  return trim_locked(total() - std::min(total(), wanted));
}

Result<Bytes> PageHeap::try_give_to_device(Bytes wanted) {
  if (is_asleep() || !mutex_.try_lock()) return 0_B;
  Result<Bytes> gone =
      is_asleep() ? Result<Bytes>(0_B) : trim_locked(total() - std::min(total(), wanted));
  mutex_.unlock();
  return gone;
}

void PageHeap::keep_to_limit() {
  const QueuedLock lock(mutex_);
  keep_to_limit_locked();
}

void PageHeap::keep_to_limit_locked() {
  const Bytes excess = budget_.excess();
  if (excess > 0_B && !is_asleep()) (void)trim_locked(total() - std::min(total(), excess));
}

// Pages that lie side by side often wait for the same: the device is asked once.
Result<bool> PageHeap::is_over(const Page& page, FenceSet& pending) {
  FenceSet users = users_of(page.range());
  if (users.empty()) return true;
  if (users == pending) return false;
  Result<bool> complete = timelines_.complete(users);
  if (complete && !*complete) pending = std::move(users);
  return complete;
}

Result<Bytes> PageHeap::trim_locked(Bytes keep) {
  unmap_strays();
  Bytes gone;
  Status unasked, failed;
  std::vector<UnmappedPage> kept;  // by the driver
  const Status unmapped =
      take_idle(total() - std::min(total(), keep), kUnlimited, unasked, [&](UnmappedPage page) {
        Status released = release(page);
        if (released) {
          gone += page.size;
          return true;
        }
        kept.push_back(page);
        if (failed) failed = std::move(released);
        return false;
      });
  for (const UnmappedPage page : kept) hold(add(page));
  if (gone > 0_B) {
    shrink_peak();
    forget_if_empty();
    observer_.emit(Event{.kind = EventKind::trim, .bytes = gone});
  }
  if (!unmapped) return unmapped.error();
  if (!failed) return std::move(failed).error();
  if (gone == 0_B && !unasked) return std::move(unasked).error();
  return gone;
}

Status PageHeap::take_idle(Bytes wanted, Bytes most, Status& unasked,
                           const std::function<bool(UnmappedPage)>& go) {
  Status failed;
  Bytes gone;
  for (std::size_t i = held_.size(); i-- > 0 && gone < wanted;) {
    const HeldPage held = held_[i];
    if (held.page.size > most - gone) continue;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    held_bytes_ -= held.page.size;
    if (go(take_out(held))) gone += held.page.size;
  }
  FenceSet pending;
  for (Page* const idle : idle_pages()) {
    if (gone >= wanted) break;
    if (idle->size > most - gone) continue;
    // A page whose stream is no more (destroyed, and never retired) must not keep the others.
    Result<bool> complete = is_over(*idle, pending);
    if (!complete) {
      if (unasked) unasked = std::move(complete).error();
      continue;
    }
    if (!*complete) continue;
    Result<UnmappedPage> page = take_out(*idle);
    if (!page) {
      if (failed) failed = std::move(page).error();
    } else if (go(*page)) {
      gone += page->size;
    }
  }
  return failed;
}

// Gives up idle stitched rows, where the device is done with them. Goes before anything is placed.
Status PageHeap::make_room_for_mappings(std::size_t more) {
  if (has_room_for_mappings(more)) return {};
  std::vector<StitchedRow*> idle;
  rows_.visit_all([&](StitchedRow& row) {
    const bool kept = std::any_of(row.pages.begin(), row.pages.end(),
                                  [](const Page* page) { return page->kept != Page::Kept::no; });
    if (!kept && row.state == StitchedRow::State::idle) idle.push_back(&row);
  });
  std::size_t shed = 0;
  for (StitchedRow* const row : idle) {
    if (shed >= kMappingsShed && has_room_for_mappings(more)) break;
    const Result<bool> complete = timelines_.complete(row->users);
    if (!complete && complete.error().code() != ErrorCode::capture) return complete.error();
    if (!complete || !*complete) continue;
    shed += row->pages.size();
    if (Status status = unmap_row(*row); !status) return status;
  }
  if (has_room_for_mappings(more)) return {};
  short_of_mappings_ = true;
  return Error(ErrorCode::out_of_memory,
               std::to_string(mappings()) +
                   " mappings are held, of the most that HeapOptions::most_mappings allows, and " +
                   "too few can be given up");
}

Status PageHeap::wait_for_idle_pages() {
  FenceSet fences;
  {
    const QueuedLock lock(mutex_);
    for (const Page* const page : idle_pages()) fences.join(users_of(page->range()));
  }
  for (const Fence fence : fences) {
    FenceSet one;
    one.join(fence);
    // What is captured just now can't be waited for, nor anything that takes memory of the device
    // where there is none: those pages stay as they are.
    Status waited = timelines_.host_wait(one);
    const bool stays = !waited && (waited.error().code() == ErrorCode::capture ||
                                   waited.error().code() == ErrorCode::out_of_memory);
    if (!waited && !stays) return waited;
  }
  return {};
}

Status PageHeap::renew_access() {
  const QueuedLock lock(mutex_);
  Status status;
  if (plain_) return status;  // the driver's own business
  for (const auto& [id, page] : pages_.all()) {
    for (std::size_t i = 0; is_mapped(page, i); ++i) {
      if (status) status = device_.set_access(mapping(page, i).range.begin, page.size);
    }
  }
  return status;
}

// The block may lie anywhere in its run: small ones share one.
std::vector<PagePart> PageHeap::parts(Range block) const {
  const QueuedLock lock(mutex_);
  std::vector<PagePart> parts;
  if (is_asleep()) return parts;
  const StitchedRow* const row = rows_.around(block.begin);
  if (row == nullptr) {
    pages_.walk(block, [&](const Page& page, Bytes offset, Bytes size) {
      parts.push_back({page.handle, page.size, offset, size, memory()});
    });
    return parts;
  }
  Bytes skip = block.begin - row->begin;
  for (const Page* const page : row->pages) {
    const Bytes part = skip < page->size ? std::min(block.size, page->size - skip) : 0_B;
    if (part != 0_B) parts.push_back({page->handle, page->size, skip, part, memory()});
    block.size -= part;
    skip -= std::min(skip, page->size);
    if (block.size == 0_B) break;
  }
  return parts;
}

bool PageHeap::has_addresses(Range run) const {
  const QueuedLock lock(mutex_);
  if (const Chunk* chunk = chunks_.at(run.begin)) {
    while (chunk->end() < run.end() && chunk->after != nullptr &&
           chunk->after->begin == chunk->end() && !chunk->after->begins_region) {
      chunk = chunk->after;
    }
    return run.size <= chunk->end() - run.begin && (!plain_ || pages_.is_mapped(run));
  }
  const StitchedRow* const row = rows_.at(run.begin);
  return row != nullptr && row->size >= run.size;
}

PageHeap::Totals PageHeap::totals() const {
  const QueuedLock lock(mutex_);
  return totals_locked();
}

PageHeap::Totals PageHeap::totals_locked() const {
  Bytes leased = pages_.leased(), used = pages_.used();
  if (absent_bytes_ > 0_B) {
    for (const auto& [id, page] : pages_.all()) {
      if (page.handle != PhysicalHandle{}) continue;
      leased -= page.idle() ? 0_B : page.size;
      used -= page.used;
    }
  }
  return {.total = total(),
          .leased = leased,
          .used = used,
          .limit = limit_,
          .peak_total = std::max(peak_total_, total()),
          .mappings = mappings(),
          .short_of_mappings = short_of_mappings_};
}

std::vector<PageInfo> PageHeap::pages() const {
  const QueuedLock lock(mutex_);
  return pages_locked();
}

std::vector<PageInfo> PageHeap::pages_locked() const {
  std::vector<PageInfo> pages;
  for (const auto& [id, page] : pages_.all()) {
    if (page.handle == PhysicalHandle{}) continue;
    PageInfo info{page.id, page.size, page.used, page.lease, 0, {}, memory()};
    for (std::size_t i = 0; is_mapped(page, i); ++i) {
      const auto [range, heap] = mapping(page, i);
      info.mapped_at.push_back({range.begin, heap});
    }
    info.mappings = static_cast<std::uint32_t>(info.mapped_at.size());
    pages.push_back(std::move(info));
  }
  for (const auto& [id, page] : held_) {
    pages.push_back({id, page.size, 0_B, std::nullopt, 0, {}, memory()});
  }
  std::sort(pages.begin(), pages.end(),
            [](const PageInfo& a, const PageInfo& b) { return a.page < b.page; });
  return pages;
}

void PageHeap::set_limit(Bytes limit) {
  const QueuedLock lock(mutex_);
  assert(total() == 0_B);
  limit_ = limit;
  peak_total_ = 0_B;
}

}  // namespace weir
