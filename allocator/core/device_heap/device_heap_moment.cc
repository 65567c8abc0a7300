// What is said of a device heap as a whole, as of one moment: statistics, snapshots, invariants,
// and what a recording begins with.
#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "core/device_heap/device_heap_impl.h"

namespace weir {

namespace {

// Calls look(totals, pages) of all of `heaps` together, while nothing can change them. Pools' come
// last, as their locks are taken before the device heap's own: they are locked from the back.
template <class Look>
void hold_still(std::span<const PageHeap* const> heaps, PageHeap::Totals totals,
                std::vector<PageInfo> pages, Look&& look) {
  if (heaps.empty()) return look(totals, pages);
  heaps.back()->hold_still([&](const PageHeap::Totals& more, const std::vector<PageInfo>& others) {
    totals.total += more.total;
    totals.leased += more.leased;
    totals.used += more.used;
    totals.mappings += more.mappings;
    pages.insert(pages.end(), others.begin(), others.end());
    hold_still(heaps.first(heaps.size() - 1), totals, std::move(pages), look);
  });
}

}  // namespace

// With every heap's lock held: as of one moment.
template <class Function>
void DeviceHeap::Impl::at_one_moment(Function&& function) const WEIR_NO_THREAD_ANALYSIS {
  const std::shared_lock registry(heaps_mutex_);
  const std::vector<StreamHeap*> heaps = heaps_in_order();
  for (StreamHeap* heap : heaps) heap->lock();
  function();
  for (StreamHeap* heap : heaps) heap->unlock();
}

// Calls look(totals, pages) of the device heap's pages and those of `pools` together, while nothing
// can change them.
template <class Look>
void DeviceHeap::Impl::with_pages(const std::vector<std::shared_ptr<PoolHeap>>& pools,
                                  Look&& look) const {
  std::vector<const PageHeap*> each{&pages_};
  for (const std::shared_ptr<PoolHeap>& pool : pools) each.push_back(&pool->pages());
  hold_still(each, {}, {}, look);
}

Statistics DeviceHeap::Impl::statistics() const {
  Statistics all;
  at_one_moment([&]() WEIR_NO_THREAD_ANALYSIS {
    std::vector<HeapStatistics> heaps;
    for (const auto& heap : heaps_) heaps.push_back(heap->statistics_locked());
    all = observer_.fold().combine(std::move(heaps));
  });
  return all;
}

void DeviceHeap::Impl::reset_peaks() {
  const std::shared_lock lock(heaps_mutex_);
  for (const std::unique_ptr<StreamHeap>& heap : heaps_) heap->reset_peaks();
  observer_.fold().reset_peaks();
}

HeapSnapshot DeviceHeap::Impl::snapshot() const {
  HeapSnapshot snapshot;
  snapshot.device = device_.name();
  if (device_bytes_ < kMostBytes) snapshot.device_bytes = device_bytes_;
  const std::shared_lock no_new_pools(routes_mutex_);
  at_one_moment([&]() WEIR_NO_THREAD_ANALYSIS {
    for (const auto& heap : heaps_) heap->give_back_kept();
    with_pages(pools_, [&](const PageHeap::Totals&, const std::vector<PageInfo>& pages) {
      snapshot.pages = pages;
      list_heaps(snapshot);
    });
  });
  std::sort(snapshot.pages.begin(), snapshot.pages.end(),
            [](const PageInfo& a, const PageInfo& b) { return a.page < b.page; });
  std::sort(snapshot.blocks.begin(), snapshot.blocks.end(),
            [](const BlockInfo& a, const BlockInfo& b) { return a.address < b.address; });
  return snapshot;
}

// What the stream heaps say.
void DeviceHeap::Impl::list_heaps(HeapSnapshot& snapshot) const {
  snapshot.time = device_.now();
  std::vector<HeapStatistics> statistics;
  for (const auto& heap : heaps_) {
    const std::uint64_t pool = heap->pool() == nullptr ? 0 : heap->pool()->id();
    const auto [stream, open] = heap->stream_locked();
    snapshot.heaps.push_back({heap->id(), stream, pool, open});
    const std::size_t before = snapshot.blocks.size();
    heap->list_blocks(snapshot.blocks);
    for (std::size_t i = before; i < snapshot.blocks.size(); ++i) snapshot.blocks[i].pool = pool;
    statistics.push_back(heap->statistics_locked());
  }
  snapshot.statistics = observer_.fold().combine(std::move(statistics));
}

// Everything that `snapshot` shows, as the events that would make it of nothing, in an order in
// which they could have come.
std::vector<Event> DeviceHeap::Impl::as_events(const HeapSnapshot& snapshot) const {
  std::vector<Event> events;
  const auto add = [&](Event event) {
    event.time = snapshot.time;
    events.push_back(event);
  };
  for (const std::shared_ptr<PoolHeap>& pool : pools_) {
    const bool closed = [&]() WEIR_NO_THREAD_ANALYSIS { return pool->closed_locked(); }();
    if (!closed) add({.kind = EventKind::pool_open, .pool = pool->id()});
  }
  for (const HeapInfo& heap : snapshot.heaps) {
    add({.kind = EventKind::heap_open,
         .heap = heap.heap,
         .stream = heap.stream,
         .pool = heap.pool});
  }
  for (const std::shared_ptr<PoolHeap>& pool : pools_) {
    const bool captures = [&]() WEIR_NO_THREAD_ANALYSIS { return pool->capturing_locked(); }();
    if (captures) add({.kind = EventKind::capture_begin, .pool = pool->id()});
  }
  for (const PageInfo& page : snapshot.pages) {
    add({.kind = EventKind::create, .page = page.page, .bytes = page.bytes});
    for (const MappingInfo& mapping : page.mapped_at) {
      add({.kind = EventKind::map,
           .heap = mapping.heap,
           .page = page.page,
           .address = mapping.address,
           .bytes = page.bytes});
    }
    if (!page.lease) continue;
    add({.kind = EventKind::lease, .heap = *page.lease, .page = page.page, .bytes = page.bytes});
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
void DeviceHeap::Impl::with_all_held(Function&& function) WEIR_NO_THREAD_ANALYSIS {
  const std::shared_lock routes(routes_mutex_);
  for (const std::shared_ptr<PoolHeap>& pool : pools_) pool->lock();
  at_one_moment([&]() WEIR_NO_THREAD_ANALYSIS {
    const auto change = [&](const PageHeap::Totals&, const std::vector<PageInfo>& pages)
                            WEIR_NO_THREAD_ANALYSIS {
                              function(pages);
                              for (const auto& heap : heaps_)
                                heap->set_recording(observer_.recording());
                            };
    with_pages(pools_, change);
  });
  for (const std::shared_ptr<PoolHeap>& pool : pools_) pool->unlock();
}

void DeviceHeap::Impl::start_recording(EventSink& sink) {
  with_all_held([&](const std::vector<PageInfo>& pages) {
    HeapSnapshot snapshot;
    snapshot.pages = pages;
    list_heaps(snapshot);
    observer_.add(sink, as_events(snapshot));
  });
}

bool DeviceHeap::Impl::stop_recording(EventSink& sink) {
  bool there = false;
  with_all_held([&](const std::vector<PageInfo>&) { there = observer_.remove(sink); });
  return there;
}

std::vector<std::string> DeviceHeap::Impl::validate() const {
  std::vector<std::string> broken;
  const auto add = [&](const std::vector<std::string>& more) {
    broken.insert(broken.end(), more.begin(), more.end());
  };
  const std::shared_lock no_new_pools(routes_mutex_);
  for (const std::shared_ptr<PoolHeap>& pool : pools_) add(pool->validate());
  at_one_moment([&]() WEIR_NO_THREAD_ANALYSIS {
    std::unordered_map<const PoolHeap*, std::vector<Range>> runs;  // null: the device heap's own
    std::vector<HeapStatistics> heaps;
    for (const auto& heap : heaps_) {
      std::vector<Range>& of_pool = runs[heap->pool()];
      const std::size_t before = of_pool.size();
      add(heap->validate(of_pool));
      add(validate_owner(*heap, std::span(of_pool).subspan(before)));
      heaps.push_back(heap->statistics_locked());
    }
    add(pages_.validate(runs[nullptr]));
    for (const std::shared_ptr<PoolHeap>& pool : pools_)
      add(pool->pages().validate(runs[pool.get()]));
    add(timelines_.validate());
    add(validate_registry());
    with_pages(pools_, [&](const PageHeap::Totals& totals, const std::vector<PageInfo>& pages) {
      add(validate_statistics(observer_.fold().combine(std::move(heaps)), totals, pages));
      if (budget_.held() != totals.total)
        broken.emplace_back("budget: not what the page heaps hold");
    });
  });
  return broken;
}

std::vector<std::string> DeviceHeap::Impl::validate_registry() const {
  std::vector<std::string> broken;
  for (const auto& [stream, heap] : by_stream_) {
    if (heap->pool() != nullptr || heap->id().value >= heaps_.size() ||
        heaps_[heap->id().value].get() != heap || !heap->serves(stream)) {
      broken.push_back("stream " + std::to_string(stream) + ": its heap serves another");
    }
  }
  for (const auto& heap : heaps_) {
    if (owners_[AddressMap::owner_of(heap->id())] != heap.get()) {
      broken.push_back("heap " + std::to_string(heap->id().value) + ": found by another's number");
    }
  }
  return broken;
}

// Whichever of a run's addresses is looked up, the heap that has the run is found. (Far inside a
// run all look-ups go the same way.)
std::vector<std::string> DeviceHeap::Impl::validate_owner(const StreamHeap& heap,
                                                          std::span<const Range> runs) const {
  constexpr Bytes kLookedUp = 8_MiB;
  std::vector<std::string> broken;
  for (const Range run : runs) {
    bool found = owner_of(run.end() - kGrain) == &heap;
    for (Bytes offset; offset < std::min(run.size, kLookedUp); offset += AddressMap::kStep) {
      found = found && owner_of(run.begin + offset) == &heap;
    }
    if (found) continue;
    broken.push_back("heap " + std::to_string(heap.id().value) + ": run at " +
                     std::to_string(run.begin.value) +
                     ": its addresses are another heap's, or nobody's");
  }
  return broken;
}

std::vector<std::string> DeviceHeap::Impl::validate_statistics(const Statistics& all,
                                                               const PageHeap::Totals& totals,
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
  Bytes mapped;
  for (const PageInfo& page : pages) mapped += page.bytes * page.mappings;
  same("pages", all.pages.current, pages.size());
  same("mapped_bytes", all.mapped_bytes.current, mapped.count);
  return broken;
}

Status DeviceHeap::Impl::renew_access() {
  if (Status status = pages_.renew_access(); !status) return status;
  for (const std::shared_ptr<PoolHeap>& pool : pools()) {
    if (Status status = pool->pages().renew_access(); !status) return status;
  }
  return {};
}

std::vector<PagePart> DeviceHeap::Impl::parts(const void* block) const {
  StreamHeap* const heap = owner_of(Address::of(block));
  const std::optional<BlockInfo> info =
      heap == nullptr ? std::nullopt : heap->find(Address::of(block));
  if (!info || info->address != Address::of(block)) return {};
  const PageHeap& pages = heap->pool() == nullptr ? pages_ : heap->pool()->pages();
  return pages.parts({info->address, info->bytes});
}

}  // namespace weir
