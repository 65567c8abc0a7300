// SPDX-License-Identifier: Apache-2.0
// What a device heap says of itself as a whole, as of one moment: statistics, snapshots,
// invariants, and what a recording begins with. Each call holds every lock that the moment needs.
#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "core/device_heap/device_heap_impl.h"

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
  Bytes mapped, plain, plain_in_use, lent;
  for (const PageInfo& page : pages) {
    mapped += page.bytes * page.mappings;
    if (page.lent_by != 0) lent += page.bytes;
    if (page.memory != MemoryKind::plain) continue;
    plain += page.bytes;
    if (page.lease) plain_in_use += page.bytes;
  }
  same("plain_bytes", all.plain_bytes.current, plain.count);
  same("plain_leased_bytes", all.plain_leased_bytes.current, plain_in_use.count);
  same("lent_bytes", all.lent_bytes.current, lent.count);
  same("pages", all.pages.current, pages.size());
  same("mapped_bytes", all.mapped_bytes.current, mapped.count);
  return broken;
}

// Calls look(totals, pages) of the device heap's pages and those of its graph pools together, while
// nothing can change them. The locks of pools are taken before the device heap's own.
template <class Look>
void with_pages(const Pools& pools, Look&& look) WEIR_NO_THREAD_ANALYSIS {
  std::vector<Locked<const PageListing>> each;
  for (const auto& [id, pool] : pools.graph_pools_held()) each.push_back(pool->pages().listing());
  each.push_back(pools.own().pages().listing());
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

// What the stream heaps say.
void list_heaps(const Pools& pools, HeapRegistry::Heaps heaps,
                HeapSnapshot& snapshot) WEIR_NO_THREAD_ANALYSIS {
  snapshot.time = pools.shared().device.now();
  for (const auto& heap : heaps) {
    const auto [stream, open] = heap->stream_locked();
    snapshot.heaps.push_back({heap->id(), stream, heap->pool(), open, heap->memory()});
    heap->list_blocks(snapshot.blocks);
  }
  snapshot.statistics = pools.statistics(heaps);
}

// Everything that `snapshot` shows, as the events that would make it of nothing, in an order in
// which they could have come.
std::vector<Event> as_events(const Pools& all, const HeapSnapshot& snapshot,
                             std::span<const CapturePool::Held> pools) {
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
  for (std::uint64_t why = 0; !all.own().is_told() && why < kContextEventsLost; ++why) {
    if ((all.shared().captures.reasons() >> why & 1) == 0) continue;
    add({.kind = EventKind::context_events_lost, .heap = kNoHeap, .other = why});
  }
  for (const PageInfo& page : snapshot.pages) {
    const bool plain = page.memory == MemoryKind::plain;
    add({.kind = EventKind::create,
         .plain = plain,
         .page = page.page,
         .bytes = page.bytes,
         .pool = page.lent_by});
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
void with_all_held(Pools& all, Function&& function) WEIR_NO_THREAD_ANALYSIS {
  const auto no_new_pools = all.hold();
  std::vector<CapturePool::Held> pools;
  for (const auto& [id, pool] : all.graph_pools_held()) pools.push_back(pool->hold());
  const auto no_new_members = all.own().hold_members();
  all.shared().registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    const auto change = [&](const PageListing::Totals&, const std::vector<PageInfo>& pages)
                            WEIR_NO_THREAD_ANALYSIS {
                              function(heaps, pages, pools);
                              for (const auto& heap : heaps)
                                heap->set_recording(all.shared().observer.recording());
                            };
    with_pages(all, change);
  });
}

}  // namespace

Statistics DeviceHeap::statistics() const { return impl_->pools.statistics(); }

// Closed pools go when the driver says that their graphs have, and not when the program does.
std::vector<PoolLayout> DeviceHeap::layouts() const {
  std::vector<PoolLayout> all{impl_->pools.own().layout()};
  for (const std::shared_ptr<CapturePool>& pool : impl_->pools.graph_pools()) {
    const CapturePool::Held held = pool->hold();
    if (!held.is_closed) all.push_back(pool->layout());
  }
  return all;
}

void DeviceHeap::reset_peaks() {
  impl_->registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    for (const auto& heap : heaps) heap->fold().reset_peaks();
    impl_->observer.fold().reset_peaks();
  });
}

HeapSnapshot DeviceHeap::snapshot() const {
  HeapSnapshot snapshot;
  snapshot.device = impl_->pools.shared().device.name();
  snapshot.device_bytes = impl_->device_bytes();
  snapshot.layouts = layouts();
  const Pools& pools = impl_->pools;
  const auto no_new_pools = pools.hold();
  impl_->registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    for (const auto& heap : heaps) heap->give_back_cached_locked();
    with_pages(pools, [&](const PageListing::Totals&, const std::vector<PageInfo>& pages) {
      snapshot.pages = pages;
      list_heaps(pools, heaps, snapshot);
    });
  });
  std::sort(snapshot.pages.begin(), snapshot.pages.end(),
            [](const PageInfo& a, const PageInfo& b) { return a.page < b.page; });
  std::sort(snapshot.blocks.begin(), snapshot.blocks.end(),
            [](const BlockInfo& a, const BlockInfo& b) { return a.address < b.address; });
  return snapshot;
}

void DeviceHeap::start_recording(EventSink& sink) {
  with_all_held(impl_->pools, [&](HeapRegistry::Heaps heaps, const std::vector<PageInfo>& pages,
                                  std::span<const CapturePool::Held> pools) {
    HeapSnapshot snapshot;
    snapshot.pages = pages;
    list_heaps(impl_->pools, heaps, snapshot);
    impl_->observer.add(sink, as_events(impl_->pools, snapshot, pools));
  });
}

bool DeviceHeap::stop_recording(EventSink& sink) {
  bool there = false;
  with_all_held(impl_->pools, [&](auto&&...) { there = impl_->observer.remove(sink); });
  return there;
}

std::vector<std::string> DeviceHeap::validate() const {
  const Pools& pools = impl_->pools;
  std::vector<std::string> broken;
  const auto add = [&](const std::vector<std::string>& more) {
    broken.insert(broken.end(), more.begin(), more.end());
  };
  const auto no_new_pools = pools.hold();
  for (const auto& [id, pool] : pools.graph_pools_held()) add(pool->validate_captures());
  std::vector<const Pool*> all{&pools.own()};
  for (const auto& [id, pool] : pools.graph_pools_held()) all.push_back(pool.get());
  std::vector<std::shared_lock<std::shared_mutex>> no_new_members;
  no_new_members.reserve(all.size());
  for (const Pool* const pool : all) no_new_members.push_back(pool->hold_members());
  impl_->registry.at_one_moment([&](HeapRegistry::Heaps heaps) WEIR_NO_THREAD_ANALYSIS {
    std::unordered_map<std::uint64_t, std::vector<Range>> runs;  // by Pool::id()
    for (const auto& heap : heaps) {
      add(heap->validate(runs[heap->pool()]));
    }
    for (const Pool* const pool : all) add(pool->validate(runs[pool->id()]));
    with_pages(pools, [&](const PageListing::Totals& totals, const std::vector<PageInfo>& pages) {
      add(validate_statistics(pools.statistics(heaps), totals, pages));
      if (impl_->budget.held() != totals.total)
        broken.emplace_back("budget: not what the page heaps hold");
    });
  });
  return broken;
}

}  // namespace weir
