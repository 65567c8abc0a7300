// SPDX-License-Identifier: Apache-2.0
// A device heap's memory as PyTorch's snapshots show it: segments, tiled by blocks.
//
// Weir maps a page at several addresses. Here each byte of physical memory is shown once: where a
// live block has it, at that block's address; else at the first address of its page. So the sizes
// of the segments add up to the memory that is held, and the blocks of a segment tile it. A segment
// is what lies side by side and belongs to one pool (the device heap's own memory is one); of plain
// memory, what the driver gave in one piece. It may have blocks of several streams; its stream is
// that of the request that its first page was mapped for.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>
#include <vector>

#include "torch/segment_pool.h"
#include "weir/device_heap.h"

namespace weir::pytorch {

struct Piece {
  Address address;
  Bytes bytes;
  HeapId heap;                       // whose request the page was mapped for
  const BlockInfo* block = nullptr;  // into the snapshot; null: free
  PageId page;                       // that it lies in
  bool plain = false;                // the page is a segment of plain memory
};

// By address; the bytes of a block may come in several pieces, one behind the other.
std::vector<Piece> pieces_of(const HeapSnapshot& snapshot);

struct SegmentNames {
  int device = 0;
  std::function<void*(std::uint64_t)> stream;           // handle of a Stream::id
  std::function<c10::MempoolId_t(std::uint64_t)> pool;  // of a GraphPool::id()
  std::function<std::shared_ptr<c10::GatheredContext>(const void*)> context;  // of a live block
  // Of what a segment around that address was made for.
  std::function<std::shared_ptr<c10::GatheredContext>(Address)> segment_context;
};
// Each has a registration_counter: what was there first has the lower one, by which PyTorch's NCCL
// groups register them in the same order on all ranks.
std::vector<c10::CachingDeviceAllocator::SegmentInfo> segments_of(const HeapSnapshot& snapshot,
                                                                  const SegmentNames& names);

// Those of a pool with a source of its own, as the source gave them.
void add_segments_of(const SegmentPool& pool, c10::MempoolId_t id, const SegmentNames& names,
                     std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments);

}  // namespace weir::pytorch
