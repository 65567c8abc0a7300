// SPDX-License-Identifier: Apache-2.0
#include "core/heap/stream_heap.h"

#include <algorithm>
#include <utility>

#include "core/base/mutation.h"

namespace weir {
namespace {

// While a stream was made to wait, so many requests ask only whether it is captured.
constexpr std::uint32_t kAskedBetween = 64;
// After so many heaps with cached blocks, other threads may use the page heap.
constexpr int kHeapsAtATime = 64;

}  // namespace

StreamHeap::StreamHeap(HeapId id, Stream stream, PageHeap& pages, Timelines& timelines,
                       Observer& observer, CachingHeaps<StreamHeap>& caching_heaps,
                       CapturePool* pool)
    : id_(id),
      pages_(pages),
      timelines_(timelines),
      observer_(observer),
      caching_heaps_(caching_heaps),
      graph_pool_(pool),
      recording_(observer.recording()),
      fold_(observer.fold(), id, stream.id, pages.memory() == MemoryKind::plain),
      slabs_(block_records_),
      stream_(stream),
      timeline_(timelines.of(stream)) {
  set_stream(stream);
}

void StreamHeap::set_stream(Stream stream) {
  serves_ = stream.id;
  const bool fast_paths = fast_paths_ && !recording_ && graph_pool_ == nullptr &&
                          waited_for_.empty() && !pages_.is_asleep();
  fast_stream_ = fast_paths ? serves_ : kNoStream;
  fast_room_ = fast_paths && serves_ != kNoStream ? kMostCached : 0;
}

void StreamHeap::allow_fast_paths(bool allowed) {
  const MutexLock lock(mutex_);
  fast_paths_ = allowed;
  set_stream(Stream{.id = serves_});
}

PageHeap::Owner StreamHeap::owner() { return {id_, timeline_, fold_}; }

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
  if (pages_.is_asleep()) [[unlikely]] {
    status = PageHeap::asleep_error();
    return {};
  }
  const Bytes bytes = round_up(requested, kGrain);
  create_ = create;
  const bool captured = !waited_for_.empty() && is_captured_after_a_wait();
  Block* block = cached_count_ > 0 && !captured ? find_cached(bytes) : nullptr;
  if (block != nullptr && suits(*block)) {
    status = wait_and_take(*block);
    if (!status) block = nullptr;
  } else {
    block = nullptr;
  }
  // Where a capture is in the way of the wait there is other memory.
  if (block == nullptr && (status || is_in_the_way(status))) {
    status = {};
    if (bytes <= Slabs::kLargest && !captured) {
      give_back_cached_locked();
      block = allocate_small(bytes, status);
    } else {
      // The page heap knows what such a capture may have; slabs do not.
      block = allocate_run(std::max(bytes, kAlone), /*for_slab=*/false, status);
    }
  }
  if (block == nullptr) [[unlikely]]
    return {};
  fold_.set_stream(stream_.id);  // news after an adoption
  block->epoch = epoch_;
  if (give_out(*block, requested)) fold_.raise_peaks();
  if (recording_) record(EventKind::allocate, *block);
  return block->begin;
}

void StreamHeap::note_waited(const FenceSet& fences) {
  if (fences.empty() || timelines_.trust() == Trust::told) return;
  waited_for_.join(fences);
  fast_stream_ = kNoStream;
  fast_room_ = 0;
}

// It is seldom asked whether the waits are over: that costs more than the question itself.
bool StreamHeap::is_captured_after_a_wait() {
  if (!timelines_.not_captured(timeline_)) return true;
  if (++asked_meanwhile_ % kAskedBetween != 0) return false;
  const Result<bool> over = timelines_.looks_complete(waited_for_);
  if (over && *over) {
    waited_for_.clear();
    set_stream(Stream{.id = serves_});
  }
  return false;
}

Status StreamHeap::wait_and_take(Block& block) {
  if (block.uses != nullptr) {
    if (Status status = wait_for_cached(block); !status) {
      // (It stays cached.) It is held no more; that it was asked for stays noted, which only
      // matters as a hint.
      if (block.slab == nullptr || block.slab->live == 0_B) {
        history_.subtract(block.slab == nullptr ? block.size : Slab::kSize);
      }
      return status;
    }
  }
  take_from_cache(&block);
  return {};
}

// In a program of one thread the pages are seen as if every freed block had gone back at once. A
// heap that another thread is busy with keeps its blocks, as that thread wants them the next
// moment, until there is need of new memory: threads that took each other's blocks would all miss
// for ever.
Result<Address> StreamHeap::find_run(Bytes bytes, RequestHistory::Name name) {
  const RequestKeys keys = history_.keys(name);
  const QueuedLock lock(pages_.mutex());
  give_back_cached_under_page_lock();
  const auto create = have_others_give_back(Others::at_rest) ? create_ : PageHeap::Create::not_yet;
  PageHeap::Owner owner = this->owner();
  Result<Address> at = pages_.allocate(owner, bytes, keys, served_since_asked(), create);
  if (!at && create != create_ && at.error().code() == ErrorCode::out_of_memory) {
    have_others_give_back(Others::all);
    at = pages_.allocate(owner, bytes, keys, {}, create_);
  }
  note_waited(owner.waited);
  return at;
}

// Slabs are noted as of one size, whichever they have.
Block* StreamHeap::allocate_run(Bytes bytes, bool for_slab, Status& status) {
  const Bytes noted = for_slab ? Slab::kSize : bytes;
  const RequestHistory::Name name = history_.note(noted);
  Result<Address> at = find_run(bytes, name);
  if (!at) [[unlikely]] {
    history_.subtract(noted);
    status = std::move(at).error();
    return nullptr;
  }
  return add_run({*at, bytes}, name, for_slab);
}

Block* StreamHeap::add_run(Range run, RequestHistory::Name name, bool for_slab) {
  // The page heap has counted this one; a slab is no request of the program's.
  if (!for_slab) {
    ++asked_.requests;
    asked_.bytes += run.size;
  }
  Block* const block = block_records_.take();
  block->begin = run.begin;
  block->size = run.size;
  block->name = name;
  block->state = Block::State::live;
  runs_.add(block);
  return block;
}

PageHeap::Served StreamHeap::served_since_asked() {
  const PageHeap::Served all{fold_.blocks_in_all(), Bytes{fold_.bytes_in_all()}, history_.noted()};
  const PageHeap::Served before = std::exchange(asked_, all);
  return {all.requests - before.requests, all.bytes - before.bytes, all.runs - before.runs};
}

Block* StreamHeap::allocate_small(Bytes bytes, Status& status) {
  Block* block = slabs_.allocate(bytes);
  if (block == nullptr) [[unlikely]] {
    if (add_slab(status) == nullptr) return nullptr;
    block = slabs_.allocate(bytes);
  }
  if (!slabs_.has_fences()) [[likely]]
    return block;
  if (pages_.makes_waits()) {
    status = wait_for_slab_bytes(*block);
    if (status) return block;
  }
  give_back(block);
  if (!status && !is_in_the_way(status)) return nullptr;
  status = {};
  return allocate_settled(bytes, status);
}

Block* StreamHeap::add_slab(Status& status) {
  Block* slab = allocate_run(Slab::kSize, /*for_slab=*/true, status);
  // Free memory may lie in pieces that are all too small.
  if (slab == nullptr && create_ != PageHeap::Create::not_yet &&
      status.error().code() == ErrorCode::out_of_memory) {
    Status smaller;
    slab = allocate_run(Slab::kLeast, /*for_slab=*/true, smaller);
    if (slab != nullptr) status = {};
  }
  if (slab != nullptr) slabs_.add(slab);
  return slab;
}

// Of bytes that nobody need be waited for.
Block* StreamHeap::allocate_settled(Bytes bytes, Status& status) {
  const auto settled = [&](Range range) WEIR_REQUIRES(mutex_) {
    FenceSet fences;
    slabs_.collect(range, fences);
    return is_settled(fences);
  };
  Block* const block = slabs_.allocate_if(bytes, settled);
  if (block != nullptr) return block;
  // From the new one, though others' work may be over by now: a slab is not there for nothing.
  const Block* const slab = add_slab(status);
  return slab == nullptr ? nullptr : slabs_.allocate_at({slab->begin, bytes});
}

bool StreamHeap::is_settled(const FenceSet& fences) {
  return timelines_.satisfied(fences, timeline_) || timelines_.is_seen_complete(fences);
}

Status StreamHeap::wait(const FenceSet& fences) {
  FenceSet made;
  Status status = timelines_.wait(timeline_, fences, &fold_, &made);
  note_waited(made);
  return status;
}

Status StreamHeap::wait_for_slab_bytes(const Block& block) {
  FenceSet fences;
  slabs_.collect(block.range(), fences);
  if (mutation::left_out(mutation::Site::wait_for_small_bytes)) fences.clear();
  if (Status status = wait(fences); !status) return status;
  slabs_.forget_fences_if(
      [&](Fence fence) WEIR_REQUIRES(mutex_) { return timelines_.satisfied(fence, timeline_); });
  return {};
}

Status StreamHeap::wait_for_cached(Block& block) {
  const bool left_out =
      mutation::left_out(is_small(block) ? mutation::Site::wait_for_small_bytes
                                         : mutation::Site::wait_for_bytes_of_same_heap);
  if (!left_out && !pages_.makes_waits() && !is_settled(block.uses->fences)) {
    return Error(ErrorCode::capture, "no request waits");
  }
  if (!left_out && pages_.makes_waits()) {
    if (Status status = wait(block.uses->fences); !status) return status;
  }
  block_records_.drop_uses(block);
  return {};
}

bool StreamHeap::has(Address block) const {
  const MutexLock lock(mutex_);
  return live_at(block) != nullptr;
}

void StreamHeap::add_fence(Block& block, Fence fence) {
  if (fence.timeline != timeline_) block_records_.uses(block).fences.join(fence);
  observer_.emit(fold_, Event{.kind = EventKind::fence,
                              .stream = stream_.id,
                              .other = timelines_.stream(fence.timeline).id,
                              .address = block.begin,
                              .sequence = fence.sequence});
}

bool StreamHeap::fence(Address address, Fence fence) {
  const MutexLock lock(mutex_);
  Block* const block = live_at(address);
  if (block == nullptr) return false;
  add_fence(*block, fence);
  return true;
}

Address StreamHeap::fence_around(Address address, Fence fence, Address fenced) {
  const MutexLock lock(mutex_);
  Block* const block = block_around(address);
  if (block == nullptr) return {};
  if (block->begin != fenced) add_fence(*block, fence);
  return block->begin;
}

Result<bool> StreamHeap::fence(Address address, TimelineId user) {
  const MutexLock lock(mutex_);
  Block* const block = live_at(address);
  if (block == nullptr) return false;
  Result<Fence> fence = user == timeline_ ? timelines_.now(user) : timelines_.record(user);
  if (!fence) return std::move(fence).error();
  add_fence(*block, *fence);
  return true;
}

bool StreamHeap::record_stream(Address address, TimelineId user) {
  const MutexLock lock(mutex_);
  Block* const block = live_at(address);
  if (block == nullptr) return false;
  if (user == timeline_) return true;
  std::vector<TimelineId>& users = block_records_.uses(*block).users;
  if (std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);
  return true;
}

std::vector<TimelineId> StreamHeap::users_of(Address address) const {
  const MutexLock lock(mutex_);
  const Block* const block = live_at(address);
  return block == nullptr || block->uses == nullptr ? std::vector<TimelineId>{}
                                                    : block->uses->users;
}

// Takes the fences that record_stream asked for.
Status StreamHeap::fence_users(Block& block, Gone gone) {
  for (const TimelineId user : block.uses->users) {
    if (mutation::left_out(mutation::Site::record_stream_fences)) break;
    Result<Fence> fence = timelines_.record(user);
    const bool may_be_gone = !fence && fence.error().code() == ErrorCode::device;
    if (may_be_gone && gone == Gone::behind_all) {
      if (Result<Fence> all = timelines_.record_all()) fence = all;
    }
    if (may_be_gone && gone == Gone::after_all) continue;
    if (!fence) return std::move(fence).error();
    add_fence(block, *fence);
  }
  block.uses->users.clear();
  const auto site = is_small(block) ? mutation::Site::fence_goes_with_small_block
                                    : mutation::Site::fence_goes_with_block;
  if (mutation::left_out(site)) block.uses->fences.clear();
  if (block.uses->fences.empty()) block_records_.drop_uses(block);
  return {};
}

Result<bool> StreamHeap::deallocate(Address address, Gone gone) {
  const MutexLock lock(mutex_);
  Block* const block = live_at(address);
  if (block == nullptr) return false;
  if (block->uses != nullptr) {
    if (Status status = fence_users(*block, gone); !status) return std::move(status).error();
  }
  if (fold_.owes()) fold_.settle_peaks();
  if (recording_) record(EventKind::deallocate, *block);
  take_back(*block);
  // Whether a large block may be used again while its fences still run is the page heap's policy.
  if (!may_cache() || (block->uses != nullptr && !is_small(*block) && !pages_.reuses_at_once())) {
    give_back(block);
    return true;
  }
  if (cached_count_ == kMostCached) {
    Block* const oldest = cached_[0];
    take_from_cache(oldest);
    give_back(oldest);
  }
  put_in_cache(block);
  return true;
}

void StreamHeap::put_in_cache(Block* block) {
  block->state = Block::State::cached;
  cached_[cached_count_++] = block;
  if (caching_link_.listed) return;
  caching_link_.listed = true;
  caching_link_.by = std::this_thread::get_id();
  caching_heaps_.push(*this, caching_link_);
}

// The levels are read anew, so no lock is needed.
Address StreamHeap::raise_peaks(Address allocated) WEIR_NO_THREAD_ANALYSIS {
  fold_.raise_peaks();
  return allocated;
}

std::optional<Slabs::Emptied> StreamHeap::run_of_last(Block* block) {
  if (is_small(*block)) return slabs_.free(block);
  return Slabs::Emptied{block, block->uses == nullptr ? FenceSet{} : block->uses->fences};
}

void StreamHeap::give_back(Block* block) {
  if (const std::optional<Slabs::Emptied> run = run_of_last(block)) {
    const QueuedLock lock(pages_.mutex());
    give_back_run(*run);
  }
}

void StreamHeap::give_back_cached_under_page_lock() {
  while (cached_count_ > 0) {
    if (const std::optional<Slabs::Emptied> run = run_of_last(cached_[--cached_count_])) {
      give_back_run(*run);
    }
  }
}

void StreamHeap::give_back_run(const Slabs::Emptied& emptied) {
  Block* const run = emptied.run;
  runs_.remove(run);
  PageHeap::Owner owner = this->owner();
  pages_.free(owner, run->range(), emptied.fences);
  block_records_.drop_uses(*run);
  block_records_.give_back(run);
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
  for (StreamHeap* heap = caching_heaps_.take(); heap != nullptr;) {
    StreamHeap* const next = heap->caching_link_.next;
    if (++looked_at % kHeapsAtATime == 0) {
      pages_.mutex().unlock();
      pages_.mutex().lock();
    }
    if (heap == this) {
      caching_heaps_.push(*heap, heap->caching_link_);
    } else if (!heap->mutex_.looks_free() || !heap->mutex_.try_lock()) {
      all = false;
      caching_heaps_.push(*heap, heap->caching_link_);
    } else if (whose == Others::at_rest && !at_rest(*heap)) {
      all = false;
      caching_heaps_.push(*heap, heap->caching_link_);
      heap->mutex_.unlock();
    } else {
      pages_.count(heap->served_since_asked());
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

bool StreamHeap::adopt(Stream stream) {
  const MutexLock lock(mutex_);
  if (serves_ != kNoStream || fold_.statistics().live_blocks.current > 0) return false;
  stream_ = stream;
  set_stream(stream);
  timeline_ = timelines_.of(stream);
  return true;
}

void StreamHeap::move_to(Stream as, std::uint32_t epoch) {
  const MutexLock lock(mutex_);
  epoch_ = epoch;
  if (serves_ == as.id) return;
  give_back_cached_locked();
  serves_ = as.id;
  timeline_ = timelines_.of(as);
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

void StreamHeap::record(EventKind kind, Block& block) {
  const Nanoseconds time = observer_.record(fold_, Event{.kind = kind,
                                                         .stream = stream_.id,
                                                         .address = block.begin,
                                                         .bytes = block.size,
                                                         .requested = block.requested});
  if (kind == EventKind::allocate) block.note_time(time);
}

void StreamHeap::reset_peaks() {
  const MutexLock lock(mutex_);
  fold_.reset_peaks();
}

}  // namespace weir
