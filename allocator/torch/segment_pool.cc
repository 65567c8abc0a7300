// SPDX-License-Identifier: Apache-2.0
#include "torch/segment_pool.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace weir::pytorch {
namespace {

// The constants of PyTorch's own allocator: what such sources expect to be asked for.
constexpr Bytes kMostSmall = 1_MiB;
constexpr Bytes kSmallSegment = 2_MiB;
constexpr Bytes kLargeSegment = 20_MiB;
constexpr Bytes kLeastOfItsOwn = 10_MiB;  // has a segment to itself
constexpr Bytes kSegmentUnit = 2_MiB;
constexpr std::size_t kPlacementsKept = 4096;

Bytes block_bytes(Bytes requested) { return std::max(round_up(requested, kGrain), kGrain); }
bool is_small(Bytes block) { return block <= kMostSmall; }
Bytes segment_bytes(Bytes block, bool caches) {
  if (is_small(block)) return kSmallSegment;
  return caches && block < kLeastOfItsOwn ? kLargeSegment : round_up(block, kSegmentUnit);
}

}  // namespace

SegmentPool::SegmentPool(Source source, EventCalls& device, Listener listener)
    : source_(std::move(source)), device_(device), listener_(std::move(listener)) {}

SegmentPool::~SegmentPool() {
  try {
    empty();
  } catch (const std::exception&) {
    // The source refused memory of its own; it keeps that.
  }
}

SegmentPool::Free SegmentPool::key(const Segment& segment, Blocks::const_iterator block) {
  return {segment.is_small, segment.stream.id, block->second.bytes, segment.number, block->first};
}

// With mutex_ held; the address lies in one of them.
SegmentPool::Segment& SegmentPool::segment_of(Address address) {
  return std::prev(segments_.upper_bound(address))->second;
}

void* SegmentPool::take_free(Bytes requested, Stream stream) {
  const Bytes bytes = block_bytes(requested);
  const std::lock_guard lock(mutex_);
  const auto best = free_.lower_bound({is_small(bytes), stream.id, bytes, 0, {}});
  if (best == free_.end() || best->is_small != is_small(bytes) || best->stream != stream.id) {
    return nullptr;
  }
  Segment& segment = segment_of(best->address);
  return take(segment, segment.blocks.find(best->address), requested);
}

// Makes the free block live, and free what is left of it. With mutex_ held.
void* SegmentPool::take(Segment& segment, Blocks::iterator at, Bytes requested) {
  const auto& [address, block] = *at;
  free_.erase(key(segment, at));
  const Bytes bytes = block_bytes(requested), rest = block.bytes - bytes;
  const bool splits = segment.is_small ? rest >= kGrain : rest > kMostSmall;
  if (splits && !no_split_.load(std::memory_order_relaxed)) {
    const auto remainder = segment.blocks.emplace(address + bytes, Block{.bytes = rest}).first;
    free_.insert(key(segment, remainder));
    at->second.bytes = bytes;
  }
  at->second.requested = requested;
  at->second.live = true;
  ++placed_;
  const auto number = static_cast<std::uint64_t>(segment.number);
  layout_.add(Layout::item(Layout::shift(number, segment.address), address, bytes));
  latest_.push_back({requested, segment.number, address - segment.address});
  if (latest_.size() > kPlacementsKept) latest_.pop_front();
  return address.pointer();
}

void* SegmentPool::allocate(Bytes requested, Stream stream) {
  if (void* const block = take_free(requested, stream)) return block;
  const Bytes bytes = block_bytes(requested), size = segment_bytes(bytes, source_.caches);
  void* const memory = source_.allocate(size, stream);
  if (memory == nullptr) return nullptr;
  const Address begin = Address::of(memory);
  Segment segment{begin, size, stream, is_small(bytes), {{begin, Block{.bytes = size}}}};
  listener_(segment, Change::gained);
  const std::lock_guard lock(mutex_);
  segment.number = next_number_++;
  Segment& kept = segments_[begin] = std::move(segment);
  return take(kept, kept.blocks.begin(), requested);
}

Status SegmentPool::deallocate(const void* pointer) {
  if (!source_.caches) {
    if (Status waited = device_.synchronize_context(); !waited) return waited;
  }
  put_back(pointer);
  if (!source_.caches) empty();
  return {};
}

void SegmentPool::put_back(const void* pointer) {
  const std::lock_guard lock(mutex_);
  Segment& segment = segment_of(Address::of(pointer));
  auto block = segment.blocks.find(Address::of(pointer));
  block->second.live = false;
  block->second.requested = {};
  const auto merge_with_next = [&](Blocks::iterator first) {
    const auto next = std::next(first);
    if (next == segment.blocks.end() || next->second.live) return;
    free_.erase(key(segment, next));
    first->second.bytes += next->second.bytes;
    segment.blocks.erase(next);
  };
  merge_with_next(block);
  if (block != segment.blocks.begin() && !std::prev(block)->second.live) {
    --block;
    free_.erase(key(segment, block));
    block->second.bytes += std::next(block)->second.bytes;
    segment.blocks.erase(std::next(block));
  }
  free_.insert(key(segment, block));
}

std::optional<SegmentPool::Found> SegmentPool::find(const void* pointer) const {
  const Address address = Address::of(pointer);
  const std::lock_guard lock(mutex_);
  const auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return std::nullopt;
  const Segment& segment = std::prev(after)->second;
  const auto& [begin, block] = *std::prev(segment.blocks.upper_bound(address));
  if (!block.live || begin + block.bytes <= address) return std::nullopt;
  return Found{begin, block.bytes, block.requested, segment.stream, segment.address, segment.bytes};
}

void SegmentPool::empty() {
  std::vector<Segment> idle;  // taken out before the wait, so that nothing new uses them
  {
    const std::lock_guard lock(mutex_);
    for (auto each = segments_.begin(); each != segments_.end();) {
      Segment& segment = each->second;
      const auto first = segment.blocks.begin();
      if (first->second.live || first->second.bytes < segment.bytes) {
        ++each;
        continue;
      }
      free_.erase(key(segment, first));
      idle.push_back(std::move(segment));
      each = segments_.erase(each);
    }
  }
  if (idle.empty()) return;
  if (!device_.synchronize_context()) return put_back(std::move(idle));
  while (!idle.empty()) {
    const Segment segment = std::move(idle.back());
    idle.pop_back();
    try {
      listener_(segment, Change::gives_back);
      source_.free(segment.address.pointer(), segment.bytes);
    } catch (...) {
      put_back(std::move(idle));
      throw;
    }
  }
}

void SegmentPool::put_back(std::vector<Segment> segments) {
  const std::lock_guard lock(mutex_);
  for (Segment& segment : segments) {
    free_.insert(key(segment, segment.blocks.begin()));
    segments_[segment.address] = std::move(segment);
  }
}

PoolLayout SegmentPool::layout() const {
  const std::lock_guard lock(mutex_);
  return {.placements = placed_, .hash = layout_.hash()};
}

std::deque<SegmentPool::Placement> SegmentPool::placements() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

bool SegmentPool::has_segments() const {
  const std::lock_guard lock(mutex_);
  return !segments_.empty();
}

std::vector<SegmentPool::Segment> SegmentPool::segments() const {
  const std::lock_guard lock(mutex_);
  std::vector<Segment> all;
  for (const auto& [address, segment] : segments_) all.push_back(segment);
  return all;
}

}  // namespace weir::pytorch
