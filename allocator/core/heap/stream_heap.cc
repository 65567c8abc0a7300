// SPDX-License-Identifier: Apache-2.0
#include "core/heap/stream_heap.h"

#include <algorithm>
#include <utility>

namespace weir {

StreamHeap::StreamHeap(HeapId id, std::uint64_t stream, MemoryKind memory, Observer& observer)
    : memory_(memory),
      recording_(observer.recording()),
      held_(*this, mutex_, served_),
      served_(id, stream, memory, observer, &mutex_) {}

// Fast paths are the device heap's own (pool 0).
void StreamHeap::serve(std::uint64_t stream) {
  serves_ = stream;
  const bool fast_paths = serves_ != kNoStream && fast_paths_ && !recording_ && pool() == 0 &&
                          !served_.has_waits() && !served_.pages->is_asleep();
  fast_stream_ = fast_paths ? serves_ : kNoStream;
}

void StreamHeap::allow_fast_paths(bool allowed) {
  const MutexLock lock(mutex_);
  fast_paths_ = allowed;
  serve(serves_);
}

[[gnu::always_inline]] inline Address StreamHeap::give_out(BlockRef block, Bytes requested,
                                                           std::uint64_t launch_of) {
  served_.fold.set_stream(served_.stream.id);  // news after an adoption
  block.set_epoch(served_.epoch);
  block.visit([&](auto& record) WEIR_NO_THREAD_ANALYSIS {
    mark_live(record, requested);
    layout_.add(item_of(record));
  });
  served_.fold.allocate(block.size(), requested);
  served_.fold.publish();
  if (recording_) {
    const Nanoseconds now = record(EventKind::allocate, block, launch_of);
    block.allocated_at() = std::max(now, Nanoseconds{1});  // (a simulated clock begins at 0)
  }
  return block.begin();
}

Address StreamHeap::allocate(Bytes requested, std::uint64_t stream, Status& status,
                             PageHeap::Create create) {
  const MutexLock lock(mutex_);
  return stream == serves_ ? allocate_locked(requested, status, create) : Address{};
}

Address StreamHeap::allocate_after_miss(Bytes requested, Status& status, PageHeap::Create create) {
  const Address at = allocate_locked(requested, status, create);
  mutex_.unlock();
  return at;
}

Address StreamHeap::allocate_locked(Bytes requested, Status& status, PageHeap::Create create) {
  if (served_.pages->is_asleep()) [[unlikely]] {
    status = PageHeap::asleep_error();
    return {};
  }
  const bool waited = served_.has_waits();
  const bool captured = waited && served_.is_captured();
  const BlockRef block = held_.allocate(requested, captured, create, status);
  if (served_.has_waits() != waited) [[unlikely]]
    serve(serves_);  // the fast paths do not ask whether the stream is captured
  return block ? give_out(block, requested) : Address{};
}

Status StreamHeap::allocate_at(const PlacedBlock& wanted, std::uint64_t launch_of) {
  const MutexLock lock(mutex_);
  if (served_.pages->is_asleep()) return PageHeap::asleep_error();
  Status status;
  const BlockRef block = held_.allocate_at(wanted, launch_of != 0, status);
  if (!status) return status;
  if (!block) return Error(ErrorCode::invalid_argument, "the memory there is in use");
  (void)give_out(block, wanted.requested, launch_of);
  return {};
}

LiveBlock StreamHeap::live(Address block, const Timelines* timelines) {
  mutex_.lock();
  const bool is_of = timelines == nullptr || timelines == served_.timelines;
  return {mutex_, served_, is_of ? held_.blocks().live_at(block) : BlockRef()};
}

LiveBlock StreamHeap::live_around(Address address, const Timelines* timelines) {
  mutex_.lock();
  const bool is_of = timelines == nullptr || timelines == served_.timelines;
  return {mutex_, served_, is_of ? held_.blocks().live_around(address) : BlockRef()};
}

Result<bool> StreamHeap::deallocate(Address address, Gone gone) WEIR_NO_THREAD_ANALYSIS {
  const LiveBlock block = live(address);
  if (!block) return false;
  if (Status status = block.fence_users(gone); !status) return std::move(status).error();
  free(block.ref());
  return true;
}

void StreamHeap::give_back(Address address) WEIR_NO_THREAD_ANALYSIS {
  if (const LiveBlock block = live(address)) free(block.ref(), /*may_cache=*/false);
}

void StreamHeap::free(BlockRef block, bool may_cache) {
  served_.fold.lag();
  if (recording_) record(EventKind::deallocate, block);
  held_.free(block, may_cache && serves_ != kNoStream && !served_.pages->over_limit() &&
                        !served_.pages->is_asleep());
}

bool StreamHeap::free_and_unlock(BlockRef block) {
  free(block);
  mutex_.unlock();
  return true;
}

bool StreamHeap::give_back_cached() {
  const MutexLock lock(mutex_);
  serve(serves_);
  return held_.give_back_cached();
}

void StreamHeap::close() {
  const MutexLock lock(mutex_);
  held_.give_back_cached();
  serve(kNoStream);
}

bool StreamHeap::adopt(const PoolParts& parts, Stream stream) {
  const MutexLock lock(mutex_);
  if (serves_ != kNoStream || served_.fold.statistics().live_blocks.current > 0) return false;
  served_.pages = parts.pages;
  served_.timelines = parts.timelines;
  served_.pool.store(parts.id, std::memory_order_release);
  held_.join_pool(parts.caching_heaps);
  served_.stream = stream;
  layout_.begin(parts.streams);
  placed_before_ = served_.fold.blocks_in_all();
  serve(stream.id);
  served_.timeline = parts.timelines->of(stream);
  served_.observer.emit(served_.fold, Event{.kind = EventKind::heap_open,
                                            .plain = memory_ == MemoryKind::plain,
                                            .stream = stream.id,
                                            .pool = parts.id});
  return true;
}

void StreamHeap::leave_pool() {
  const MutexLock lock(mutex_);
  serve(kNoStream);
  served_.pages = nullptr;
  served_.timelines = nullptr;
  served_.pool.store(0, std::memory_order_release);
  served_.timeline = {};
  served_.epoch = 0;
  served_.forget_waits();
  held_.join_pool(nullptr);
}

void StreamHeap::move_to(Stream as, std::uint32_t epoch) {
  const MutexLock lock(mutex_);
  served_.epoch = epoch;
  if (serves_ == as.id) return;
  held_.give_back_cached();
  serves_ = as.id;
  served_.timeline = served_.timelines->of(as);
}

Nanoseconds StreamHeap::record(EventKind kind, BlockRef block, std::uint64_t launch_of) {
  return served_.observer.record(served_.fold, Event{.kind = kind,
                                                     .stream = served_.stream.id,
                                                     .address = block.begin(),
                                                     .bytes = block.size(),
                                                     .requested = block.requested(),
                                                     .pool = launch_of});
}

// Once nobody records any more, nothing keeps the times of allocation up to date.
void StreamHeap::set_recording(bool recording) {
  recording_ = recording;
  serve(serves_);
  if (recording) return;
  held_.blocks().for_each([](BlockRef block) { block.allocated_at() = {}; });
}

void StreamHeap::list_blocks(std::vector<BlockInfo>& blocks) const {
  const auto stream = [&](TimelineId timeline) WEIR_NO_THREAD_ANALYSIS {
    return served_.timelines->stream(timeline).id;
  };
  held_.blocks().for_each([&](BlockRef block) WEIR_NO_THREAD_ANALYSIS {
    if (block.state() != BlockState::live) return;
    BlockInfo& listed = blocks.emplace_back(info_of(block, served_));
    if (block.allocated_at() != Nanoseconds{}) listed.allocated_at = block.allocated_at();
    if (!block.uses()) return;
    for (const Fence fence : block.uses()->fences) {
      listed.waits_for.push_back(stream(fence.timeline));
    }
    for (const TimelineId user : block.uses()->users) listed.waits_for.push_back(stream(user));
  });
}

void StreamHeap::list_placed(std::vector<PlacedBlock>& blocks) const {
  const MutexLock lock(mutex_);
  held_.blocks().for_each([&](BlockRef block) WEIR_NO_THREAD_ANALYSIS {
    if (block.state() != BlockState::live) return;
    const Range run = block.is_small() ? block.tile()->slab->range() : block.range();
    blocks.push_back(
        {block.begin(), block.size(), block.requested(), served_.stream, run.begin, run.size});
  });
}

std::vector<std::string> StreamHeap::validate(std::vector<Range>& runs) const {
  Broken broken{held_.blocks().validate(held_.cache(), runs)};
  // In a pool it may be the captured one of the same stream.
  const std::uint64_t timeline = served_.timelines == nullptr
                                     ? served_.stream.id
                                     : served_.timelines->stream(served_.timeline).id;
  broken.note_if((pool() == 0 && timeline != served_.stream.id) ||
                     (serves_ != timeline && serves_ != kNoStream),
                 "its timeline is another stream's");
  Bytes bytes, requested;
  std::uint64_t live = 0;
  held_.blocks().for_each([&](BlockRef block) {
    if (block.state() != BlockState::live) return;
    ++live;
    bytes += block.size();
    requested += block.requested();
  });
  const HeapStatistics statistics = served_.fold.statistics();
  broken.note_if(statistics.live_blocks.current != live ||
                     statistics.live_bytes.current != bytes.count ||
                     statistics.requested_bytes.current != requested.count,
                 "its statistics differ from a recount of its blocks");
  for (std::string& what : broken.rules) what = "heap " + std::to_string(id().value) + ": " + what;
  return broken.rules;
}

}  // namespace weir
