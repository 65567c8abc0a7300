// SPDX-License-Identifier: Apache-2.0
#include "core/device_heap/heap_view.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace weir {
namespace {

std::vector<std::string> validate_statistics(const Statistics& all,
                                             const PageListing::Totals& totals,
                                             const std::vector<PageInfo>& pages) {
  std::vector<std::string> broken;
  const auto same = [&](const char* name, std::uint64_t counted, std::uint64_t actual) {
    if (counted == actual) return;
    broken.push_back(std::string("statistics: ") + name + " is " + std::to_string(counted) +
                     ", a recount gives " + std::to_string(actual));
  };
  same("reserved_bytes", all.reserved_bytes.current, totals.total.count);
  same("leased_bytes", all.leased_bytes.current, totals.leased.count);
  same("mappings", all.mappings.current, totals.mappings);
  Bytes mapped, plain, plain_in_use;
  for (const PageInfo& page : pages) {
    mapped += page.bytes * page.mappings;
    if (page.memory != MemoryKind::plain) continue;
    plain += page.bytes;
    if (page.lease) plain_in_use += page.bytes;
  }
  same("plain_bytes", all.plain_bytes.current, plain.count);
  same("plain_leased_bytes", all.plain_leased_bytes.current, plain_in_use.count);
  same("pages", all.pages.current, pages.size());
  same("mapped_bytes", all.mapped_bytes.current, mapped.count);
  return broken;
}

}  // namespace

// Calls look(totals, pages) of the device heap's pages and those of its graph pools together, while
// nothing can change them. The locks of pools are taken before the device heap's own.
template <class Look>
void HeapView::with_pages(Look&& look) const {
  std::vector<Locked<const PageListing>> each;
  for (const auto& [id, pool] : pools_.graph_pools_held()) each.push_back(pool->pages().listing());
  each.push_back(pools_.own().pages().listing());
  PageListing::Totals totals;
  std::vector<PageInfo> pages;
  for (const Locked<const PageListing>& listing : each) {
    const PageListing::Totals more = listing->totals();
    totals.total += more.total;
    totals.leased += more.leased;
    totals.used += more.used;
    totals.mappings += more.mappings;
    const std::vector<PageInfo> others = listing->pages();
    pages.insert(pages.end(), others.begin(), others.end());
  }
  look(totals, pages);
}

Statistics HeapView::statistics() const {
  Statistics all;
  shared_.registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    std::vector<HeapStatistics> each;
    for (const auto& heap : heaps) each.push_back(heap->fold().statistics());
    all = shared_.observer.fold().combine(std::move(each));
  });
  return all;
}

void HeapView::reset_peaks() {
  shared_.registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    for (const auto& heap : heaps) heap->fold().reset_peaks();
    shared_.observer.fold().reset_peaks();
  });
}

HeapSnapshot HeapView::snapshot() const {
  HeapSnapshot snapshot;
  snapshot.device = shared_.device.name();
  snapshot.device_bytes = device_bytes_;
  const auto no_new_pools = pools_.hold();
  shared_.registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    for (const auto& heap : heaps) heap->give_back_cached_locked();
    with_pages([&](const PageListing::Totals&, const std::vector<PageInfo>& pages) {
      snapshot.pages = pages;
      list_heaps(heaps, snapshot);
    });
  });
  std::sort(snapshot.pages.begin(), snapshot.pages.end(),
            [](const PageInfo& a, const PageInfo& b) { return a.page < b.page; });
  std::sort(snapshot.blocks.begin(), snapshot.blocks.end(),
            [](const BlockInfo& a, const BlockInfo& b) { return a.address < b.address; });
  return snapshot;
}

// The device is asked with no lock of the heaps held.
Bytes HeapView::free_bytes_used_by(std::span<const Stream> users) const {
  Timelines& timelines = pools_.own().timelines();
  std::vector<TimelineId> of_users;
  for (const Stream user : users) of_users.push_back(timelines.of(user));
  std::vector<PageListing::FreeInUse> free;
  shared_.registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    for (const auto& heap : heaps) heap->give_back_cached_locked();
    free = pools_.own().pages().listing()->free_in_use_by(of_users);
  });
  Bytes bytes;
  for (const PageListing::FreeInUse& range : free) {
    const Result<bool> over = timelines.looks_complete(range.uses);
    if (!over || !*over) bytes += range.bytes;
  }
  return bytes;
}

// What the stream heaps say.
void HeapView::list_heaps(HeapRegistry::Heaps heaps, HeapSnapshot& snapshot) const {
  snapshot.time = shared_.device.now();
  std::vector<HeapStatistics> statistics;
  for (const auto& heap : heaps) {
    const auto [stream, open] = heap->stream_locked();
    snapshot.heaps.push_back({heap->id(), stream, heap->pool(), open, heap->memory()});
    heap->list_blocks(snapshot.blocks);
    statistics.push_back(heap->fold().statistics());
  }
  snapshot.statistics = shared_.observer.fold().combine(std::move(statistics));
}

// Everything that `snapshot` shows, as the events that would make it of nothing, in an order in
// which they could have come.
std::vector<Event> HeapView::as_events(const HeapSnapshot& snapshot,
                                       std::span<const CapturePool::Held> pools) const {
  std::vector<Event> events;
  const auto add = [&](Event event) {
    event.time = snapshot.time;
    events.push_back(event);
  };
  for (const CapturePool::Held& pool : pools) {
    if (!pool.is_closed) add({.kind = EventKind::pool_open, .pool = pool.pool});
  }
  for (const HeapInfo& heap : snapshot.heaps) {
    add({.kind = EventKind::heap_open,
         .plain = heap.memory == MemoryKind::plain,
         .heap = heap.heap,
         .stream = heap.stream,
         .pool = heap.pool});
  }
  for (const CapturePool::Held& pool : pools) {
    if (pool.is_captured) add({.kind = EventKind::capture_begin, .pool = pool.pool});
  }
  for (std::uint64_t why = 0; !pools_.own().is_told() && why < kContextEventsLost; ++why) {
    if ((shared_.captures.reasons() >> why & 1) == 0) continue;
    add({.kind = EventKind::context_events_lost, .heap = kNoHeap, .other = why});
  }
  for (const PageInfo& page : snapshot.pages) {
    const bool plain = page.memory == MemoryKind::plain;
    add({.kind = EventKind::create, .plain = plain, .page = page.page, .bytes = page.bytes});
    for (const MappingInfo& mapping : page.mapped_at) {
      add({.kind = EventKind::map,
           .plain = plain,
           .heap = mapping.heap,
           .page = page.page,
           .address = mapping.address,
           .bytes = page.bytes});
    }
    if (!page.lease) continue;
    add({.kind = EventKind::lease,
         .plain = plain,
         .heap = *page.lease,
         .page = page.page,
         .bytes = page.bytes});
  }
  for (const BlockInfo& block : snapshot.blocks) {
    add({.kind = EventKind::allocate,
         .heap = block.heap,
         .stream = block.stream,
         .address = block.address,
         .bytes = block.bytes,
         .requested = block.requested});
  }
  return events;
}

// With every lock held under which an event of pools, heaps or pages is emitted.
template <class Function>
void HeapView::with_all_held(Function&& function) WEIR_NO_THREAD_ANALYSIS {
  const auto no_new_pools = pools_.hold();
  std::vector<CapturePool::Held> pools;
  for (const auto& [id, pool] : pools_.graph_pools_held()) pools.push_back(pool->hold());
  const auto no_new_members = pools_.own().hold_members();
  shared_.registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    const auto change = [&](const PageListing::Totals&, const std::vector<PageInfo>& pages)
                            WEIR_NO_THREAD_ANALYSIS {
                              function(heaps, pages, pools);
                              for (const auto& heap : heaps)
                                heap->set_recording(shared_.observer.recording());
                            };
    with_pages(change);
  });
}

void HeapView::start_recording(EventSink& sink) {
  with_all_held([&](HeapRegistry::Heaps heaps, const std::vector<PageInfo>& pages,
                    std::span<const CapturePool::Held> pools) {
    HeapSnapshot snapshot;
    snapshot.pages = pages;
    list_heaps(heaps, snapshot);
    shared_.observer.add(sink, as_events(snapshot, pools));
  });
}

bool HeapView::stop_recording(EventSink& sink) {
  bool there = false;
  with_all_held([&](auto&&...) { there = shared_.observer.remove(sink); });
  return there;
}

std::vector<std::string> HeapView::validate() const {
  std::vector<std::string> broken;
  const auto add = [&](const std::vector<std::string>& more) {
    broken.insert(broken.end(), more.begin(), more.end());
  };
  const auto no_new_pools = pools_.hold();
  for (const auto& [id, pool] : pools_.graph_pools_held()) add(pool->validate_captures());
  std::vector<const Pool*> all{&pools_.own()};
  for (const auto& [id, pool] : pools_.graph_pools_held()) all.push_back(pool.get());
  std::vector<std::shared_lock<std::shared_mutex>> no_new_members;
  no_new_members.reserve(all.size());
  for (const Pool* const pool : all) no_new_members.push_back(pool->hold_members());
  shared_.registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    std::unordered_map<std::uint64_t, std::vector<Range>> runs;  // by Pool::id()
    std::vector<HeapStatistics> each;
    for (const auto& heap : heaps) {
      std::vector<Range>& of_pool = runs[heap->pool()];
      const std::size_t before = of_pool.size();
      add(heap->validate(of_pool));
      add(shared_.registry.validate(*heap, std::span(of_pool).subspan(before)));
      each.push_back(heap->fold().statistics());
    }
    for (const Pool* const pool : all) add(pool->validate(runs[pool->id()]));
    with_pages([&](const PageListing::Totals& totals, const std::vector<PageInfo>& pages) {
      add(validate_statistics(shared_.observer.fold().combine(std::move(each)), totals, pages));
      if (shared_.budget.held() != totals.total)
        broken.emplace_back("budget: not what the page heaps hold");
    });
  });
  return broken;
}

}  // namespace weir
