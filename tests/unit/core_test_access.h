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
  static StreamHeap& stream_heap(DeviceHeap& heap, std::size_t id) {
    return *impl(heap).heaps_.at(id);
  }

  static PageHeap& pages(DeviceHeap& heap) { return impl(heap).pages_; }
  static PageTable& table(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).table_; }
  static auto& uses(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).uses_; }
  static auto& regions(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).regions_; }
  static auto& rows(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).rows_; }
  static auto& next_row(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).next_row_; }
  static auto& peak_used(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).peak_used_;
  }
  static Arena& arena(DeviceHeap& heap, HeapId id) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).arenas_.at(id);
  }
  static auto& arenas(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).arenas_; }

  static RangeSet& usable(Arena& arena) { return arena.usable_; }
  static RangeSet& vacant(Arena& arena) { return arena.vacant_; }
  static Address& frontier(Arena& arena) { return arena.frontier_; }
  static auto& by_address(RangeSet& set) { return set.by_address_; }
  static auto& by_size(RangeSet& set) { return set.by_size_; }

  static auto& pages(PageTable& table) { return table.pages_; }
  static auto& mappings(PageTable& table) { return table.mappings_; }
  static auto& idle(PageTable& table) { return table.idle_; }
  static auto& tails(PageTable& table, HeapId heap) { return table.ends_.at(heap).tails; }
  static auto& heads(PageTable& table, HeapId heap) { return table.ends_.at(heap).heads; }
  static auto& next_page(PageTable& table) { return table.next_page_; }
  static Bytes& total(PageTable& table) { return table.total_; }
  static Bytes& leased(PageTable& table) { return table.leased_; }
  static Bytes& used(PageTable& table) { return table.used_; }

  static auto& blocks(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.blocks_; }
  static Slabs& slabs(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.slabs_; }
  static HeapFold& fold(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.fold_; }
  static Stream& stream(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.stream_; }
  static TimelineId& timeline(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.timeline_; }
  static auto& used(Slabs& slabs) { return slabs.used_; }
  static RangeSet& free(Slabs& slabs) { return slabs.free_; }

  static Timelines& timelines(DeviceHeap& heap) { return impl(heap).timelines_; }
  static auto& all(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS { return timelines.timelines_; }
  static auto& by_stream(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS {
    return timelines.by_stream_;
  }
  static auto& spare_events(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS {
    return timelines.spare_events_;
  }
};

}  // namespace weir
