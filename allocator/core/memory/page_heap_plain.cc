// SPDX-License-Identifier: Apache-2.0
// Plain memory: pages that are segments of the driver's, each a region of its own.
#include <algorithm>

#include "core/memory/page_heap.h"

namespace weir {
namespace {

// A request smaller than kShares gets a new segment that others share: half as large as those that
// the heap has, together, so that a small pool stays small and a large one needs few. A larger
// request gets a segment of its own size.
constexpr Bytes kShares = 16_MiB, kLeastShared = 2_MiB, kMostShared = 32_MiB;

Bytes segment_size(Bytes request, const HomePages& pages, Bytes granularity) {
  if (request >= kShares) return round_up(request, granularity);
  Bytes shared;
  for (const auto& [id, page] : pages.all()) {
    if (page.size <= kMostShared) shared += page.size;
  }
  const Bytes half = round_up(Bytes{shared.count / 2}, kLeastShared);
  return std::max(request, std::clamp(half, kLeastShared, kMostShared));
}

}  // namespace

// Free memory in one piece; or a new segment, if little more is held then than was ever in use;
// or memory that has to be waited for; or a new segment, in the place of idle ones if need be.
Result<Address> PageHeap::place_in_segments(Owner& owner, Bytes size) {
  while (!held_.empty()) {
    const HeldPage segment = held_.back();
    held_.pop_back();
    held_bytes_ -= segment.page.size;
    adopt(owner, segment);
  }
  if (const std::optional<Address> at = find(owner, size)) return *at;
  if (may_create() && growth(size, round_up(size, granularity_)) != Growth::no) {
    Result<Address> at = add_segment(owner, size);
    if (at || at.error().code() != ErrorCode::out_of_memory) return at;
  }
  if (may_wait() && avoids_anything()) {
    if (const std::optional<Address> at = find_oldest(owner, size)) return *at;
  }
  if (!may_create()) return Error(ErrorCode::out_of_memory, "new memory may not be had yet");
  Result<Address> at = add_segment(owner, size);
  if (at || at.error().code() != ErrorCode::out_of_memory) return at;
  // Idle segments, of which each is too small, go for one that is large enough: unless even all of
  // them would not do.
  if (const Result<MemoryInfo> info = device_.memory_info()) device_room_ = info->free;
  if (round_up(size, granularity_) > room() + (total() - pages_.leased())) return at;
  if (const Result<Bytes> gone = trim_locked(0_B); !gone || *gone == 0_B) return at;
  device_room_.reset();
  peak_used_ = std::max(peak_used_, pages_.used() + size);  // which went down with what has gone
  return add_segment(owner, size);
}

Result<Address> PageHeap::add_segment(Owner& owner, Bytes size) {
  const Bytes least = round_up(size, granularity_);
  if (!has_room_for_mappings(1)) {
    short_of_mappings_ = true;
    return Error(ErrorCode::out_of_memory, "HeapOptions::most_mappings allows no more segments");
  }
  for (const Bytes wanted : {std::max(least, segment_size(size, pages_, granularity_)), least}) {
    if (wanted > room()) continue;
    const Result<Address> at = device_.allocate_segment(wanted);
    if (at) {
      if (!AddressMap::covers({*at, wanted})) {
        (void)device_.free_segment(*at, wanted);
        return Error(ErrorCode::device, "the device has memory at addresses beyond 49 bits");
      }
      return adopt(owner, add({PhysicalHandle{at->value}, wanted})).home;
    }
    if (at.error().code() != ErrorCode::out_of_memory) return at.error();
    if (wanted == least) return at.error();
  }
  return Error(ErrorCode::out_of_memory, "the limit leaves no room");
}

Page& PageHeap::adopt(const Owner& owner, HeldPage segment) {
  const Range home{Address{segment.page.handle.value}, segment.page.size};
  if (row_begin_ == Address{}) row_begin_ = home.begin;
  addresses_.add_region(home);
  regions_.push_back(home);
  chunks_.add_region(home);
  chunks_.fill(home);
  observer_.emit(owner.fold, Event{.kind = EventKind::map,
                                   .plain = true,
                                   .page = segment.id,
                                   .address = home.begin,
                                   .bytes = home.size});
  return pages_.add(segment.id, segment.page.handle, home, owner.id);
}

void PageHeap::forget_segment(const Page& page) {
  const Range segment = page.range();
  observer_.emit(Event{.kind = EventKind::unmap,
                       .plain = true,
                       .page = page.id,
                       .address = segment.begin,
                       .bytes = segment.size});
  chunks_.remove_region(segment);
  std::erase(regions_, segment);
  addresses_.remove_region(segment);
}

}  // namespace weir
