// SPDX-License-Identifier: Apache-2.0
#include "look/block_lifetimes.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "look/numbering.h"
#include "look/physical.h"

namespace weir {
namespace {

constexpr std::uint32_t kNone = BlockLifetime::kNone;
constexpr std::uint32_t kAllStreams = ~std::uint32_t{0};

// Takes the events one by one.
class LifetimesFold {
 public:
  explicit LifetimesFold(const Recording& recording)
      : recording_(recording), middle_{(recording.begin().count + recording.end().count) / 2} {}

  BlockLifetimes run();

 private:
  struct Fence {
    std::uint32_t block, event, next;  // `next`: of the same block, into fences_
    FenceTaken taken;
  };

  void on_event(const Event& event);
  void allocate(const Event& event);
  void deallocate(const Event& event);
  void fence(const Event& event);
  void reuse(std::uint32_t before, std::uint32_t block);
  bool has_waited(std::uint64_t stream, std::uint64_t other, std::uint32_t since);
  std::uint32_t number_of(std::uint64_t stream);
  void memory_is(const MemoryPoint& point);
  void sort_fences();

  const Recording& recording_;
  BlockLifetimes lifetimes_;
  const Nanoseconds middle_;  // of the time
  std::uint32_t now_ = 0;     // the event that is looked at
  Numbering<std::uint64_t> streams_, pools_;
  PhysicalOwners physical_;
  std::vector<Fence> fences_;
  std::vector<std::uint32_t> last_fence_;                     // of each block, into fences_
  std::unordered_map<std::uint64_t, std::uint32_t> live_at_;  // address -> block
  std::unordered_map<std::uint32_t, std::uint64_t> pool_of_heap_;
  // (waiter, other), by number_of() -> the last event in which the one waited for the other.
  std::unordered_map<std::uint64_t, std::uint32_t> waits_;
  std::vector<std::uint32_t> before_;  // scratch
};

BlockLifetimes LifetimesFold::run() {
  // Growing would hold most of them twice; what is not used takes no memory.
  lifetimes_.blocks.reserve(recording_.events.size() / 2);
  for (const Event& event : recording_.events) {
    on_event(event);
    ++now_;
  }
  memory_over_time(recording_, [this](const MemoryPoint& point) { memory_is(point); });
  for (const auto& [address, block] : live_at_) {
    lifetimes_.blocks[block].end = std::max(recording_.end(), lifetimes_.blocks[block].begin);
  }
  sort_fences();
  lifetimes_.streams = streams_.take();
  lifetimes_.pools = pools_.take();
  return std::move(lifetimes_);
}

void LifetimesFold::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::allocate:
      return allocate(event);
    case EventKind::deallocate:
      return deallocate(event);
    case EventKind::fence:
      return fence(event);
    case EventKind::stream_wait: {
      const std::uint64_t waiter = number_of(event.stream);
      waits_[waiter << 32 | number_of(event.other)] = now_;
      return;
    }
    case EventKind::release:
      return physical_.release(event.page);
    case EventKind::map:
      return physical_.map(event.address, event.bytes, event.page);
    case EventKind::unmap:
      return physical_.unmap(event.address);
    case EventKind::heap_open:
      pool_of_heap_[event.heap.value] = event.pool;
      return;
    case EventKind::pool_open:
      pools_.of(event.pool);
      return;
    default:
      return;
  }
}

void LifetimesFold::allocate(const Event& event) {
  const auto block = static_cast<std::uint32_t>(lifetimes_.blocks.size());
  live_at_[event.address.value] = block;
  BlockLifetime& lifetime = lifetimes_.blocks.emplace_back();
  lifetime.address = event.address;
  lifetime.bytes = event.bytes;
  lifetime.requested = event.requested;
  lifetime.heap = event.heap;
  lifetime.stream = event.stream;
  lifetime.pool = event.pool;
  if (lifetime.pool == 0 && !pool_of_heap_.empty()) {
    const auto pool = pool_of_heap_.find(event.heap.value);
    if (pool != pool_of_heap_.end()) lifetime.pool = pool->second;
  }
  lifetime.stack = event.stack < recording_.stacks.size() ? event.stack : 0;
  lifetime.begin = event.time;
  lifetime.begin_event = now_;
  lifetime.live_at_begin = now_ < recording_.initial;
  lifetime.live_at_end = true;  // until it ends
  last_fence_.push_back(kNone);
  streams_.of(lifetime.stream);
  if (lifetime.pool != 0) pools_.of(lifetime.pool);

  before_.clear();
  physical_.take(lifetime.address, lifetime.bytes, block, before_);
  for (const std::uint32_t before : before_) reuse(before, block);
}

void LifetimesFold::reuse(std::uint32_t before, std::uint32_t block) {
  BlockLifetime& old = lifetimes_.blocks[before];
  if (old.reused_by != kNone || old.live_at_end) return;
  old.reused_by = block;
  const std::uint64_t stream = lifetimes_.blocks[block].stream;
  old.waited_for = has_waited(stream, old.stream, old.end_event);
  for (std::uint32_t i = last_fence_[before]; i != kNone && !old.waited_for; i = fences_[i].next) {
    old.waited_for = has_waited(stream, fences_[i].taken.stream, fences_[i].event);
  }
}

// Whether `stream` was made to wait for `other`, alone or with all streams, after event `since`.
bool LifetimesFold::has_waited(std::uint64_t stream, std::uint64_t other, std::uint32_t since) {
  if (stream == other || waits_.empty()) return false;
  const std::uint64_t waiter = number_of(stream);
  const auto waited_for = [&](std::uint32_t number) {
    const auto wait = waits_.find(waiter << 32 | number);
    return wait != waits_.end() && wait->second > since;
  };
  return waited_for(number_of(other)) || waited_for(kAllStreams);
}

void LifetimesFold::deallocate(const Event& event) {
  const auto found = live_at_.find(event.address.value);
  if (found == live_at_.end()) return;
  BlockLifetime& lifetime = lifetimes_.blocks[found->second];
  lifetime.end = event.time;
  lifetime.end_event = now_;
  lifetime.live_at_end = false;
  live_at_.erase(found);
}

void LifetimesFold::fence(const Event& event) {
  const auto found = live_at_.find(event.address.value);
  if (found == live_at_.end()) return;
  const std::uint32_t block = found->second;
  (void)number_of(event.other);
  fences_.push_back({block, now_, last_fence_[block], {event.time, event.other}});
  last_fence_[block] = static_cast<std::uint32_t>(fences_.size() - 1);
  ++lifetimes_.blocks[block].fences;
}

// All streams together are none of the recording's streams.
std::uint32_t LifetimesFold::number_of(std::uint64_t stream) {
  return Stream{.id = stream}.is_all() ? kAllStreams : streams_.of(stream);
}

void LifetimesFold::memory_is(const MemoryPoint& point) {
  const bool first = point.event == MemoryPoint::kInitial;
  if (first) lifetimes_.begin = point;
  lifetimes_.end = point;
  if (first || point.live > lifetimes_.peak_live.live) lifetimes_.peak_live = point;
  const MemoryPoint& peak = lifetimes_.peak_reserved;
  if (first || point.reserved > peak.reserved ||
      (point.reserved == peak.reserved && point.live > peak.live)) {
    lifetimes_.peak_reserved = point;
  }
  // What is live when the second half begins is live in it.
  lifetimes_.late_peak_live =
      point.time < middle_ ? point.live : std::max(lifetimes_.late_peak_live, point.live);
}

// From the order in which they were taken to one block after the other.
void LifetimesFold::sort_fences() {
  std::uint32_t first = 0;
  for (BlockLifetime& lifetime : lifetimes_.blocks) {
    lifetime.first_fence = first;
    first += lifetime.fences;
  }
  lifetimes_.fences.resize(first);
  std::vector<std::uint32_t> placed(lifetimes_.blocks.size());
  for (const Fence& fence : fences_) {
    const BlockLifetime& lifetime = lifetimes_.blocks[fence.block];
    lifetimes_.fences[lifetime.first_fence + placed[fence.block]++] = fence.taken;
  }
}

}  // namespace

BlockLifetimes lifetimes_of(const Recording& recording) { return LifetimesFold(recording).run(); }

void memory_over_time(const Recording& recording,
                      const std::function<void(const MemoryPoint&)>& visit) {
  Bytes live, reserved;
  std::unordered_map<std::uint64_t, Bytes> blocks;  // by address
  std::unordered_map<std::uint32_t, Bytes> pages;
  // What was there has gone, be it that the event is missing.
  const auto replace = [](auto& all, auto at, Bytes bytes, Bytes& sum) {
    const auto [found, added] = all.try_emplace(at);
    sum = sum - std::exchange(found->second, bytes) + bytes;
    if (bytes == 0_B) all.erase(found);
  };
  std::size_t now = 0;
  const auto begin = [&] { visit({recording.begin(), live, reserved}); };
  for (const Event& event : recording.events) {
    if (now == recording.initial) begin();
    const bool is_block = event.kind == EventKind::allocate || event.kind == EventKind::deallocate;
    const bool is_page = event.kind == EventKind::create || event.kind == EventKind::release;
    const bool begins = event.kind == EventKind::allocate || event.kind == EventKind::create;
    const Bytes bytes = begins ? event.bytes : 0_B;
    if (is_block) replace(blocks, event.address.value, bytes, live);
    if (is_page) replace(pages, event.page.value, bytes, reserved);
    if ((is_block || is_page) && now >= recording.initial) {
      visit({event.time, live, reserved, static_cast<std::uint32_t>(now)});
    }
    ++now;
  }
  if (recording.initial == now) begin();
}

void for_each_step(const BlockLifetimes& lifetimes,
                   const std::function<void(std::uint32_t, bool, std::size_t)>& visit) {
  // Beginnings are in order already.
  const std::vector<BlockLifetime>& blocks = lifetimes.blocks;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ends;  // event, block
  ends.reserve(blocks.size());
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    if (!blocks[block].live_at_end) ends.emplace_back(blocks[block].end_event, block);
  }
  std::sort(ends.begin(), ends.end());
  auto end = ends.begin();
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    for (; end != ends.end() && *end < std::pair(blocks[block].begin_event, block); ++end) {
      visit(end->second, false, end->first);
    }
    visit(block, true, blocks[block].begin_event);
  }
  for (; end != ends.end(); ++end) visit(end->second, false, end->first);
}

std::size_t events_at(const MemoryPoint& point, const Recording& recording) {
  return point.event == MemoryPoint::kInitial ? recording.initial : std::size_t{point.event} + 1;
}

std::size_t events_until(const Recording& recording, Nanoseconds time) {
  return std::max(recording.initial, recording.events.count_before(time + 1_ns));
}

bool is_live_after(const BlockLifetime& lifetime, std::size_t events) {
  return lifetime.begin_event < events && (lifetime.live_at_end || lifetime.end_event >= events);
}

}  // namespace weir
