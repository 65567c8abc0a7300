// What a stream heap says of itself to those who record it, or look at it as a whole.
#include "core/stream_heap.h"

namespace weir {

void StreamHeap::announce(std::uint64_t pool) {
  const MutexLock lock(mutex_);
  observer_.emit(fold_, Event{.kind = EventKind::heap_open, .stream = stream_.id, .pool = pool});
}

// Once nobody records any more, nothing keeps the times of allocation up to date.
void StreamHeap::set_recording(bool recording) {
  recording_ = recording;
  serve(Stream{.id = serves_});
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

}  // namespace weir
