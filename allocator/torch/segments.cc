// SPDX-License-Identifier: Apache-2.0
#include "torch/segments.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace weir::pytorch {
namespace {

using c10::CachingDeviceAllocator::SegmentInfo;

// The live blocks that have bytes in [begin, begin + bytes): from the first on, while they do.
template <class Visit>
void for_each_block_in(const HeapSnapshot& snapshot, Address begin, Bytes bytes, Visit&& visit) {
  auto at = std::lower_bound(snapshot.blocks.begin(), snapshot.blocks.end(), begin,
                             [](const BlockInfo& block, Address address) {
                               return block.address + block.bytes <= address;
                             });
  for (; at != snapshot.blocks.end() && at->address < begin + bytes; ++at) visit(*at);
}

// One page: its live bytes through each mapping, then what is left, at the first mapping.
void add_page(const HeapSnapshot& snapshot, const PageInfo& page, std::vector<Piece>& pieces) {
  const bool plain = page.memory == MemoryKind::plain;
  std::map<std::uint64_t, Bytes> used;  // by offset in the page
  for (const MappingInfo& mapping : page.mapped_at) {
    for_each_block_in(snapshot, mapping.address, page.bytes, [&](const BlockInfo& block) {
      const Address from = std::max(block.address, mapping.address);
      const Address to = std::min(block.address + block.bytes, mapping.address + page.bytes);
      pieces.push_back({from, to - from, mapping.heap, &block, page.page, plain});
      used[(from - mapping.address).count] = to - from;
    });
  }
  if (page.mapped_at.empty()) return;
  const MappingInfo& first = page.mapped_at.front();
  Bytes at;
  const auto free_up_to = [&](Bytes end) {
    if (at < end)
      pieces.push_back({first.address + at, end - at, first.heap, nullptr, page.page, plain});
  };
  for (const auto& [offset, bytes] : used) {
    free_up_to({offset});
    at = Bytes{offset} + bytes;
  }
  free_up_to(page.bytes);
}

}  // namespace

std::vector<Piece> pieces_of(const HeapSnapshot& snapshot) {
  std::vector<Piece> pieces;
  for (const PageInfo& page : snapshot.pages) add_page(snapshot, page, pieces);
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.address < b.address; });
  return pieces;
}

std::vector<SegmentInfo> segments_of(const HeapSnapshot& snapshot, const SegmentNames& names) {
  std::unordered_map<std::uint32_t, const HeapInfo*> heaps;
  for (const HeapInfo& heap : snapshot.heaps) heaps[heap.heap.value] = &heap;
  const auto pool_of = [&](HeapId id) {
    const auto heap = heaps.find(id.value);
    return heap == heaps.end() ? 0 : heap->second->pool;
  };
  std::vector<SegmentInfo> segments;
  const Piece* before = nullptr;
  const std::vector<Piece> pieces = pieces_of(snapshot);
  for (const Piece& piece : pieces) {
    const bool goes_on = before != nullptr && pool_of(before->heap) == pool_of(piece.heap) &&
                         before->address + before->bytes == piece.address &&
                         (!piece.plain || before->page == piece.page);
    if (!goes_on) {
      SegmentInfo& segment = segments.emplace_back();
      segment.device = static_cast<c10::DeviceIndex>(names.device);
      segment.address = piece.address.value;
      segment.is_large = true;
      segment.context_when_allocated = names.segment_context(piece.address);
      segment.is_expandable = !piece.plain;
      segment.registration_counter = static_cast<std::int32_t>(piece.page.value);
      if (const auto heap = heaps.find(piece.heap.value); heap != heaps.end()) {
        segment.stream = names.stream(heap->second->stream);
        segment.owner_private_pool_id = names.pool(heap->second->pool);
      }
    }
    SegmentInfo& segment = segments.back();
    segment.total_size += piece.bytes.count;
    const bool same_block = goes_on && before->block == piece.block;
    before = &piece;
    if (piece.block != nullptr) {
      segment.allocated_size += piece.bytes.count;
      segment.active_size += piece.bytes.count;
    }
    if (same_block) {
      segment.blocks.back().size += piece.bytes.count;
      continue;
    }
    c10::CachingDeviceAllocator::BlockInfo& block = segment.blocks.emplace_back();
    block.size = piece.bytes.count;
    if (piece.block == nullptr) continue;
    block.allocated = block.active = true;
    block.requested_size = piece.block->requested.count;
    block.context_when_allocated = names.context(piece.block->address.pointer());
    segment.requested_size += piece.block->requested.count;
  }
  return segments;
}

void add_segments_of(const SegmentPool& pool, c10::MempoolId_t id, const SegmentNames& names,
                     std::vector<SegmentInfo>& segments) {
  for (const SegmentPool::Segment& from : pool.segments()) {
    SegmentInfo& segment = segments.emplace_back();
    segment.device = static_cast<c10::DeviceIndex>(names.device);
    segment.address = from.address.value;
    segment.is_large = !from.is_small;
    segment.context_when_allocated = names.segment_context(from.address);
    segment.registration_counter = from.number;
    segment.stream = static_cast<cudaStream_t>(from.stream.handle);
    segment.owner_private_pool_id = id;
    segment.total_size = from.bytes.count;
    for (const auto& [address, each] : from.blocks) {
      c10::CachingDeviceAllocator::BlockInfo& block = segment.blocks.emplace_back();
      block.size = each.bytes.count;
      block.allocated = block.active = each.live;
      if (!each.live) continue;
      block.requested_size = each.requested.count;
      block.context_when_allocated = names.context(address.pointer());
      segment.requested_size += each.requested.count;
      segment.allocated_size += each.bytes.count;
      segment.active_size += each.bytes.count;
    }
  }
}

}  // namespace weir::pytorch
