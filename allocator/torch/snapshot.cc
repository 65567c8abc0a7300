// SPDX-License-Identifier: Apache-2.0
// torch.cuda.memory_snapshot(): memory as segments that blocks tile, and the history's entries.
//
// Weir maps a page at several addresses. Here each byte of physical memory is shown once: where a
// live block has it, at that block's address; else at the first address of its page. So the sizes
// of the segments add up to the memory that is held. A segment is what lies side by side and
// belongs to one pool (the device heap's own memory is one); of plain memory, and of a pool with a
// source, what the driver or the source gave in one piece. A segment may have blocks of several
// streams; its stream is that of the request that its first page was mapped for.
#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "torch/backend.h"
#include "torch/versions.h"

namespace weir::pytorch {
namespace {

using native::SegmentInfo;

struct Piece {
  Address address;
  Bytes bytes;
  HeapId heap;             // whose request the page was mapped for
  const BlockInfo* block;  // into the snapshot; null: free
  const PageInfo* page;    // that it lies in
  bool is_plain() const { return page->memory == MemoryKind::plain; }
};

// One page: its live bytes through each mapping, then what is left, at the first mapping.
void add_page(const HeapSnapshot& snapshot, const PageInfo& page, std::vector<Piece>& pieces) {
  std::map<std::uint64_t, Bytes> used;  // by offset in the page
  for (const MappingInfo& mapping : page.mapped_at) {
    auto block = std::lower_bound(snapshot.blocks.begin(), snapshot.blocks.end(), mapping.address,
                                  [](const BlockInfo& each, Address address) {
                                    return each.address + each.bytes <= address;
                                  });
    const Address end = mapping.address + page.bytes;
    for (; block != snapshot.blocks.end() && block->address < end; ++block) {
      const Address from = std::max(block->address, mapping.address);
      const Address to = std::min(block->address + block->bytes, end);
      pieces.push_back({from, to - from, mapping.heap, &*block, &page});
      used[(from - mapping.address).count] = to - from;
    }
  }
  if (page.mapped_at.empty()) return;
  const MappingInfo& first = page.mapped_at.front();
  Bytes at;
  const auto free_up_to = [&](Bytes end) {
    if (at < end) pieces.push_back({first.address + at, end - at, first.heap, nullptr, &page});
  };
  for (const auto& [offset, bytes] : used) {
    free_up_to({offset});
    at = Bytes{offset} + bytes;
  }
  free_up_to(page.bytes);
}

// Begins the segment's next block; without a live one there, a free one.
void begin_block(SegmentInfo& segment, const BlockInfo* live, History& history) {
  native::BlockInfo& block = segment.blocks.emplace_back();
  if (live == nullptr) return;
  block.allocated = block.active = true;
  block.requested_size = live->requested.count;
  block.context_when_allocated = history.context_of(live->address.pointer());
  segment.requested_size += live->requested.count;
}

// So many more bytes are of the segment's last block.
void extend_block(SegmentInfo& segment, Bytes bytes) {
  native::BlockInfo& block = segment.blocks.back();
  block.size += bytes.count;
  segment.total_size += bytes.count;
  if (!block.allocated) return;
  segment.allocated_size += bytes.count;
  segment.active_size += bytes.count;
}

}  // namespace

// The registration_counter of what was there first is lower: PyTorch's NCCL groups register
// segments in that order, which is the same on all ranks.
std::vector<SegmentInfo> DeviceMemory::segments(c10::MempoolId_t pool) {
  std::vector<SegmentInfo> segments;
  const auto begin_segment = [&](Address at, std::uint64_t number) -> SegmentInfo& {
    SegmentInfo& segment = segments.emplace_back();
    segment.device = static_cast<c10::DeviceIndex>(number_);
    segment.address = at.value;
    segment.registration_counter = static_cast<std::int32_t>(number);
    segment.context_when_allocated = history_.context_of_segment(at);
    segment.is_large = true;
    return segment;
  };
  const HeapSnapshot snapshot = heap_.snapshot();
  std::unordered_map<std::uint32_t, const HeapInfo*> heaps;
  for (const HeapInfo& heap : snapshot.heaps) heaps[heap.heap.value] = &heap;
  const auto pool_of = [&](HeapId id) {
    const auto heap = heaps.find(id.value);
    return heap == heaps.end() ? 0 : heap->second->pool;
  };
  // By address; the bytes of a block may come in several pieces, one behind the other.
  std::vector<Piece> pieces;
  for (const PageInfo& page : snapshot.pages) add_page(snapshot, page, pieces);
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.address < b.address; });
  const Piece* before = nullptr;
  for (const Piece& piece : pieces) {
    const bool goes_on = before != nullptr && pool_of(before->heap) == pool_of(piece.heap) &&
                         before->address + before->bytes == piece.address &&
                         (!piece.is_plain() || before->page == piece.page);
    if (!goes_on) {
      SegmentInfo& segment = begin_segment(piece.address, piece.page->page.value);
      segment.is_expandable = !piece.is_plain();
      if (const auto heap = heaps.find(piece.heap.value); heap != heaps.end()) {
        segment.stream = streams_.handle_of(heap->second->stream);
        segment.owner_private_pool_id = pools_.id_of(heap->second->pool);
      }
    }
    if (!goes_on || before->block != piece.block) {
      begin_block(segments.back(), piece.block, history_);
    }
    extend_block(segments.back(), piece.bytes);
    before = &piece;
  }
  for (const auto& [id, source] : pools_.sources()) {
    if (id == PoolId{0, 0}) continue;  // what is not cached
    for (const SegmentPool::Segment& from : source->segments()) {
      SegmentInfo& segment = begin_segment(from.address, static_cast<std::uint64_t>(from.number));
      segment.is_large = !from.is_small;
      segment.stream = static_cast<cudaStream_t>(from.stream.handle);
      segment.owner_private_pool_id = id;
      for (const auto& [address, block] : from.blocks) {
        const BlockInfo live{.address = address, .requested = block.requested};
        begin_block(segment, block.live ? &live : nullptr, history_);
        extend_block(segment, block.bytes);
      }
    }
  }
  if (pool != c10::MempoolId_t{0, 0}) {
    std::erase_if(segments, [&](const auto& each) { return each.owner_private_pool_id != pool; });
  }
  return segments;
}

SnapshotInfo Backend::snapshot(c10::MempoolId_t pool, bool include_traces) {
  SnapshotInfo all;
  const int devices = std::max(devices_.load(), 1);
  all.device_traces.resize(static_cast<std::size_t>(devices));
  for_each([&](DeviceMemory& memory) {
    Bytes active;
    for (native::SegmentInfo& segment : memory.segments(pool)) {
      active += Bytes{segment.active_size};
      all.segments.push_back(std::move(segment));
    }
    // As in PyTorch, a snapshot's own entry stands in the next one. Its size is what is active.
    std::vector<native::TraceEntry> entries = memory.history().entries();
    memory.history().note(native::TraceEntry::SNAPSHOT, {}, active, {}, pool);
    if (!include_traces) return;
    all.device_traces.at(static_cast<std::size_t>(memory.number())) = std::move(entries);
    for (native::AnnotationEntry& entry : memory.history().annotations()) {
      all.external_annotations.push_back(std::move(entry));
    }
  });
  const auto to_unix = clock_.makeConverter();
  const auto in_microseconds = [&](native::trace_time_& time) {
    time.t_ = to_unix(time.approx_t_) / 1000;
  };
  for (auto& trace : all.device_traces) {
    for (native::TraceEntry& entry : trace) in_microseconds(entry.time_);
  }
  for (native::AnnotationEntry& entry : all.external_annotations) in_microseconds(entry.time_);
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  using CudaConfig = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  auto& config = all.config_metadata;
  config.garbage_collection_threshold = Config::garbage_collection_threshold();
  config.max_split_size = Config::max_split_size();
  config.pinned_num_register_threads = CudaConfig::pinned_num_register_threads();
  // (CudaConfig's own says, outside of PyTorch's libraries, that the platform has none.)
  config.expandable_segments = Config::use_expandable_segments();
  config.release_lock_on_malloc = CudaConfig::release_lock_on_cudamalloc();
  config.pinned_use_host_register = CudaConfig::pinned_use_cuda_host_register();
  config.graph_capture_record_stream_reuse = CudaConfig::graph_capture_record_stream_reuse();
  config.last_allocator_settings = c10::CachingAllocator::getAllocatorSettings();
  config.roundup_power2_divisions = Config::roundup_power2_divisions();
#if WEIR_TORCH_SINCE(13)
  config.max_round_threshold = Config::pinned_max_round_threshold();
  config.max_cached_size = Config::pinned_max_cached_size();
#endif
  return all;
}

}  // namespace weir::pytorch
