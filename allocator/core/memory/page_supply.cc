// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_supply.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

// From so many new pages on, the device is asked first whether it has them.
constexpr std::size_t kManyPages = 8;

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

PageSupply::~PageSupply() {
  // What the driver refuses here is lost: nobody is left to tell.
  for (const HeldPage& held : heap_.tables.held) (void)release(held.page);
}

void PageSupply::note(EventKind kind, PageId page, Bytes size, std::uint64_t lent_by) {
  if (kind == EventKind::create) {
    heap_.budget.take(size);
  } else {
    heap_.budget.give_back(size);
  }
  heap_.observer.emit(Event{
      .kind = kind, .plain = heap_.rules.plain, .page = page, .bytes = size, .pool = lent_by});
}

HeldPage PageSupply::add(UnmappedPage page) {
  const PageId id = page.lent ? page.lent->page : heap_.budget.next_page();
  note(EventKind::create, id, page.size, page.lent ? page.lent->pool : 0);
  return {id, page};
}

UnmappedPage PageSupply::part_with(HeldPage page) {
  const UnmappedPage& gone = page.page;
  note(EventKind::release, page.id, gone.size, gone.lent ? gone.lent->pool : 0);
  return gone;
}

void PageSupply::hold(HeldPage page) {
  heap_.tables.held.push_back(page);
  heap_.tables.held_bytes += page.page.size;
}

HeldPage PageSupply::take_held(std::size_t place) {
  const auto at = heap_.tables.held.begin() + static_cast<std::ptrdiff_t>(place);
  const HeldPage page = *at;
  heap_.tables.held.erase(at);
  heap_.tables.held_bytes -= page.page.size;
  return page;
}

Status PageSupply::release(const UnmappedPage& page) {
  if (heap_.rules.plain) return heap_.device.free_segment(Address{page.handle.value}, page.size);
  return heap_.device.release(page.handle);
}

Result<PhysicalHandle> PageSupply::create_page(Request& request, Bytes size) {
  Result<PhysicalHandle> handle = heap_.device.create(size);
  std::optional<Bytes>& device_room = request.device_room;
  if (handle) {
    if (device_room) *device_room -= std::min(*device_room, size);
  } else if (handle.error().code() == ErrorCode::out_of_memory) {
    const Result<MemoryInfo> info = heap_.device.memory_info();
    const Bytes free = info ? round_down(info->free, heap_.rules.granularity) : 0_B;
    device_room = std::min(free, size - heap_.rules.granularity);
  }
  return handle;
}

Result<std::vector<HeldPage>> PageSupply::create(Request& request, Bytes size, Bytes request_size) {
  const std::vector<Bytes> sizes = heap_.placer.page_sizes(size, request_size);
  if (size > heap_.placer.room(request)) return no_room();
  // Rather than fail half way, ask first where it is much.
  if (sizes.size() >= kManyPages) {
    if (const Result<MemoryInfo> info = heap_.device.memory_info(); info && info->free < size) {
      request.device_room = round_down(info->free, heap_.rules.granularity);
      return Error(ErrorCode::out_of_memory, "the device has too little free memory");
    }
  }
  std::vector<HeldPage> pages;
  for (const Bytes each : sizes) {
    const Result<PhysicalHandle> handle = create_page(request, each);
    if (handle) {
      pages.push_back(add({*handle, each}));
      continue;
    }
    for (const HeldPage& page : pages) {
      const UnmappedPage gone = part_with(page);
      if (!release(gone)) {
        receive(gone);  // it is still there
      } else if (request.device_room) {
        *request.device_room += gone.size;
      }
    }
    return handle.error();
  }
  return pages;
}

Result<std::vector<HeldPage>> PageSupply::obtain(Request& request, Bytes size) {
  std::vector<HeldPage> pages;
  Bytes have;
  while (have < size && !heap_.tables.held.empty()) {
    pages.push_back(take_held(heap_.tables.held.size() - 1));
    have += pages.back().page.size;
  }
  if (have >= size) return pages;
  Result<std::vector<HeldPage>> created = create(request, size - have, request.size);
  if (created) {
    pages.insert(pages.end(), created->begin(), created->end());
    return pages;
  }
  for (const HeldPage& page : pages) hold(page);
  return created;
}

Result<HeldPage> PageSupply::create_segment(Request& request) {
  const Bytes least = round_up(request.size, heap_.rules.granularity);
  const Bytes good = segment_size(request.size, heap_.tables.pages, heap_.rules.granularity);
  for (const Bytes wanted : {std::max(least, good), least}) {
    if (wanted > heap_.placer.room(request)) continue;
    const Result<Address> at = heap_.device.allocate_segment(wanted);
    if (at && TileIndex::covers({*at, wanted})) return add({PhysicalHandle{at->value}, wanted});
    if (at) {
      (void)heap_.device.free_segment(*at, wanted);
      return Error(ErrorCode::device, "the device has memory at addresses beyond 49 bits");
    }
    if (at.error().code() != ErrorCode::out_of_memory || wanted == least) return at.error();
  }
  return no_room();
}

std::vector<Page*> PageSupply::may_go() const {
  std::vector<Page*> idle;
  // A row that goes with a page may lack some.
  const auto is_partly_mapped = [](const auto& each) {
    return each.second.unmapped > 0 && !(each.second.lent && each.second.sleeps());
  };
  const HomePages::Pages& all = heap_.tables.pages.all();
  if (heap_.tables.absent_mappings > 0 && std::any_of(all.begin(), all.end(), is_partly_mapped)) {
    return idle;
  }
  for (auto& [id, page] : heap_.tables.pages.all()) {
    if (page.kept == Page::Kept::no && page.idle() && page.lent_by == 0 && !page.sleeps())
      idle.push_back(&page);
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [](const Page* a, const Page* b) { return a->size > b->size; });
  return idle;
}

FenceSet PageSupply::users() const {
  FenceSet users;
  for (const auto& [id, page] : heap_.tables.pages.all()) {
    if (page.idle() && page.kept == Page::Kept::no) users.join(heap_.tables.users_of(page));
  }
  return users;
}

// Pages that lie side by side often wait for the same: the device is asked once. Where it is not
// asked the host waits, but not for work that waits for other processes, or for the host itself.
Result<bool> PageSupply::is_over(const Page& page, FenceSet& pending) {
  FenceSet users = heap_.tables.users_of(page);
  if (users.empty()) return true;
  if (users == pending) return false;
  const bool may_wait = !heap_.remote_work.any() && heap_.rules.reuse != ReusePolicy::no_wait;
  Result<bool> complete = may_wait ? heap_.timelines.over_or_wait(users, Timelines::Asks::remembers)
                                   : heap_.timelines.complete(users);
  if (complete && !*complete) pending = std::move(users);
  return complete;
}

Result<UnmappedPage> PageSupply::unmap_and_part_with(Page& page) {
  const Range home = page.range();
  HeldPage taken{page.id, {page.handle, page.size, {}}};
  if (page.lent_by != 0) taken.page.lent = Lent{page.id, page.lent_by, {}};
  Status unmapped = mappings_.unmap_rows(page);
  if (unmapped) unmapped = mappings_.unmap(page.id, {home, page.heap});
  if (!unmapped) return std::move(unmapped).error();
  heap_.tables.pages.remove(page);
  mappings_.vacate(home);
  return part_with(taken);
}

template <class Go>
PageSupply::Taken PageSupply::take(Bytes wanted, Bytes most, Go&& go) {
  Taken taken;
  for (std::size_t i = heap_.tables.held.size(); i-- > 0 && taken.bytes < wanted;) {
    const UnmappedPage& held = heap_.tables.held[i].page;
    const Bytes size = held.size;
    if (size > most - taken.bytes || held.lent) continue;
    if (go(part_with(take_held(i)))) taken.bytes += size;
  }
  if (taken.bytes >= wanted) return taken;
  FenceSet pending;
  for (Page* const idle : may_go()) {
    if (taken.bytes >= wanted) break;
    if (idle->size > most - taken.bytes) continue;
    // A page whose stream is no more (destroyed, and never retired) must not keep the others.
    Result<bool> complete = is_over(*idle, pending);
    if (!complete) {
      if (taken.asked) taken.asked = std::move(complete).error();
      continue;
    }
    if (!*complete) continue;
    Result<UnmappedPage> page = unmap_and_part_with(*idle);
    if (!page) {
      if (taken.unmapped) taken.unmapped = std::move(page).error();
    } else if (go(*page)) {
      taken.bytes += page->size;
    }
  }
  return taken;
}

Result<Bytes> PageSupply::give_to_driver_for_new(Bytes wanted) {
  mappings_.unmap_strays();
  Status released;
  std::vector<UnmappedPage> refused;  // by the driver
  Taken taken = take(wanted, kUnlimited, [&](UnmappedPage page) {
    Status now = release(page);
    if (now) return true;
    refused.push_back(page);
    if (released) released = std::move(now);
    return false;
  });
  for (const UnmappedPage page : refused) receive(page);
  if (taken.bytes > 0_B) {
    heap_.tables.shrink_peak();
    heap_.observer.emit(Event{.kind = EventKind::trim, .bytes = taken.bytes});
  }
  if (!taken.unmapped) return std::move(taken.unmapped).error();
  if (!released) return std::move(released).error();
  if (taken.bytes == 0_B && !taken.asked) return std::move(taken.asked).error();
  return taken.bytes;
}

Result<Bytes> PageSupply::give_to_driver_though_asleep(Bytes wanted) {
  Result<Bytes> gone = give_to_driver_for_new(wanted);
  if (gone && *gone > 0_B) forget_if_empty();
  return gone;
}

std::vector<UnmappedPage> PageSupply::give_to_pool(Bytes wanted, Bytes most) {
  std::vector<UnmappedPage> given;
  if (heap_.tables.asleep) return given;
  const Taken taken = take(wanted, most, [&](UnmappedPage page) {
    given.push_back(page);
    return true;
  });
  // What was once in use in them is no reason to grow here now.
  const Bytes peak = heap_.tables.peak_used;
  heap_.tables.peak_used = std::max(heap_.tables.tiles.used(), peak - std::min(peak, taken.bytes));
  if (!given.empty()) forget_if_empty();
  return given;
}

void PageSupply::hold_from_pool(const std::vector<UnmappedPage>& pages) {
  for (const UnmappedPage page : pages) {
    receive(page);
    heap_.tables.peak_used += page.size;
  }
}

void PageSupply::take_from_pool(const std::vector<UnmappedPage>& pages) {
  hold_from_pool(pages);
  if (heap_.tables.asleep) (void)give_to_driver_though_asleep(heap_.tables.held_bytes);
  keep_to_limit();
}

Status PageSupply::forget(Page& page) {
  if (Status unmapped = mappings_.unmap_rows(page); !unmapped) return unmapped;
  heap_.tables.tiles.vacate(page.range());
  heap_.tables.absent_bytes -= page.size;
  heap_.tables.absent_mappings -= page.unmapped;
  heap_.tables.pages.remove(page);
  heap_.tables.shrink_peak();
  return {};
}

void PageSupply::forget_if_empty(bool complete) {
  if (!heap_.tables.is_empty()) return;
  heap_.placer.forget_places();
  heap_.tables.tiles.give_back_spare();
  heap_.timelines.drop_events(complete);
  if (complete) heap_.tables.held = {};
}

void PageSupply::give_back_addresses() {
  forget_if_empty(/*complete=*/true);
  if (heap_.tables.is_empty() && heap_.tables.rows.count() == 0 && mappings_.strays().empty()) {
    mappings_.give_back_addresses();
  }
}

void PageSupply::keep_what_is_used(std::optional<Sequence> over) {
  heap_.tables.keeps_used = true;
  heap_.tables.over_at_capture = over;
  // What is in use now may be what the graph reads.
  for (auto& [id, page] : heap_.tables.pages.all()) {
    if (page.idle()) continue;
    page.has_contents = true;
    if (page.kept != Page::Kept::no) continue;
    page.kept = Page::Kept::for_now;
    heap_.tables.keeps_any = true;
  }
}

void PageSupply::settle_kept(bool keep) {
  heap_.tables.keeps_used = heap_.tables.keeps_any = false;
  heap_.tables.over_at_capture.reset();
  for (auto& [id, page] : heap_.tables.pages.all()) {
    if (page.kept == Page::Kept::for_now) page.kept = keep ? Page::Kept::yes : Page::Kept::no;
    const bool kept = page.kept != Page::Kept::no;
    page.has_contents = kept && (page.has_contents || !page.idle());
    heap_.tables.keeps_any = heap_.tables.keeps_any || kept;
  }
}

void PageSupply::let_go(const FenceSet& launches) {
  heap_.tables.single_timeline = heap_.tables.single_timeline && launches.empty();
  heap_.tables.keeps_any = false;
  for (auto& [id, page] : heap_.tables.pages.all()) {
    const bool was_kept = page.kept == Page::Kept::yes;
    page.kept = Page::Kept::no;
    page.has_contents = false;
    if (!was_kept || launches.empty()) continue;
    heap_.tables.tiles.add_fences(page.range(), launches);
    for (StitchedRow* const row : page.rows) row->users.join(launches);
  }
}

}  // namespace weir
