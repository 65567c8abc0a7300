#include "core/stream_heap.h"

#include <algorithm>
#include <utility>

#include "core/mutation.h"

namespace weir {

StreamHeap::StreamHeap(HeapId id, Stream stream, PageHeap& pages, Timelines& timelines,
                       Observer& observer)
    : id_(id),
      pages_(pages),
      timelines_(timelines),
      observer_(observer),
      stream_(stream),
      timeline_(timelines.of(stream)),
      fold_(observer.fold(), id, stream.id) {}

PageHeap::Owner StreamHeap::owner() { return {id_, timeline_, fold_, history_}; }

Result<Address> StreamHeap::allocate(Bytes requested) {
  const Bytes bytes = round_up(requested, kGrain);
  const MutexLock lock(mutex_);
  Result<Address> at = bytes <= Slabs::kLargest ? allocate_small(bytes) : allocate_run(bytes);
  if (!at) return at;
  blocks_.emplace(*at, Block{bytes, requested, {}, {}});
  observer_.emit(fold_, Event{.kind = EventKind::allocate,
                              .stream = stream_.id,
                              .address = *at,
                              .bytes = bytes,
                              .requested = requested});
  return at;
}

Result<Address> StreamHeap::allocate_run(Bytes bytes) {
  PageHeap::Owner owner = this->owner();
  return pages_.allocate(owner, bytes, std::exchange(small_requests_, 0),
                         std::exchange(small_bytes_, 0_B));
}

Result<Address> StreamHeap::allocate_small(Bytes bytes) {
  std::optional<Address> at = slabs_.allocate(bytes);
  if (!at) {
    Result<Address> slab = allocate_run(Slabs::kSlab);
    if (!slab) return slab;
    slabs_.add({*slab, Slabs::kSlab});
    at = slabs_.allocate(bytes);
  }
  ++small_requests_;
  small_bytes_ += bytes;
  const Range block{*at, bytes};
  if (Status status = wait_for_small(block); !status) {
    free_small(block, {});
    return std::move(status).error();
  }
  return *at;
}

Status StreamHeap::wait_for_small(Range block) {
  if (!slabs_.has_fences()) return {};
  FenceSet fences;
  slabs_.collect(block, fences);
  if (mutation::left_out(mutation::Site::wait_for_small_bytes)) fences.clear();
  for (const Fence fence : fences) {
    FenceSet one;
    one.join(fence);
    Result<std::uint32_t> waits = timelines_.wait(timeline_, one);
    if (!waits) return std::move(waits).error();
    if (*waits == 0) continue;
    observer_.emit(fold_, Event{.kind = EventKind::stream_wait,
                                .stream = stream_.id,
                                .other = timelines_.stream(fence.timeline).id,
                                .sequence = fence.sequence});
  }
  slabs_.forget_fences_if(
      [&](Fence fence) WEIR_REQUIRES(mutex_) { return timelines_.satisfied(fence, timeline_); });
  return {};
}

void StreamHeap::free_small(Range block, const FenceSet& fences) {
  const std::optional<Slabs::Emptied> emptied = slabs_.free(block, fences);
  if (!emptied) return;
  PageHeap::Owner owner = this->owner();
  pages_.free(owner, emptied->slab, emptied->fences);
}

TimelineId StreamHeap::timeline() const {
  const MutexLock lock(mutex_);
  return timeline_;
}

bool StreamHeap::has(Address block) const {
  const MutexLock lock(mutex_);
  return blocks_.contains(block);
}

void StreamHeap::fence(Address block, Fence fence) {
  const MutexLock lock(mutex_);
  if (fence.timeline != timeline_) blocks_.at(block).fences.join(fence);
  observer_.emit(fold_, Event{.kind = EventKind::fence,
                              .stream = stream_.id,
                              .other = timelines_.stream(fence.timeline).id,
                              .address = block,
                              .sequence = fence.sequence});
}

void StreamHeap::record_stream(Address block, TimelineId user) {
  const MutexLock lock(mutex_);
  std::vector<TimelineId>& users = blocks_.at(block).users;
  if (user != timeline_ && std::find(users.begin(), users.end(), user) == users.end()) {
    users.push_back(user);
  }
}

Status StreamHeap::deallocate(Address address) {
  const MutexLock lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) {
    return Error(ErrorCode::unknown_pointer, "no live block starts at this address");
  }
  Block& block = found->second;
  for (const TimelineId user : block.users) {
    if (mutation::left_out(mutation::Site::record_stream_fences)) break;
    Result<Fence> fence = timelines_.record(user);
    if (!fence) return std::move(fence).error();
    block.fences.join(*fence);
    observer_.emit(fold_, Event{.kind = EventKind::fence,
                                .stream = stream_.id,
                                .other = timelines_.stream(user).id,
                                .address = address,
                                .sequence = fence->sequence});
  }
  const Range range{address, block.bytes};
  observer_.emit(fold_, Event{.kind = EventKind::deallocate,
                              .stream = stream_.id,
                              .address = address,
                              .bytes = block.bytes,
                              .requested = block.requested});
  const FenceSet fences = std::move(block.fences);
  const bool small = block.small();
  blocks_.erase(found);
  if (small) {
    const bool carried = !mutation::left_out(mutation::Site::fence_goes_with_small_block);
    free_small(range, carried ? fences : FenceSet{});
  } else {
    const bool carried = !mutation::left_out(mutation::Site::fence_goes_with_block);
    PageHeap::Owner owner = this->owner();
    pages_.free(owner, range, carried ? fences : FenceSet{});
  }
  return {};
}

BlockInfo StreamHeap::info(Address at, const Block& block) const {
  return {at, block.bytes, block.requested, id_, stream_.id};
}

std::optional<BlockInfo> StreamHeap::find(Address address) const {
  const MutexLock lock(mutex_);
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return std::nullopt;
  const auto& [at, block] = *std::prev(after);
  if (at + block.bytes <= address) return std::nullopt;
  return info(at, block);
}

std::vector<BlockInfo> StreamHeap::blocks() const {
  const MutexLock lock(mutex_);
  std::vector<BlockInfo> blocks;
  for (const auto& [at, block] : blocks_) blocks.push_back(info(at, block));
  return blocks;
}

HeapStatistics StreamHeap::statistics() const {
  const MutexLock lock(mutex_);
  return fold_.statistics();
}

void StreamHeap::reset_peaks() {
  const MutexLock lock(mutex_);
  fold_.reset_peaks();
}

bool StreamHeap::adopt(Stream stream) {
  const MutexLock lock(mutex_);
  if (!blocks_.empty() || !timelines_.retired(timeline_)) return false;
  stream_ = stream;
  timeline_ = timelines_.of(stream);
  return true;
}

std::vector<std::string> StreamHeap::validate(std::vector<Range>& runs) const {
  std::vector<Range> small;
  Bytes bytes, requested;
  std::vector<std::string> broken;
  if (timelines_.stream(timeline_).id != stream_.id) {
    broken.push_back("its timeline is another stream's");
  }
  for (const auto& [at, block] : blocks_) {
    bytes += block.bytes;
    requested += block.requested;
    if (block.bytes != round_up(block.requested, kGrain)) {
      broken.push_back("a block's size is not what was asked for, rounded up");
    }
    if (block.small()) {
      small.push_back({at, block.bytes});
    } else {
      runs.push_back({at, block.bytes});
    }
  }
  for (const std::string& what : slabs_.validate(small)) broken.push_back(what);
  for (const Range slab : slabs_.slabs()) runs.push_back(slab);
  const HeapStatistics& statistics = fold_.statistics();
  if (statistics.live_blocks.current != blocks_.size() ||
      statistics.live_bytes.current != bytes.count ||
      statistics.requested_bytes.current != requested.count) {
    broken.push_back("its statistics differ from a recount of its blocks");
  }
  for (std::string& what : broken) what = "heap " + std::to_string(id_.value) + ": " + what;
  return broken;
}

}  // namespace weir
