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

void PageSupply::note(EventKind kind, PageId page, Bytes size) {
  if (kind == EventKind::create) {
    heap_.budget.take(size);
  } else {
    heap_.budget.give_back(size);
  }
  heap_.observer.emit(Event{.kind = kind, .plain = heap_.rules.plain, .page = page, .bytes = size});
}

HeldPage PageSupply::add(UnmappedPage page) {
  const PageId id = heap_.budget.next_page();
  note(EventKind::create, id, page.size);
  return {id, page};
}

UnmappedPage PageSupply::part_with(HeldPage page) {
  note(EventKind::release, page.id, page.page.size);
  return page.page;
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

}  // namespace weir
