// SPDX-License-Identifier: Apache-2.0
#include "core/heap/live_block.h"

#include <algorithm>
#include <utility>

namespace weir {

BlockInfo info_of(BlockRef block, const ServedStream& served) {
  return {block.begin(), block.size(),     block.requested(),
          served.id,     served.stream.id, served.pool.load(std::memory_order_relaxed)};
}

void LiveBlock::add(Fence fence) const {
  if (fence.timeline != served_.timeline) block_.uses().get().fences.join(fence);
  served_.observer.emit(served_.fold, Event{.kind = EventKind::fence,
                                            .stream = served_.stream.id,
                                            .other = served_.timelines->stream(fence.timeline).id,
                                            .address = block_.begin(),
                                            .sequence = fence.sequence});
}

Status LiveBlock::note_use(TimelineId user, Fenced fenced) const {
  if (fenced == Fenced::at_free) return add_user(user), Status{};
  Timelines& timelines = *served_.timelines;
  Result<Fence> fence = user == served_.timeline ? timelines.now(user) : timelines.record(user);
  if (!fence) return std::move(fence).error();
  add(*fence);
  return {};
}

void LiveBlock::add_user(TimelineId user) const {
  if (user == served_.timeline) return;
  std::vector<TimelineId>& users = block_.uses().get().users;
  if (std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);
}

std::vector<TimelineId> LiveBlock::users() const {
  return block_.uses() ? block_.uses()->users : std::vector<TimelineId>{};
}

Status LiveBlock::fence_each_user(Gone gone) const {
  BlockUsesPtr& uses = block_.uses();
  Timelines& timelines = *served_.timelines;
  for (const TimelineId user : uses->users) {
    Result<Fence> fence = timelines.record(user);
    const bool may_be_gone = !fence && fence.error().code() == ErrorCode::device;
    if (may_be_gone && gone == Gone::behind_all) {
      if (Result<Fence> all = timelines.record(timelines.of(Stream::all()))) fence = all;
    }
    if (may_be_gone && gone == Gone::after_all) continue;
    if (!fence) return std::move(fence).error();
    add(*fence);
  }
  uses->users.clear();
  if (uses->fences.empty()) uses.reset();
  return {};
}

}  // namespace weir
