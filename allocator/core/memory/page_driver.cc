// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_driver.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weir {
namespace {

// Addresses that a device heap reserves at a time. Addresses cost nothing, but only some 60 TiB can
// be had: where it has many regions already, less each.
Bytes region_size(std::size_t regions) {
  if (regions < 64) return 256_GiB;
  return regions < 512 ? 32_GiB : 4_GiB;
}
constexpr Bytes kRegionUnit = 4_GiB;
static_assert(kRegionUnit % TileIndex::kSlot == 0_B);

// A graph pool reserves this much, and then four times what it has already, up to 32 GiB: thousands
// of small pools find room, and a large one has few regions, at whose ends memory lies idle.
constexpr Bytes kPoolRegionUnit = 1_GiB, kMostOfPool = 32_GiB;
constexpr std::uint64_t kPoolGrowth = 4;
static_assert(kPoolRegionUnit % TileIndex::kSlot == 0_B);

// How many mappings are given up at a time when there are too many.
constexpr std::size_t kMappingsShed = 256;

// From so many new pages on, the device is asked first whether it has them.
constexpr std::size_t kManyPages = 8;

// So many mappings in rows are kept for each page in any case.
constexpr std::size_t kMappingsAPage = 16;
constexpr std::size_t kMappingsLeast = 256;
// A row that was not used for so many requests may go: else a program whose rounds need more would
// lose in each round what it needs in the next.
constexpr std::uint64_t kLongUnused = 8192;
// So often a few rows are looked at, where there are too many mappings; and driver calls in one
// request.
constexpr std::uint64_t kRequestsBetween = 64;
constexpr int kRowsAtATime = 16, kUnmapsAtATime = 2;

// A request for plain memory smaller than kShares gets a new segment that others share: half as
// large as those that the heap has, together, so that a small pool stays small and a large one
// needs few. A larger request gets a segment of its own size.
constexpr Bytes kShares = 16_MiB, kLeastShared = 2_MiB, kMostShared = 32_MiB;

Bytes segment_size(Bytes request, const HomePages& pages, Bytes granularity) {
  if (request >= kShares) return round_up(request, granularity);
  Bytes shared;
  for (const auto& [id, page] : pages.all()) {
    if (page.size <= kMostShared) shared += page.size;
  }
  const Bytes half = round_up(Bytes{shared.count / 2}, kLeastShared);
  return round_up(std::max(request, std::clamp(half, kLeastShared, kMostShared)), granularity);
}

Error no_room() { return {ErrorCode::out_of_memory, "the limit leaves no room"}; }

}  // namespace

PageDriver::~PageDriver() {
  // What the driver refuses here is lost: nobody is left to tell.
  tables_.rows.visit_all([&](const StitchedRow& row) {
    if (row.tile != nullptr) {
      index_.leave(row.tile);
      tables_.tiles.give_back_record(row.tile);
    }
    Address at = row.begin;
    for (const Page* const page : row.pages) {
      const auto mine = std::find(page->rows.begin(), page->rows.end(), &row);
      if (is_mapped(*page, 1 + static_cast<std::size_t>(mine - page->rows.begin()))) {
        (void)device_.unmap(at, page->size);
      }
      at = at + page->size;
    }
  });
  std::vector<UnmappedPage> pages;
  for (const auto& [id, page] : tables_.pages.all()) {
    if (!rules_.plain && is_mapped(page, 0)) (void)device_.unmap(page.home, page.size);
    if (!page.sleeps()) pages.push_back({page.handle, page.size});
  }
  unmap_strays();
  tables_.pages.clear();
  for (const Range region : regions_) {
    if (tables_.tiles.at(region.begin) != nullptr) tables_.tiles.remove_region(region.begin);
    index_.remove_region(region);
  }
  for (const UnmappedPage page : pages) (void)release(page);
  for (const HeldPage& held : tables_.held) (void)release(held.page);
  if (rules_.plain) return;
  for (const Range region : regions_) (void)device_.unreserve(region.begin, region.size);
}

Status PageDriver::release(const UnmappedPage& page) {
  if (rules_.plain) return device_.free_segment(Address{page.handle.value}, page.size);
  return device_.release(page.handle);
}

Result<Range> PageDriver::reserve(Bytes least) {
  const Bytes unit = rules_.of_graph_pool ? kPoolRegionUnit : kRegionUnit;
  least = round_up(least + rules_.granularity, unit);
  Bytes wanted = region_size(regions_.size());
  if (rules_.of_graph_pool) {
    wanted = 0_B;
    for (const Range region : regions_) wanted += region.size * kPoolGrowth;
    wanted = std::min(wanted, kMostOfPool);
  }
  wanted = std::max(least, wanted);
  Result<Address> base = device_.reserve(wanted, unit);
  while (!base && wanted > least) {
    wanted = std::max(least, round_up(wanted / 4, unit));
    base = device_.reserve(wanted, unit);
  }
  if (!base) return std::move(base).error();
  const Range region{*base, wanted};
  if (!TileIndex::covers(region)) {
    (void)device_.unreserve(region.begin, region.size);
    return Error(ErrorCode::device, "the device reserves addresses beyond 49 bits");
  }
  index_.add_region(region);
  regions_.push_back(region);
  return region;
}

Status PageDriver::begin_region(Bytes least) {
  const Result<Range> region = reserve(least);
  if (!region) return region.error();
  // The end is never mapped: two regions, side by side by chance, are two rows.
  tables_.tiles.add_region({region->begin, region->size - rules_.granularity});
  return {};
}

Result<Address> PageDriver::room_for(Bytes bytes) {
  std::optional<Address> at = placer_.vacancy(bytes);
  if (!at) {
    if (Status status = begin_region(bytes); !status) return std::move(status).error();
    at = placer_.vacancy(bytes);
  }
  return *at;
}

HeldPage PageDriver::add(UnmappedPage loose) {
  const PageId id = budget_.next_page();
  budget_.take(loose.size);
  observer_.emit(
      Event{.kind = EventKind::create, .plain = rules_.plain, .page = id, .bytes = loose.size});
  return {id, loose};
}

void PageDriver::hold(HeldPage page) {
  tables_.held.push_back(page);
  tables_.held_bytes += page.page.size;
}

Result<HeldPage> PageDriver::create(Request& request, Bytes size) {
  Result<PhysicalHandle> handle = device_.create(size);
  std::optional<Bytes>& device_room = request.device_room;
  if (!handle) {
    if (handle.error().code() == ErrorCode::out_of_memory) {
      const Result<MemoryInfo> info = device_.memory_info();
      const Bytes free = info ? round_down(info->free, rules_.granularity) : 0_B;
      device_room = std::min(free, size - rules_.granularity);
    }
    return std::move(handle).error();
  }
  if (device_room) *device_room -= std::min(*device_room, size);
  return add({*handle, size});
}

// Pages that are held come first. On an error they stay held, and those that were created go back:
// the device has room for a part of the request only, and a program that runs out of memory is told
// what is free.
Result<std::vector<HeldPage>> PageDriver::obtain(Request& request, Bytes size) {
  std::vector<HeldPage> pages;
  Bytes have;
  while (have < size && !tables_.held.empty()) {
    pages.push_back(tables_.held.back());
    tables_.held.pop_back();
    tables_.held_bytes -= pages.back().page.size;
    have += pages.back().page.size;
  }
  if (have >= size) return pages;
  const std::size_t held = pages.size();
  const auto fail = [&](Error error) {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if (i < held) {
        hold(pages[i]);
      } else if (give_back(take_out(pages[i])) && request.device_room) {
        *request.device_room += pages[i].page.size;
      }
    }
    return error;
  };
  const std::vector<Bytes> sizes = placer_.page_sizes(size - have, request.size);
  if (size - have > placer_.room(request)) return fail(no_room());
  // Rather than fail half way, and be left with pages that serve nobody, ask first where it is
  // much.
  if (sizes.size() >= kManyPages) {
    Bytes all;
    for (const Bytes each : sizes) all += each;
    if (const Result<MemoryInfo> info = device_.memory_info(); info && info->free < all) {
      request.device_room = round_down(info->free, rules_.granularity);
      return fail(Error(ErrorCode::out_of_memory, "the device has too little free memory"));
    }
  }
  for (const Bytes each : sizes) {
    Result<HeldPage> page = create(request, each);
    if (!page) return fail(std::move(page).error());
    pages.push_back(*page);
  }
  return pages;
}

// Should the driver not even take it back, that is tried again later.
Status PageDriver::map(Range at, PhysicalHandle handle) {
  if (Status status = device_.map(at.begin, at.size, handle); !status) return status;
  Status status = device_.set_access(at.begin, at.size);
  if (!status && !device_.unmap(at.begin, at.size)) strays_.push_back(at);
  return status;
}

Status PageDriver::map_page(const Owner& owner, PageId page, PhysicalHandle handle, Range at) {
  if (Status status = map(at, handle); !status) return status;
  observer_.emit(
      owner.fold,
      Event{.kind = EventKind::map, .page = page, .address = at.begin, .bytes = at.size});
  return {};
}

Status PageDriver::unmap_page(PageId page, Range at, HeapId heap) {
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
Result<std::vector<Page*>> PageDriver::map_home(const Owner& owner, Address at,
                                                const std::vector<HeldPage>& pages) {
  std::vector<Page*> mapped;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto& [id, loose] = pages[i];
    const Range home{at, loose.size};
    if (Status status = map_page(owner, id, loose.handle, home); !status) {
      for (; i < pages.size(); ++i) hold(pages[i]);
      return std::move(status).error();
    }
    tables_.tiles.fill(home);
    mapped.push_back(&tables_.pages.add(id, loose.handle, home, owner.id));
    at = at + loose.size;
  }
  return mapped;
}

Result<std::vector<Page*>> PageDriver::extend(Request& request, Address at, Bytes size) {
  unmap_strays();
  const std::size_t most = placer_.page_sizes(size, request.size).size() + tables_.held.size();
  if (Status status = make_room_for_mappings(request, most); !status) {
    return std::move(status).error();
  }
  Result<std::vector<HeldPage>> pages = obtain(request, size);
  if (!pages) return std::move(pages).error();
  return map_home(request.owner, at, *pages);
}

Status PageDriver::fill(Request& request, Range vacant) {
  unmap_strays();
  const std::vector<Bytes> sizes = placer_.page_sizes(vacant.size, vacant.size);
  if (Status status = make_room_for_mappings(request, sizes.size()); !status) return status;
  if (vacant.size > placer_.room(request)) return no_room();
  std::vector<HeldPage> pages;
  for (const Bytes each : sizes) {
    Result<HeldPage> page = create(request, each);
    if (!page) {
      for (const HeldPage& made : pages) (void)give_back(take_out(made));
      return std::move(page).error();
    }
    pages.push_back(*page);
  }
  Result<std::vector<Page*>> mapped = map_home(request.owner, vacant.begin, pages);
  return mapped ? Status{} : Status(std::move(mapped).error());
}

Status PageDriver::map_held(Request& request) {
  unmap_strays();
  if (rules_.plain) {
    for (const HeldPage segment : std::exchange(tables_.held, {})) adopt(request.owner, segment);
    tables_.held_bytes = 0_B;
    return {};
  }
  if (Status status = make_room_for_mappings(request, tables_.held.size()); !status) return status;
  Result<Address> at = room_for(tables_.held_bytes);
  if (!at) return std::move(at).error();
  const std::vector<HeldPage> pages = std::exchange(tables_.held, {});
  tables_.held_bytes = 0_B;
  Result<std::vector<Page*>> mapped = map_home(request.owner, *at, pages);
  return mapped ? Status{} : Status(std::move(mapped).error());
}

Result<StitchedRow*> PageDriver::build(Request& request, const StitchPlan& plan) {
  const std::size_t mappings =
      plan.mappings(tables_.pages) +
      (plan.create > 0_B ? placer_.page_sizes(plan.create, request.size).size() * 2 : 0);
  if (Status status = make_room_for_mappings(request, mappings); !status) {
    return std::move(status).error();
  }
  Bytes head_size = plan.head ? plan.head->size : 0_B;
  std::vector<Page*> pages;
  Bytes all;
  const auto add = [&](Page& page, Bytes = {}, Bytes = {}) {
    pages.push_back(&page);
    all += page.size;
  };
  for (const Range piece : plan.front) tables_.pages.walk(piece, add);
  if (plan.create > 0_B) {
    const Result<Address> at = room_for(plan.create + tables_.held_bytes);
    if (!at) return at.error();
    const Result<std::vector<Page*>> created = extend(request, *at, plan.create);
    if (!created) return created.error();
    Bytes have;
    for (Page* const page : *created) {
      add(*page);
      have += page->size;
    }
    // What was held may be larger than what was to be created: then less of the head is needed.
    const Bytes more = have - plan.create;
    head_size -= std::min(head_size, more);
  }
  if (head_size > 0_B) tables_.pages.walk({plan.head->begin, head_size}, add);

  if (!tables_.rows.has_room(all)) {
    const Result<Range> region = reserve(tables_.rows.region_for(all));
    if (!region) return region.error();
    tables_.rows.add_region(*region);
  }
  StitchedRow& row = tables_.rows.add(all, request.owner.id);
  for (Page* const page : pages) {
    const Range at{row.begin + row.size, page->size};
    if (Status status = map_page(request.owner, page->id, page->handle, at); !status) {
      retired_.push_back(&row);
      (void)unmap_row(row);
      return std::move(status).error();
    }
    tables_.rows.append(row, *page);
    placer_.remaps().spend(1);
  }
  tables_.rows.finish(row,
                      plan.front.empty() ? 0_B : plan.front.front().begin - pages.front()->home);
  return &row;
}

Result<Range> PageDriver::add_segment(Request& request) {
  const Bytes least = round_up(request.size, rules_.granularity);
  if (!has_room_for_mappings(1)) {
    request.short_of_mappings = true;
    return Error(ErrorCode::out_of_memory, "HeapOptions::most_mappings allows no more segments");
  }
  const Bytes good = segment_size(request.size, tables_.pages, rules_.granularity);
  for (const Bytes wanted : {std::max(least, good), least}) {
    if (wanted > placer_.room(request)) continue;
    const Result<Address> at = device_.allocate_segment(wanted);
    if (at) {
      const Range segment{*at, wanted};
      if (!TileIndex::covers(segment)) {
        (void)device_.free_segment(*at, wanted);
        return Error(ErrorCode::device, "the device has memory at addresses beyond 49 bits");
      }
      adopt(request.owner, add({PhysicalHandle{at->value}, wanted}));
      return segment;
    }
    if (at.error().code() != ErrorCode::out_of_memory || wanted == least) return at.error();
  }
  return no_room();
}

void PageDriver::adopt(const Owner& owner, HeldPage segment) {
  const Range home{Address{segment.page.handle.value}, segment.page.size};
  index_.add_region(home);
  regions_.push_back(home);
  tables_.tiles.add_region(home);
  tables_.tiles.fill(home);
  observer_.emit(owner.fold, Event{.kind = EventKind::map,
                                   .plain = true,
                                   .page = segment.id,
                                   .address = home.begin,
                                   .bytes = home.size});
  (void)tables_.pages.add(segment.id, segment.page.handle, home, owner.id);
}

void PageDriver::unmap_strays() {
  std::erase_if(strays_, [&](Range stray) {
    if (!device_.unmap(stray.begin, stray.size)) return false;
    StitchedRow* const row = tables_.rows.around(stray.begin);
    if (row != nullptr && row->pages.empty()) tables_.rows.remove(*row);
    return true;
  });
}

Status PageDriver::unmap_last(StitchedRow& row) {
  Page& page = *row.pages.back();
  if (page.sleeps()) {
    --page.unmapped;
    --tables_.absent_mappings;
    tables_.rows.drop_last(row);
    return {};
  }
  const Range at{row.begin + row.mapped() - page.size, page.size};
  if (Status status = unmap_page(page.id, at, row.heap); !status) return status;
  tables_.rows.drop_last(row);
  return {};
}

// Nobody uses its addresses any more. On an error it is retired, with what is still mapped.
Status PageDriver::unmap_row(StitchedRow& row) {
  if (row.state == StitchedRow::State::idle) {
    tables_.rows.retire(row);
    retired_.push_back(&row);
  }
  while (!row.pages.empty()) {
    if (Status status = unmap_last(row); !status) return status;
  }
  std::erase(retired_, &row);
  const auto is_in_row = [&](Range stray) { return tables_.rows.around(stray.begin) == &row; };
  // Else its addresses are not free yet.
  if (std::none_of(strays_.begin(), strays_.end(), is_in_row)) tables_.rows.remove(row);
  return {};
}

Result<UnmappedPage> PageDriver::take_out(Page& page) {
  while (!page.rows.empty()) {
    if (Status status = unmap_row(*page.rows.back()); !status) return std::move(status).error();
  }
  const Range home = page.range();
  const HeldPage taken{page.id, {page.handle, page.size}};
  if (!rules_.plain) {
    if (Status status = unmap_page(page.id, home, page.heap); !status) {
      return std::move(status).error();
    }
    tables_.tiles.vacate(home);
    tables_.pages.remove(page);
    return take_out(taken);
  }
  observer_.emit(Event{.kind = EventKind::unmap,
                       .plain = true,
                       .page = page.id,
                       .address = home.begin,
                       .bytes = home.size});
  tables_.pages.remove(page);
  tables_.tiles.remove_region(home.begin);
  std::erase(regions_, home);
  index_.remove_region(home);
  return take_out(taken);
}

UnmappedPage PageDriver::take_out(HeldPage held) {
  budget_.give_back(held.page.size);
  observer_.emit(Event{
      .kind = EventKind::release, .plain = rules_.plain, .page = held.id, .bytes = held.page.size});
  return held.page;
}

// To the driver. On an error it is held again: it is still there.
Status PageDriver::give_back(UnmappedPage loose) {
  Status released = release(loose);
  if (!released) hold(loose);
  return released;
}

std::vector<Page*> PageDriver::idle_pages() {
  std::vector<Page*> idle;
  if (tables_.absent_mappings > 0) return idle;  // a row that goes with a page may lack some
  for (auto& [id, page] : tables_.pages.all()) {
    if (page.kept == Page::Kept::no && page.idle()) idle.push_back(&page);
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [](const Page* a, const Page* b) { return a->size > b->size; });
  return idle;
}

// Pages that lie side by side often wait for the same: the device is asked once.
Result<bool> PageDriver::is_over(const Page& page, FenceSet& pending) {
  FenceSet users = tables_.users_of(page);
  if (users.empty()) return true;
  if (users == pending) return false;
  Result<bool> complete = timelines_.complete(users);
  if (complete && !*complete) pending = std::move(users);
  return complete;
}

Status PageDriver::take_idle(Bytes wanted, Bytes most, Status& unasked,
                             const std::function<bool(UnmappedPage)>& go) {
  Status failed;
  Bytes gone;
  for (std::size_t i = tables_.held.size(); i-- > 0 && gone < wanted;) {
    const HeldPage held = tables_.held[i];
    if (held.page.size > most - gone) continue;
    tables_.held.erase(tables_.held.begin() + static_cast<std::ptrdiff_t>(i));
    tables_.held_bytes -= held.page.size;
    if (go(take_out(held))) gone += held.page.size;
  }
  if (gone >= wanted) return failed;
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

Result<Bytes> PageDriver::trim(Bytes keep) {
  unmap_strays();
  Bytes gone;
  Status unasked, failed;
  std::vector<UnmappedPage> kept;  // by the driver
  const Bytes total = tables_.total();
  const Status unmapped =
      take_idle(total - std::min(total, keep), kUnlimited, unasked, [&](UnmappedPage page) {
        Status released = release(page);
        if (released) {
          gone += page.size;
          return true;
        }
        kept.push_back(page);
        if (failed) failed = std::move(released);
        return false;
      });
  for (const UnmappedPage page : kept) hold(page);
  if (gone > 0_B) {
    tables_.shrink_peak();
    observer_.emit(Event{.kind = EventKind::trim, .bytes = gone});
  }
  if (!unmapped) return unmapped.error();
  if (!failed) return std::move(failed).error();
  if (gone == 0_B && !unasked) return std::move(unasked).error();
  return gone;
}

void PageDriver::give_back_addresses() {
  if (!tables_.is_empty() || tables_.rows.count() > 0 || !strays_.empty()) return;
  std::erase_if(regions_, [&](Range region) {
    // Before another heap may be given the same.
    const bool home = tables_.tiles.at(region.begin) != nullptr;
    const Range tiled{region.begin, region.size - rules_.granularity};
    if (home) tables_.tiles.remove_region(region.begin);
    index_.remove_region(region);
    if (!device_.unreserve(region.begin, region.size)) {
      index_.add_region(region);
      if (home) tables_.tiles.add_region(tiled);
      return false;
    }
    if (!home) tables_.rows.remove_region(region);
    return true;
  });
}

// Gives up idle stitched rows, where the device is done with them. Goes before anything is placed.
Status PageDriver::make_room_for_mappings(Request& request, std::size_t more) {
  if (has_room_for_mappings(more)) return {};
  std::vector<StitchedRow*> idle;
  tables_.rows.visit_all([&](StitchedRow& row) {
    if (row.state == StitchedRow::State::idle && !row.kept()) idle.push_back(&row);
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
  request.short_of_mappings = true;
  return Error(ErrorCode::out_of_memory,
               std::to_string(tables_.mappings()) +
                   " mappings are held, of the most that HeapOptions::most_mappings allows, and " +
                   "too few can be given up");
}

// A clock hand goes round the rows: one that was not used for long is unmapped, a few mappings at a
// time, once its work is done. (So long after, it is; what the host knows of it changes nothing in
// where memory is placed.)
std::uint64_t PageDriver::retire_rows() {
  const std::uint64_t now = tables_.requests;
  if (tables_.keeps_used) return now;  // nothing while a capture goes on
  for (int i = 0; i < kUnmapsAtATime && !retired_.empty(); ++i) {
    StitchedRow& row = *retired_.back();
    if (!row.pages.empty() && !unmap_last(row)) return now + kRequestsBetween;
    if (row.pages.empty()) (void)unmap_row(row);
  }
  if (!retired_.empty()) return now;
  const std::size_t most = std::max(kMappingsLeast, kMappingsAPage * tables_.pages.all().size());
  for (int i = 0; i < kRowsAtATime && tables_.rows.mappings() > most; ++i) {
    StitchedRow* const row = tables_.rows.next_after(looked_at_);
    looked_at_ = row->begin;
    if (row->state != StitchedRow::State::idle || row->kept() ||
        now - row->used_at <= kLongUnused) {
      continue;
    }
    const Result<bool> over = timelines_.looks_complete(row->users);
    if (!over || !*over) continue;
    tables_.rows.retire(*row);
    retired_.push_back(row);
    return now;
  }
  return now + kRequestsBetween;
}

PageDriver::Mapping PageDriver::mapping(const Page& page, std::size_t number) {
  if (number == 0) return {page.range(), page.heap};
  const StitchedRow& row = *page.rows[number - 1];
  Address at = row.begin;
  for (const Page* const each : row.pages) {
    if (each == &page) break;
    at = at + each->size;
  }
  return {{at, page.size}, row.heap};
}

Status PageDriver::forget(Page& page) {
  while (!page.rows.empty()) {
    if (Status status = unmap_row(*page.rows.back()); !status) return status;
  }
  tables_.tiles.vacate(page.range());
  tables_.absent_bytes -= page.size;
  tables_.absent_mappings -= page.unmapped;
  tables_.pages.remove(page);
  tables_.shrink_peak();
  return {};
}

}  // namespace weir
