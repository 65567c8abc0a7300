// SPDX-License-Identifier: Apache-2.0
// What a stream heap says of itself to those who record it, or look at it as a whole.
#include "core/heap/stream_heap.h"

namespace weir {

void StreamHeap::announce(std::uint64_t pool) {
  const MutexLock lock(mutex_);
  observer_.emit(fold_, Event{.kind = EventKind::heap_open,
                              .plain = memory() == MemoryKind::plain,
                              .stream = stream_.id,
                              .pool = pool});
}

// Once nobody records any more, nothing keeps the times of allocation up to date.
void StreamHeap::set_recording(bool recording) {
  recording_ = recording;
  set_stream(Stream{.id = serves_});
  if (recording) return;
  for_each_block([](const Block& block) { const_cast<Block&>(block).allocated_at = 0; });
}

void StreamHeap::list_blocks(std::vector<BlockInfo>& blocks) const {
  for_each_block([&](const Block& block) WEIR_REQUIRES(mutex_) {
    if (block.state != Block::State::live) return;
    BlockInfo& listed = blocks.emplace_back(info(block));
    if (block.allocated_at != 0) {
      listed.allocated_at = block.time_allocated();
    }
    if (block.uses == nullptr) return;
    for (const Fence fence : block.uses->fences) {
      listed.waits_for.push_back(timelines_.stream(fence.timeline).id);
    }
    for (const TimelineId user : block.uses->users) {
      listed.waits_for.push_back(timelines_.stream(user).id);
    }
  });
}

Block* StreamHeap::block_around(Address address) const {
  Block* block = runs_.at_or_before(address);
  if (block == nullptr || address >= block->end()) return nullptr;
  if (block->slab != nullptr) block = block->slab->tile_at(address);
  return address < block->end() && block->state == Block::State::live ? block : nullptr;
}

std::optional<BlockInfo> StreamHeap::find(Address address) const {
  const MutexLock lock(mutex_);
  const Block* const block = block_around(address);
  if (block == nullptr) return std::nullopt;
  return info(*block);
}

std::optional<Stream> StreamHeap::stream_of(Address block) const {
  const MutexLock lock(mutex_);
  if (live_at(block) == nullptr) return std::nullopt;
  return stream_;
}

std::optional<std::uint32_t> StreamHeap::epoch_of(Address block) const {
  const MutexLock lock(mutex_);
  const Block* const live = live_at(block);
  return live == nullptr ? std::nullopt : std::optional(live->epoch);
}

BlockInfo StreamHeap::info(const Block& block) const {
  return {block.begin, block.size, block.requested, id_, stream_.id};
}

}  // namespace weir
