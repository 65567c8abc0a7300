// The driver calls of PageHeap, each with its bookkeeping: what fails leaves both as they were.
#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "core/mutation.h"
#include "core/page_heap.h"

namespace weir {
namespace {

// Addresses reserved at a time for a stream heap: room for its mappings, aliases and all. Addresses
// cost nothing, but only some 60 TiB can be had: where there are many regions, in all page heaps of
// the device, less each.
Bytes region_size(std::uint64_t regions) {
  if (regions < 64) return 256_GiB;
  return regions < 512 ? 32_GiB : AddressMap::kSlot;
}

// How many mappings are given up at a time when there are too many.
constexpr std::size_t kMappingsShed = 256;

// From so many new pages on, the device is asked first whether it has them.
constexpr std::size_t kManyPages = 8;

}  // namespace

PageHeap::~PageHeap() {
  const MutexLock lock(mutex_);
  // What the driver refuses here is lost: nobody is left to tell.
  for (const PageMapping& mapping : table_.list_mappings()) {
    (void)device_.unmap(mapping.at, table_.page(mapping.page).size);
  }
  unmap_strays();
  for (const auto& [id, page] : table_.pages()) (void)device_.release(page.handle);
  for (const Region& region : regions_) {
    (void)device_.unreserve(region.range.begin, region.range.size);
    addresses_.clear(region.range);
  }
}

Status PageHeap::begin_row(const Owner& owner, Bytes size) {
  Arena& arena = this->arena(owner.id);
  if (!arena.begin_row(size)) {
    const Bytes least = round_up(Arena::row_size(size) + Arena::kGap, AddressMap::kSlot);
    Bytes wanted = std::max(least, region_size(budget_.regions()));
    Result<Address> base = device_.reserve(wanted, AddressMap::kSlot);
    while (!base && wanted > least) {
      wanted = std::max(least, round_up(wanted / 4, AddressMap::kSlot));
      base = device_.reserve(wanted, AddressMap::kSlot);
    }
    if (!base) return std::move(base).error();
    const Range region{*base, wanted};
    if (!AddressMap::covers(region)) {
      (void)device_.unreserve(region.begin, region.size);
      return Error(ErrorCode::device, "the device reserves addresses beyond 49 bits");
    }
    addresses_.set(region, owner.id);
    regions_.push_back({owner.id, region});
    budget_.count_region();
    arena.add_region(region);
    (void)arena.begin_row(size);
  }
  rows_[owner.id.value] = RowId{next_row_++};
  return {};
}

Result<PageId> PageHeap::create(Bytes size) {
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

PageId PageHeap::add(LoosePage loose) {
  const PageId id = budget_.next_page();
  table_.add(id, loose.handle, loose.size);
  uses_.resize(table_.slots());
  uses_[table_.page(id).slot].page = id;
  budget_.take(loose.size);
  observer_.emit(Event{.kind = EventKind::create, .page = id, .bytes = loose.size});
  return id;
}

// Maps the page behind the current row, which has room for it.
Status PageHeap::append(Owner& owner, PageId id) {
  const Page& page = table_.page(id);
  const bool alias = !page.mappings.empty();
  Arena& arena = this->arena(owner.id);
  const Address at = arena.frontier();
  if (Status status = device_.map(at, page.size, page.handle); !status) return status;
  if (Status status = device_.set_access(at, page.size); !status) {
    // Should the driver not even take it back, it is tried again later.
    if (!device_.unmap(at, page.size))
      strays_.push_back({owner.id, {arena.take(page.size), page.size}});
    return status;
  }
  (void)arena.take(page.size);
  table_.add_mapping(id, owner.id, at, *rows_[owner.id.value]);
  if (alias) effort_.count_alias();
  judge_effort();
  observer_.emit(owner.fold,
                 Event{.kind = EventKind::map, .page = id, .address = at, .bytes = page.size});
  return {};
}

void PageHeap::unmap_strays() {
  std::erase_if(strays_, [&](const Region& stray) WEIR_REQUIRES(mutex_) {
    if (!device_.unmap(stray.range.begin, stray.range.size)) return false;
    arena(stray.heap).give_back(stray.range);
    return true;
  });
}

Status PageHeap::create_and_append(Owner& owner, const std::vector<Bytes>& sizes) {
  // Rather than fail half way, and be left with pages that serve nobody, ask first where it is
  // much.
  if (sizes.size() >= kManyPages) {
    Bytes total;
    for (const Bytes size : sizes) total += size;
    if (const Result<MemoryInfo> info = device_.memory_info(); info && info->free < total) {
      device_room_ = round_down(info->free, granularity_);
      return Error(ErrorCode::out_of_memory, "the device has too little free memory");
    }
  }
  for (const Bytes size : sizes) {
    Result<PageId> page = create(size);
    if (!page) return std::move(page).error();
    if (Status status = append(owner, *page); !status) return status;
  }
  return {};
}

Status PageHeap::unmap(Address at) {
  const PageMapping mapping = table_.mapping(at);
  const Bytes size = table_.page(mapping.page).size;
  if (Status status = device_.unmap(at, size); !status) return status;
  table_.remove_mapping(at);
  arena(mapping.heap).give_back({at, size});
  observer_.emit(
      Event{.kind = EventKind::unmap, .page = mapping.page, .address = at, .bytes = size});
  return {};
}

// An error leaves the page here, without some of its mappings.
Result<PageHeap::LoosePage> PageHeap::take_out(PageId id) {
  while (!table_.page(id).mappings.empty()) {
    if (Status status = unmap(table_.page(id).mappings.back().at); !status) {
      return std::move(status).error();
    }
  }
  const LoosePage loose{table_.page(id).handle, table_.page(id).size};
  use_of(table_.page(id)) = PageUse{};
  table_.remove(id);
  budget_.give_back(loose.size);
  judge_effort();
  observer_.emit(Event{.kind = EventKind::release, .page = id, .bytes = loose.size});
  return loose;
}

Status PageHeap::release(PageId id) {
  Result<LoosePage> loose = take_out(id);
  if (!loose) return std::move(loose).error();
  Status released = device_.release(loose->handle);
  if (!released) (void)add(*loose);  // it is still there
  // What was once in use in it is no reason to grow again: only the next requests are.
  peak_used_ = std::min(peak_used_, table_.total());
  return released;
}

std::vector<PageId> PageHeap::idle_pages() const {
  std::vector<PageId> largest_first;
  for (const auto& [size, id] : table_.idle()) {
    if (use_of(table_.page(id)).kept == PageUse::Kept::no) largest_first.push_back(id);
  }
  std::reverse(largest_first.begin(), largest_first.end());
  return largest_first;
}

FenceSet PageHeap::held_by(PageId id) const {
  const PageUse& use = use_of(table_.page(id));
  FenceSet fences;
  if (mutation::left_out(mutation::Site::trim_checks_completion)) return fences;
  if (use.donor) fences.join(timelines_.release_point(use.donor->holder, use.donor->released));
  use.fenced.collect(0, table_.page(id).size.count, fences);
  return fences;
}

Result<Bytes> PageHeap::trim(Bytes keep) {
  const MutexLock lock(mutex_);
  return trim_locked(keep);
}

void PageHeap::keep_to_limit() {
  const MutexLock lock(mutex_);
  keep_to_limit_locked();
}

void PageHeap::keep_to_limit_locked() {
  const Bytes excess = budget_.excess();
  if (excess > 0_B) (void)trim_locked(table_.total() - std::min(table_.total(), excess));
}

Result<Bytes> PageHeap::trim_locked(Bytes keep) {
  unmap_strays();
  Bytes gone;
  std::optional<Error> refused;
  for (const PageId id : idle_pages()) {
    if (table_.total() <= keep) break;
    Result<bool> complete = timelines_.complete(held_by(id));
    // A page whose stream is no more (destroyed, and never retired) must not keep the others.
    if (!complete) {
      refused = std::move(complete).error();
      continue;
    }
    if (!*complete) continue;
    const Bytes size = table_.page(id).size;
    if (Status status = release(id); !status) return std::move(status).error();
    gone += size;
  }
  if (gone > 0_B) observer_.emit(Event{.kind = EventKind::trim, .bytes = gone});
  if (gone == 0_B && refused) return *std::move(refused);
  return gone;
}

bool PageHeap::has_room_for_mappings(std::size_t more) const {
  return table_.mappings() + more <= most_mappings_;
}

// Gives up mappings of idle pages beyond each one's first, where the device is done with them. Goes
// before anything is placed: what is usable changes.
Status PageHeap::make_room_for_mappings(std::size_t more) {
  if (has_room_for_mappings(more)) return {};
  std::vector<PageId> idle;
  for (const auto& [size, id] : table_.idle()) {
    if (use_of(table_.page(id)).kept == PageUse::Kept::no) idle.push_back(id);
  }
  std::size_t shed = 0;
  for (const PageId id : idle) {
    if (shed >= kMappingsShed && has_room_for_mappings(more)) break;
    if (table_.page(id).mappings.size() < 2) continue;
    Result<bool> complete = timelines_.complete(held_by(id));
    if (!complete) return std::move(complete).error();
    if (!*complete) continue;
    while (table_.page(id).mappings.size() > 1) {
      if (Status status = unmap(table_.page(id).mappings.back().at); !status) return status;
      ++shed;
    }
  }
  if (has_room_for_mappings(more)) return {};
  short_of_mappings_ = true;
  return Error(ErrorCode::out_of_memory,
               std::to_string(table_.mappings()) +
                   " mappings are held, of the most that HeapOptions::most_mappings allows, and " +
                   "too few can be given up");
}

Status PageHeap::wait_for_idle_pages() {
  FenceSet fences;
  {
    const MutexLock lock(mutex_);
    for (const PageId id : idle_pages()) fences.join(held_by(id));
  }
  for (const Fence fence : fences) {
    FenceSet one;
    one.join(fence);
    // What is captured just now can't be waited for: those pages stay as they are.
    Status waited = timelines_.host_wait(one);
    if (!waited && waited.error().code() != ErrorCode::capture) return waited;
  }
  return {};
}

Status PageHeap::renew_access() {
  const MutexLock lock(mutex_);
  for (const auto& [id, page] : table_.pages()) {
    for (const Mapping& mapping : page.mappings) {
      if (Status status = device_.set_access(mapping.at, page.size); !status) return status;
    }
  }
  return {};
}

std::vector<PagePart> PageHeap::parts(Range run) const {
  const MutexLock lock(mutex_);
  std::vector<PagePart> parts;
  table_.walk(run, [&](const Page& page, Bytes offset, Bytes size) {
    parts.push_back({page.handle, page.size, offset, size});
  });
  return parts;
}

void PageHeap::set_limit(Bytes limit) {
  const MutexLock lock(mutex_);
  assert(table_.total() == 0_B);
  limit_ = limit;
}

PageHeap::Totals PageHeap::totals() const {
  const MutexLock lock(mutex_);
  return totals_locked();
}

PageHeap::Totals PageHeap::totals_locked() const {
  return {table_.total(), table_.leased(), table_.used(), table_.mappings(), short_of_mappings_};
}

std::vector<PageInfo> PageHeap::pages() const {
  const MutexLock lock(mutex_);
  return pages_locked();
}

std::vector<PageInfo> PageHeap::pages_locked() const {
  std::vector<PageInfo> pages;
  for (const auto& [id, page] : table_.pages()) {
    pages.push_back({PageId{id},
                     page.size,
                     page.used,
                     page.lease,
                     static_cast<std::uint32_t>(page.mappings.size()),
                     {}});
    for (const Mapping& mapping : page.mappings) {
      pages.back().mapped_at.push_back({mapping.at, mapping.heap});
    }
  }
  std::sort(pages.begin(), pages.end(),
            [](const PageInfo& a, const PageInfo& b) { return a.page < b.page; });
  return pages;
}

}  // namespace weir
