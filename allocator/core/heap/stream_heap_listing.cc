// SPDX-License-Identifier: Apache-2.0
// What a stream heap says of itself to those who record it, or look at it as a whole.
#include <algorithm>

#include "core/heap/stream_heap.h"

namespace weir {

void StreamHeap::announce() {
  const MutexLock lock(mutex_);
  observer_.emit(fold_, Event{.kind = EventKind::heap_open,
                              .plain = memory() == MemoryKind::plain,
                              .stream = stream_.id,
                              .pool = pool()});
}

// Once nobody records any more, nothing keeps the times of allocation up to date.
void StreamHeap::set_recording(bool recording) {
  recording_ = recording;
  set_stream(Stream{.id = serves_});
  if (recording) return;
  for_each_block([](BlockRef block) { block.allocated_at() = {}; });
}

std::vector<Tile*> StreamHeap::runs_by_address() const {
  std::vector<Tile*> runs;
  for (Tile* run = runs_; run != nullptr; run = run->next) runs.push_back(run);
  std::sort(runs.begin(), runs.end(),
            [](const Tile* a, const Tile* b) { return a->begin < b->begin; });
  return runs;
}

void StreamHeap::list_blocks(std::vector<BlockInfo>& blocks) const {
  for_each_block([&](BlockRef block) WEIR_REQUIRES(mutex_) {
    if (block.state() != BlockState::live) return;
    BlockInfo& listed = blocks.emplace_back(info(block));
    if (block.allocated_at().is_recorded()) listed.allocated_at = block.allocated_at().get();
    if (!block.uses()) return;
    for (const Fence fence : block.uses()->fences) {
      listed.waits_for.push_back(timelines_->stream(fence.timeline).id);
    }
    for (const TimelineId user : block.uses()->users) {
      listed.waits_for.push_back(timelines_->stream(user).id);
    }
  });
}

BlockRef StreamHeap::block_around(Address address) const {
  Tile* const run = run_near(address);
  if (run == nullptr || address < run->begin || address >= run->end()) return {};
  const BlockRef block =
      run->slab == nullptr ? BlockRef(run) : BlockRef(run->slab->tile_at(address));
  return address < block.end() && block.state() == BlockState::live ? block : BlockRef();
}

std::optional<BlockInfo> StreamHeap::find(Address address) const {
  const MutexLock lock(mutex_);
  const BlockRef block = block_around(address);
  if (!block) return std::nullopt;
  return info(block);
}

std::optional<Stream> StreamHeap::stream_of(Address block) const {
  const MutexLock lock(mutex_);
  if (!live_at(block)) return std::nullopt;
  return stream_;
}

std::optional<std::uint32_t> StreamHeap::epoch_of(Address block) const {
  const MutexLock lock(mutex_);
  const BlockRef live = live_at(block);
  return live ? std::optional(live.epoch()) : std::nullopt;
}

BlockInfo StreamHeap::info(BlockRef block) const {
  return {block.begin(), block.size(), block.requested(), id_, stream_.id, pool()};
}

}  // namespace weir
