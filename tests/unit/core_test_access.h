// What tests may see and break of the core: every member that an invariant speaks of. No lock is
// taken: the tests that use it have one thread.
#pragma once

#include "core/device_heap_impl.h"
#include "core/thread_annotations.h"

namespace weir {

struct TestAccess {
  static DeviceHeap::Impl& impl(DeviceHeap& heap) { return *heap.impl_; }
  static auto& addresses(DeviceHeap& heap) { return impl(heap).addresses_; }
  static auto& observer(DeviceHeap& heap) { return impl(heap).observer_; }
  static auto& hoards(DeviceHeap& heap) { return impl(heap).hoards_; }
  static StreamHeap& stream_heap(DeviceHeap& heap, std::size_t id) {
    return *impl(heap).heaps_.at(id);
  }

  static PageHeap& pages(DeviceHeap& heap) { return impl(heap).pages_; }
  static PageTable& table(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).table_; }
  static auto& uses(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).uses_; }
  static auto& aliases_retired(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).retired_.at;
  }
  static auto& regions(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).regions_; }
  static auto& rows(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).rows_; }
  static auto& next_row(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).next_row_; }
  static bool& alone(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).alone_; }
  static std::uint64_t requests(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).requests_;
  }
  static auto& peak_used(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).peak_used_;
  }
  static Arena& arena(DeviceHeap& heap, HeapId id) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).arenas_.at(id.value);
  }
  static auto& arenas(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).arenas_; }

  static RangeSet& usable(Arena& arena) { return arena.usable_; }
  static RangeSet& vacant(Arena& arena) { return arena.vacant_; }
  static Address& frontier(Arena& arena) { return arena.frontier_; }
  static auto& lists(RangeSet& set) { return set.lists_; }
  static auto& listed(RangeSet& set) { return set.listed_; }
  static auto& tables(RangeSet& set) { return set.members_.tables_; }
  // A member that is not merged with those it touches.
  static void add(RangeSet& set, Range range) {
    set.add_after(set.members_.last_at(range.begin), range);
  }
  // The first member's size is another one, of which no index knows.
  static void resize_first(RangeSet& set, Bytes size) { set.members_.first()->range.size = size; }

  static auto& pages(PageTable& table) { return table.pages_; }
  static std::size_t& mappings(PageTable& table) { return table.mappings_; }
  // Where something is mapped.
  static GranuleMap::Entry& granule(PageTable& table, Address at) {
    return table.granules_.slot(at);
  }
  // Up to date: what is changed in them stays until the table changes.
  static auto& idle(PageTable& table) { return table.refresh(), table.idle_; }
  static auto& tails(PageTable& table, HeapId heap) {
    return table.refresh(), table.ends_.at(heap).tails;
  }
  static auto& heads(PageTable& table, HeapId heap) {
    return table.refresh(), table.ends_.at(heap).heads;
  }
  static auto& last_use(PageTable& table) { return table.uses_; }
  static constexpr std::uint32_t kUsesEnd = PageTable::kUsesEnd;
  static auto& slots(PageTable& table) { return table.slots_; }
  static Bytes& total(PageTable& table) { return table.total_; }
  static Bytes& leased(PageTable& table) { return table.leased_; }
  static Bytes& used(PageTable& table) { return table.used_; }

  static RunIndex& runs(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.runs_; }
  // The record that `address` lies in, live or not.
  static Block& block(StreamHeap& heap, Address address) WEIR_NO_THREAD_ANALYSIS {
    Block* const run = heap.runs_.at_or_before(address);
    return run->slab == nullptr ? *run : *run->slab->tile_at(address);
  }
  static auto& kept(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.kept_; }
  static auto& at_hand(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.at_hand_; }
  static auto& hoard(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.hoard_; }
  static bool listed(StreamHeap& heap) { return hoard(heap).listed; }
  static constexpr std::size_t kMostAtHand = StreamHeap::kMostAtHand;
  static auto& serves(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.serves_; }
  static Slabs& slabs(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.slabs_; }
  static HeapFold& fold(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.fold_; }
  static Stream& stream(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.stream_; }
  static TimelineId& timeline(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.timeline_; }
  static auto& all(Slabs& slabs) { return slabs.slabs_; }
  static auto& lists(Slabs& slabs) { return slabs.lists_; }
  static auto& filled(Slabs& slabs) { return slabs.filled_; }

  static Timelines& timelines(DeviceHeap& heap) { return impl(heap).timelines_; }
  static auto& all(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS { return timelines.timelines_; }
  static auto& by_stream(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS {
    return timelines.by_stream_;
  }
  static auto& fences(VectorClock& clock) { return clock.entries_; }
  static auto& ranges(FencedRanges& ranges) { return ranges.ranges_; }
  static auto& retired(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS { return timelines.retired_; }
  static auto& spare_events(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS {
    return timelines.spare_events_;
  }
};

}  // namespace weir
