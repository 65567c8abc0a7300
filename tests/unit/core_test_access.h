// SPDX-License-Identifier: Apache-2.0
// What tests may see and break of the core: every member that an invariant speaks of. No lock is
// taken: the tests that use it have one thread.
#pragma once

#include "core/base/thread_annotations.h"
#include "core/device_heap/device_heap_impl.h"

namespace weir {

struct TestAccess {
  static DeviceHeap::Impl& impl(DeviceHeap& heap) { return *heap.impl_; }
  static auto& addresses(DeviceHeap& heap) { return impl(heap).registry_.addresses_; }
  static auto& observer(DeviceHeap& heap) { return impl(heap).observer_; }
  static auto& caching_heaps(DeviceHeap& heap) { return impl(heap).device_pool_.caching_heaps(); }
  static StreamHeap& stream_heap(DeviceHeap& heap, std::size_t id) {
    return *impl(heap).registry_.heaps_.at(id);
  }

  // As many heaps as there can be; no request finds those that are added.
  static void fill_registry(DeviceHeap& heap, Stream stream) {
    Pool& pool = impl(heap).device_pool_;
    while (impl(heap).registry_.add([&](HeapId id) {
      return std::make_unique<StreamHeap>(id, stream, pool.pages(), pool.timelines(),
                                          observer(heap), pool.caching_heaps(), nullptr);
    })) {
    }
  }

  static PageHeap& pages(DeviceHeap& heap) { return impl(heap).device_pool_.pages(); }
  static HomePages& home(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).pages_; }
  static Chunks& chunks(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).chunks_; }
  static StitchedRows& rows(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).rows_; }
  static auto& rows_retired(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).retired_;
  }
  static auto& regions(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).regions_; }
  static auto& held(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).held_; }
  static Bytes& held_bytes(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).held_bytes_;
  }
  static Bytes& absent_bytes(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).absent_bytes_;
  }
  static std::size_t& absent_mappings(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).absent_mappings_;
  }
  static auto& strays(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS { return pages(heap).strays_; }
  static bool& alone(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).single_timeline_;
  }
  static bool& keeps_any(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).keeps_any_;
  }
  static std::uint64_t& requests(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).requests_;
  }
  static auto& peak_used(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return pages(heap).peak_used_;
  }
  // No vacant chunk has room for much any more.
  static void fill_row(DeviceHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    while (const Chunk* const vacant = chunks(heap).vacant()) chunks(heap).use(vacant->range());
  }
  static Budget& budget(DeviceHeap& heap) { return impl(heap).budget_; }
  static PageHeap::HeldPage held_page(PageId id, PhysicalHandle handle, Bytes size) {
    return {id, {handle, size}};
  }

  static auto& all(HomePages& pages) { return pages.pages_; }
  // Where something is mapped.
  static GranuleMap::Entry& granule(HomePages& pages, Address at) {
    return pages.granules_.slot(at);
  }
  static Bytes& total(HomePages& pages) { return pages.total_; }
  static Bytes& leased(HomePages& pages) { return pages.leased_; }
  static Bytes& used(HomePages& pages) { return pages.used_; }

  static ChunkBins& bins(Chunks& chunks) { return chunks.free_; }
  static auto& tables(Chunks& chunks) { return chunks.index_.tables_; }
  static Chunk*& vacant(Chunks& chunks) { return chunks.vacant_; }
  static std::size_t& count(ChunkBins& bins) { return bins.count_; }
  static auto& filled(ChunkBins& bins) { return bins.filled_; }
  static auto& first(ChunkBins& bins) { return bins.first_; }
  static std::uint64_t bin_of(Bytes size) { return ChunkBins::bin_of(size); }
  static FreedRange*& first(FreedRanges& ranges) { return ranges.first_; }
  static FreedRange*& last(FreedRanges& ranges) { return ranges.last_; }
  static std::uint32_t& size(FreedRanges& ranges) { return ranges.size_; }

  static std::size_t& mappings(StitchedRows& rows) { return rows.mappings_; }
  static auto& idle(StitchedRows& rows) { return rows.idle_; }
  static auto& vacant(StitchedRows& rows) { return rows.vacant_; }
  static auto& all(StitchedRows& rows) { return rows.rows_; }

  static RunIndex& runs(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.runs_; }
  // The record that `address` lies in, live or not.
  static Block& block(StreamHeap& heap, Address address) WEIR_NO_THREAD_ANALYSIS {
    Block* const run = heap.runs_.at_or_before(address);
    return run->slab == nullptr ? *run : *run->slab->tile_at(address);
  }
  static auto& kept(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.cached_count_; }
  static auto& cached(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.cached_; }
  static auto& caching_link(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.caching_link_; }
  static bool listed(StreamHeap& heap) { return caching_link(heap).listed; }
  static constexpr std::size_t kMostCached = StreamHeap::kMostCached;
  // The stream whose calls may take the fast paths.
  static auto& fast_stream(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.fast_stream_; }
  static auto& serves(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.serves_; }
  static Slabs& slabs(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.slabs_; }
  static HeapFold& fold(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.fold_; }
  static Stream& stream(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.stream_; }
  static TimelineId& timeline(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS { return heap.timeline_; }
  static auto& all(Slabs& slabs) { return slabs.slabs_; }
  static auto& lists(Slabs& slabs) { return slabs.lists_; }
  static auto& filled(Slabs& slabs) { return slabs.filled_; }

  // What the stream heap's blocks hold, as its history has it.
  static Bytes noted_as_held(StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    return heap.history_.held_;
  }
  static std::size_t segments(const PlacementCache& cache) { return cache.segments_.size(); }

  static Timelines& timelines(DeviceHeap& heap) { return impl(heap).device_pool_.timelines(); }
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
