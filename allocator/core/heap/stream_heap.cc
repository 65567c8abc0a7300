// SPDX-License-Identifier: Apache-2.0
#include "core/heap/stream_heap.h"

#include <algorithm>
#include <utility>

#include "core/base/mechanism.h"

namespace weir {
namespace {

// While a stream was made to wait, so many requests ask only whether it is captured.
constexpr std::uint32_t kAskedBetween = 64;
// After so many heaps with cached blocks, other threads may use the page heap.
constexpr int kHeapsAtATime = 64;

}  // namespace

StreamHeap::StreamHeap(HeapId id, std::uint64_t stream, MemoryKind memory, Observer& observer)
    : id_(id),
      memory_(memory),
      observer_(observer),
      recording_(observer.recording()),
      fold_(observer.fold(), id, stream, memory == MemoryKind::plain, &mutex_) {}

// Of no pool, it serves no stream.
void StreamHeap::set_stream(Stream stream) {
  serves_ = stream.id;
  const bool fast_paths = serves_ != kNoStream && fast_paths_ && !recording_ && pool() == 0 &&
                          waited_for_.empty() && !pages_->is_asleep();
  fast_stream_ = fast_paths ? serves_ : kNoStream;
}

void StreamHeap::allow_fast_paths(bool allowed) {
  const MutexLock lock(mutex_);
  fast_paths_ = allowed;
  set_stream(Stream{.id = serves_});
}

Owner StreamHeap::owner() { return {this, id_, timeline_, fold_}; }

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
  if (pages_->is_asleep()) [[unlikely]] {
    status = PageHeap::asleep_error();
    return {};
  }
  const Bytes bytes = round_up(requested, kGrain);
  create_ = create;
  const bool captured = !waited_for_.empty() && is_captured_after_a_wait();
  BlockRef block = cached_count_ > 0 && !captured ? find_cached(bytes) : BlockRef();
  const auto suits = [&](const auto& record) WEIR_REQUIRES(mutex_) { return this->suits(record); };
  if (block && block.visit(suits)) {
    status = wait_and_take(block);
    if (!status) block = {};
  } else {
    block = {};
  }
  // Where a capture is in the way of the wait there is other memory.
  if (!block && (status || is_in_the_way(status))) {
    status = {};
    if (bytes <= Slabs::kLargest && !captured) {
      give_back_cached_locked();
      block = BlockRef(allocate_small(bytes, status));
    } else {
      // The page heap knows what such a capture may have; slabs do not.
      block = BlockRef(allocate_run(std::max(bytes, kAlone), /*for_slab=*/false, status));
    }
  }
  if (!block) [[unlikely]]
    return {};
  fold_.set_stream(stream_.id);  // news after an adoption
  block.set_epoch(epoch_);
  give_out(block, requested);
  fold_.publish();
  if (recording_) record(EventKind::allocate, block);
  return block.begin();
}

void StreamHeap::note_waited(const FenceSet& fences) {
  if (fences.empty() || timelines_->trust() == Trust::told) return;
  waited_for_.join(fences);
  fast_stream_ = kNoStream;
}

// It is seldom asked whether the waits are over: that costs more than the question itself.
bool StreamHeap::is_captured_after_a_wait() {
  if (!timelines_->not_captured(timeline_)) return true;
  if (++asked_meanwhile_ % kAskedBetween != 0) return false;
  const Result<bool> over = timelines_->looks_complete(waited_for_);
  if (over && *over) {
    waited_for_.clear();
    set_stream(Stream{.id = serves_});
  }
  return false;
}

Status StreamHeap::wait_and_take(BlockRef block) {
  if (Status status = wait_for(block.uses()); !status) {
    // (It stays cached.) It is held no more; that it was asked for stays noted, which only
    // matters as a hint.
    if (!block.is_small() || block.tile()->slab->live == 0_B) {
      history_.subtract(block.is_small() ? Slab::kSize : block.size());
    }
    return status;
  }
  take_from_cache(block);
  return {};
}

// In a program of one thread the pages are seen as if every freed block had gone back at once. A
// heap that another thread is busy with keeps its blocks, as that thread wants them the next
// moment, until there is need of new memory: threads that took each other's blocks would all miss
// for ever.
Tile* StreamHeap::find_run(Bytes bytes, RequestHistory::Name name, Status& status) {
  const QueuedLock lock(pages_->mutex());
  give_back_cached_under_page_lock();
  const auto create = have_others_give_back(Others::at_rest) ? create_ : PageHeap::Create::not_yet;
  const Owner owner = this->owner();
  Request request{.owner = owner, .size = bytes, .keys = history_.keys(name), .create = create};
  Tile* run = pages_->allocate(request, served_since_asked());
  if (create != create_ && request.failed_with(ErrorCode::out_of_memory)) {
    have_others_give_back(Others::all);
    request.create = create_;
    request.status = {};
    run = pages_->allocate(request, {});
  }
  note_waited(request.waited);
  if (run == nullptr) status = std::move(request.status);
  return run;
}

// Slabs are noted as of one size, whichever they have.
Tile* StreamHeap::allocate_run(Bytes bytes, bool for_slab, Status& status) {
  const Bytes noted = for_slab ? Slab::kSize : bytes;
  const RequestHistory::Name name = history_.note(noted);
  Tile* const run = find_run(bytes, name, status);
  if (run == nullptr) [[unlikely]] {
    history_.subtract(noted);
    return nullptr;
  }
  return add_run(run, name, for_slab);
}

Tile* StreamHeap::add_run(Tile* run, RequestHistory::Name name, bool for_slab) {
  // The page heap has counted this one; a slab is no request of the program's.
  if (!for_slab) {
    ++asked_.requests;
    asked_.bytes += run->size;
  }
  run->name = name;
  run->allocated_at = {};
  run->previous = nullptr;
  run->next = runs_;
  if (runs_ != nullptr) runs_->previous = run;
  return runs_ = run;
}

PageHeap::Served StreamHeap::served_since_asked() {
  const PageHeap::Served all{fold_.blocks_in_all(), Bytes{fold_.bytes_in_all()}, history_.noted()};
  const PageHeap::Served before = std::exchange(asked_, all);
  return {all.requests - before.requests, all.bytes - before.bytes, all.runs - before.runs};
}

SmallTile* StreamHeap::allocate_small(Bytes bytes, Status& status) {
  SmallTile* stretch = slabs_.find(bytes);
  if (stretch == nullptr) [[unlikely]]
    stretch = add_slab(status);
  if (stretch == nullptr) return nullptr;
  status = wait_for(stretch->uses);
  if (is_in_the_way(status)) {
    status = {};
    stretch = find_settled(bytes, status);
  }
  return status ? slabs_.take(stretch, bytes) : nullptr;
}

SmallTile* StreamHeap::add_slab(Status& status) {
  Tile* run = allocate_run(Slab::kSize, /*for_slab=*/true, status);
  // Free memory may lie in pieces that are all too small.
  if (run == nullptr && create_ != PageHeap::Create::not_yet &&
      status.error().code() == ErrorCode::out_of_memory) {
    Status smaller;
    run = allocate_run(Slab::kLeast, /*for_slab=*/true, smaller);
    if (run != nullptr) status = {};
  }
  return run == nullptr ? nullptr : &enter_slab(*run);
}

SmallTile& StreamHeap::enter_slab(Tile& run) {
  run.slab = &slabs_.add(&run);
  return *run.slab->first[0];
}

// One that carries nothing any more; of a new slab, if there is none.
SmallTile* StreamHeap::find_settled(Bytes bytes, Status& status) {
  const auto settled = [&](const SmallTile& stretch) WEIR_REQUIRES(mutex_) {
    return !stretch.uses || is_settled(stretch.uses->fences);
  };
  SmallTile* const stretch = slabs_.find_if(bytes, settled);
  if (stretch == nullptr) return add_slab(status);
  stretch->uses.reset();
  return stretch;
}

bool StreamHeap::is_settled(const FenceSet& fences) {
  return timelines_->satisfied(fences, timeline_) || timelines_->is_seen_complete(fences);
}

Status StreamHeap::wait(const FenceSet& fences) {
  FenceSet made;
  Status status = timelines_->wait(timeline_, fences, &fold_, &made);
  note_waited(made);
  return status;
}

Status StreamHeap::wait_for(BlockUsesPtr& uses) {
  if (!uses) [[likely]]
    return {};
  if (pages_->makes_waits()) {
    if (Status status = wait(uses->fences); !status) return status;
  } else if (!is_settled(uses->fences)) {
    return Error(ErrorCode::capture, "no request waits");
  }
  uses.reset();
  return {};
}

bool StreamHeap::has(Address block) const {
  const MutexLock lock(mutex_);
  return static_cast<bool>(live_at(block));
}

void StreamHeap::add_fence(BlockRef block, Fence fence) {
  if (fence.timeline != timeline_) block.uses().get().fences.join(fence);
  observer_.emit(fold_, Event{.kind = EventKind::fence,
                              .stream = stream_.id,
                              .other = timelines_->stream(fence.timeline).id,
                              .address = block.begin(),
                              .sequence = fence.sequence});
}

bool StreamHeap::fence(Address address, const Timelines& timelines, Fence fence) {
  const MutexLock lock(mutex_);
  const BlockRef block = live_at(address, timelines);
  if (!block) return false;
  add_fence(block, fence);
  return true;
}

Address StreamHeap::fence_around(Address address, const Timelines& timelines, Fence fence,
                                 Address fenced) {
  const MutexLock lock(mutex_);
  const BlockRef block = &timelines == timelines_ ? block_around(address) : BlockRef();
  if (!block) return {};
  if (block.begin() != fenced) add_fence(block, fence);
  return block.begin();
}

Result<bool> StreamHeap::fence(Address address, const Timelines& timelines, TimelineId user) {
  const MutexLock lock(mutex_);
  const BlockRef block = live_at(address, timelines);
  if (!block) return false;
  Result<Fence> fence = user == timeline_ ? timelines_->now(user) : timelines_->record(user);
  if (!fence) return std::move(fence).error();
  add_fence(block, *fence);
  return true;
}

bool StreamHeap::record_stream(Address address, const Timelines& timelines, TimelineId user) {
  const MutexLock lock(mutex_);
  const BlockRef block = live_at(address, timelines);
  if (!block) return false;
  if (user == timeline_) return true;
  std::vector<TimelineId>& users = block.uses().get().users;
  if (std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);
  return true;
}

std::vector<TimelineId> StreamHeap::users_of(Address address) const {
  const MutexLock lock(mutex_);
  const BlockRef block = live_at(address);
  return !block || !block.uses() ? std::vector<TimelineId>{} : block.uses()->users;
}

// Takes the fences that record_stream asked for.
Status StreamHeap::fence_users(BlockRef block, Gone gone) {
  BlockUsesPtr& uses = block.uses();
  for (const TimelineId user : uses->users) {
    Result<Fence> fence = timelines_->record(user);
    const bool may_be_gone = !fence && fence.error().code() == ErrorCode::device;
    if (may_be_gone && gone == Gone::behind_all) {
      if (Result<Fence> all = timelines_->record(timelines_->of(Stream::all()))) fence = all;
    }
    if (may_be_gone && gone == Gone::after_all) continue;
    if (!fence) return std::move(fence).error();
    add_fence(block, *fence);
  }
  uses->users.clear();
  if (uses->fences.empty()) uses.reset();
  return {};
}

Result<bool> StreamHeap::deallocate(Address address, Gone gone) {
  const MutexLock lock(mutex_);
  const BlockRef block = live_at(address);
  if (!block) return false;
  if (block.uses()) {
    if (Status status = fence_users(block, gone); !status) return std::move(status).error();
  }
  free(block);
  return true;
}

void StreamHeap::free(BlockRef block) {
  fold_.lag();
  if (recording_) record(EventKind::deallocate, block);
  block.visit([&](auto& record) WEIR_REQUIRES(mutex_) { take_back(record); });
  // Whether a large block may be used again while its fences still run is the page heap's policy.
  if (!may_cache() || without(Mechanism::cached_blocks) ||
      (block.uses() && !block.is_small() && !pages_->reuses_at_once())) {
    return give_back(block);
  }
  if (cached_count_ == kMostCached) {
    const BlockRef oldest = cached_[0].block;
    take_from_cache(oldest);
    give_back(oldest);
  }
  put_in_cache(block);
}

bool StreamHeap::free_and_unlock(BlockRef block) {
  free(block);
  mutex_.unlock();
  return true;
}

void StreamHeap::put_in_cache(BlockRef block) {
  block.state() = BlockState::cached;
  cached_[cached_count_++] = {block.size(), block};
  if (caching_link_.listed) return;
  caching_link_.listed = true;
  caching_link_.by = std::this_thread::get_id();
  caching_heaps_->push(*this, caching_link_);
}

Tile* StreamHeap::run_of_last(BlockRef block) {
  return block.is_small() ? slabs_.free(block.tile()) : block.run();
}

void StreamHeap::give_back(BlockRef block) {
  if (Tile* const run = run_of_last(block)) {
    const QueuedLock lock(pages_->mutex());
    give_back_run(run);
  }
}

void StreamHeap::give_back_cached_under_page_lock() {
  while (cached_count_ > 0) {
    if (Tile* const run = run_of_last(cached_[--cached_count_].block)) give_back_run(run);
  }
}

void StreamHeap::give_back_run(Tile* run) {
  if (run->next != nullptr) run->next->previous = run->previous;
  (run->previous == nullptr ? runs_ : run->previous->next) = run->next;
  pages_->free(owner(), run);
}

// A heap whose lock is taken is at work on just these blocks: it is left alone, and stays listed.
bool StreamHeap::have_others_give_back(Others whose) WEIR_NO_THREAD_ANALYSIS {
  const auto at_rest = [](StreamHeap& heap) WEIR_NO_THREAD_ANALYSIS {
    const std::uint64_t served = heap.fold_.blocks_in_all();
    return heap.caching_link_.by == std::this_thread::get_id() ||
           std::exchange(heap.caching_link_.served, served) == served;
  };
  bool all = true;
  int looked_at = 0;
  for (StreamHeap* heap = without(Mechanism::others_cached) ? nullptr : caching_heaps_->take();
       heap != nullptr;) {
    StreamHeap* const next = heap->caching_link_.next;
    if (++looked_at % kHeapsAtATime == 0) {
      pages_->mutex().unlock();
      pages_->mutex().lock();
    }
    if (heap == this) {
      caching_heaps_->push(*heap, heap->caching_link_);
    } else if (!heap->mutex_.looks_free() || !heap->mutex_.try_lock()) {
      all = false;
      caching_heaps_->push(*heap, heap->caching_link_);
    } else if (whose == Others::at_rest && !at_rest(*heap)) {
      all = false;
      caching_heaps_->push(*heap, heap->caching_link_);
      heap->mutex_.unlock();
    } else {
      pages_->count(heap->served_since_asked());
      heap->give_back_cached_under_page_lock();
      heap->caching_link_.listed = false;
      heap->mutex_.unlock();
    }
    heap = next;
  }
  return all;
}

void StreamHeap::note_asleep() {
  const MutexLock lock(mutex_);
  give_back_cached_locked();
  set_stream(Stream{.id = serves_});
}

bool StreamHeap::give_back_cached() {
  const MutexLock lock(mutex_);
  return give_back_cached_locked();
}

void StreamHeap::close() {
  const MutexLock lock(mutex_);
  give_back_cached_locked();
  set_stream(Stream{.id = kNoStream});
}

bool StreamHeap::adopt(const PoolParts& parts, Stream stream) {
  const MutexLock lock(mutex_);
  if (serves_ != kNoStream || fold_.statistics().live_blocks.current > 0) return false;
  join_pool(parts);
  stream_ = stream;
  set_stream(stream);
  timeline_ = timelines_->of(stream);
  return true;
}

void StreamHeap::join_pool(const PoolParts& parts) {
  pages_ = parts.pages;
  timelines_ = parts.timelines;
  caching_heaps_ = parts.caching_heaps;
  pool_.store(parts.id, std::memory_order_release);
}

void StreamHeap::leave_pool() {
  const MutexLock lock(mutex_);
  set_stream(Stream{.id = kNoStream});
  join_pool({});
  caching_link_.listed = false;  // the list goes with the pool
  waited_for_.clear();
  history_ = {};
  asked_ = {fold_.blocks_in_all(), Bytes{fold_.bytes_in_all()}, 0};
  timeline_ = {};
  epoch_ = 0;
  slabs_ = {};
}

void StreamHeap::move_to(Stream as, std::uint32_t epoch) {
  const MutexLock lock(mutex_);
  epoch_ = epoch;
  if (serves_ == as.id) return;
  give_back_cached_locked();
  serves_ = as.id;
  timeline_ = timelines_->of(as);
}

void StreamHeap::give_back_all(CachingHeaps<StreamHeap>& caching_heaps) WEIR_NO_THREAD_ANALYSIS {
  for (StreamHeap* heap = caching_heaps.take(); heap != nullptr;) {
    StreamHeap* const next = heap->caching_link_.next;
    if (heap->mutex_.try_lock()) {
      heap->give_back_cached_locked();
      heap->caching_link_.listed = false;
      heap->mutex_.unlock();
    } else {
      caching_heaps.push(*heap, heap->caching_link_);
    }
    heap = next;
  }
}

void StreamHeap::record(EventKind kind, BlockRef block) {
  const Nanoseconds time = observer_.record(fold_, Event{.kind = kind,
                                                         .stream = stream_.id,
                                                         .address = block.begin(),
                                                         .bytes = block.size(),
                                                         .requested = block.requested()});
  if (kind == EventKind::allocate) block.allocated_at() = AllocationTime(time);
}

}  // namespace weir
