// SPDX-License-Identifier: Apache-2.0
// What tests may see and break of the core. No lock is taken: the tests that use it have one
// thread.
#pragma once

#include "core/base/thread_annotations.h"
#include "core/device_heap/device_heap_impl.h"

namespace weir {

struct TestAccess {
  static DeviceHeap::Impl& impl(DeviceHeap& heap) { return *heap.impl_; }
  static auto& patience(DeviceHeap& heap, std::uint64_t pool) {
    return impl(heap).pools.graph_pool(pool)->scratch().patience_;
  }
  static auto& observer(DeviceHeap& heap) { return impl(heap).observer; }
  static Budget& budget(DeviceHeap& heap) { return impl(heap).budget; }
  static TileIndex& index(DeviceHeap& heap) { return impl(heap).registry.index(); }
  static StreamHeap& stream_heap(DeviceHeap& heap, std::size_t id) {
    return *impl(heap).registry.heaps_.at(id);
  }
  static PageHeap& pages(DeviceHeap& heap) { return impl(heap).pools.own().pages(); }
  static PageTables& tables(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).heap_.tables;
  }
  static auto& regions(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).mappings_.regions_;
  }
  static auto& strays(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).mappings_.strays_;
  }
  static auto& retired(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).mappings_.retired_;
  }
  static Bytes& used(Tiles& tiles) { return tiles.used_; }
  static auto& runs(Tiles& tiles) { return tiles.runs_; }
  static auto& vacant(Tiles& tiles) { return tiles.vacant_; }
  static auto& regions(Tiles& tiles) { return tiles.regions_; }
  template <class Bins>
  static std::size_t& count(Bins& bins) {
    return bins.count_;
  }
  template <class Bins>
  static auto& filled(Bins& bins) {
    return bins.filled_;
  }
  static Bytes& total(HomePages& pages) { return pages.total_; }
  static auto& mappings(StitchedRows& rows) { return rows.mappings_; }
  static auto& vacant(StitchedRows& rows) { return rows.vacant_; }

  static auto& kept(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.held_.cache_.count_; }
  static auto& cached(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return heap.held_.cache_.cached_;
  }
  static auto& serves(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.serves_; }
  static Tile*& runs(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.held_.blocks_.runs_; }
  static HeapFold& fold(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.served_.fold; }
  static Stream& stream(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.served_.stream; }
  static TimelineId& timeline(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return heap.served_.timeline;
  }
  static Slabs& slabs(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return heap.held_.blocks_.slabs_;
  }
  static auto& free(Slabs& slabs) { return slabs.free_; }

  static Timelines& timelines(DeviceHeap& heap) { return impl(heap).pools.own().timelines(); }
  static auto& all(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS { return timelines.timelines_; }
  static auto& by_stream(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS {
    return timelines.by_stream_;
  }
  static auto& fences(VectorClock& clock) { return clock.entries_; }
  static auto& retired(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS { return timelines.retired_; }
  static auto& spare_events(Timelines& timelines) WEIR_NO_THREAD_ANALYSIS {
    return timelines.events_.spare_;
  }
};

}  // namespace weir
