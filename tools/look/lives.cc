#include "look/lives.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "look/physical.h"

namespace weir {
namespace {

constexpr std::uint32_t kNone = Life::kNone;
constexpr std::uint32_t kAllStreams = ~std::uint32_t{0};

// Numbers of anything, in order of first use.
class Numbering {
 public:
  std::uint32_t of(std::uint64_t id) {
    if (!ids_.empty() && ids_[last_] == id) return last_;
    const auto [found, added] = index_.try_emplace(id, static_cast<std::uint32_t>(ids_.size()));
    if (added) ids_.push_back(id);
    return last_ = found->second;
  }
  std::vector<std::uint64_t>& ids() { return ids_; }

 private:
  std::vector<std::uint64_t> ids_;
  std::unordered_map<std::uint64_t, std::uint32_t> index_;
  std::uint32_t last_ = 0;
};

// Takes the events one by one.
class LivesFold {
 public:
  explicit LivesFold(const Recording& recording) : recording_(recording) {}

  Lives run();

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
  void end(std::uint32_t block, Nanoseconds time, std::uint32_t event);
  std::uint32_t number_of(std::uint64_t stream);
  void memory_changed(Nanoseconds time);
  void sort_fences();

  const Recording& recording_;
  Lives lives_;
  std::uint32_t now_ = 0;         // the event that is looked at
  std::uint32_t change_ = kNone;  // ... as a change of memory: none of the initial ones is
  Bytes live_, reserved_;
  Numbering streams_, pools_;
  PhysicalOwners physical_;
  std::vector<Fence> fences_;
  std::vector<std::uint32_t> last_fence_;                     // of each block, into fences_
  std::unordered_map<std::uint64_t, std::uint32_t> live_at_;  // address -> block
  std::unordered_map<std::uint32_t, Bytes> pages_;
  std::unordered_map<std::uint32_t, std::uint64_t> pool_of_heap_;
  // (waiter, other), by number_of() -> the last event in which the one waited for the other.
  std::unordered_map<std::uint64_t, std::uint32_t> waits_;
  std::vector<std::uint32_t> before_;  // scratch
};

Lives LivesFold::run() {
  const std::vector<Event>& events = recording_.events;
  lives_.blocks.reserve(events.size() / 2);
  lives_.memory.reserve(events.size());
  live_at_.reserve(events.size() / 8);
  for (now_ = 0; now_ < events.size(); ++now_) {
    if (now_ == recording_.initial) memory_changed(recording_.begin());
    change_ = now_;
    on_event(events[now_]);
  }
  change_ = kNone;
  if (recording_.initial == events.size()) memory_changed(recording_.begin());
  for (const auto& [address, block] : live_at_) {
    lives_.blocks[block].end = std::max(recording_.end(), lives_.blocks[block].begin);
  }
  sort_fences();
  lives_.streams = std::move(streams_.ids());
  lives_.pools = std::move(pools_.ids());
  return std::move(lives_);
}

void LivesFold::on_event(const Event& event) {
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
    case EventKind::create:
      if (!pages_.try_emplace(event.page.value, event.bytes).second) return;
      reserved_ += event.bytes;
      return memory_changed(event.time);
    case EventKind::release: {
      const auto page = pages_.find(event.page.value);
      if (page == pages_.end()) return;
      reserved_ -= page->second;
      pages_.erase(page);
      physical_.release(event.page);
      return memory_changed(event.time);
    }
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

void LivesFold::allocate(const Event& event) {
  const auto block = static_cast<std::uint32_t>(lives_.blocks.size());
  const auto [at, added] = live_at_.try_emplace(event.address.value, block);
  if (!added) {  // the event in which the one before went back is missing
    end(at->second, event.time, kNone);
    at->second = block;
  }
  Life& life = lives_.blocks.emplace_back();
  life.address = event.address;
  life.bytes = event.bytes;
  life.requested = event.requested;
  life.heap = event.heap;
  life.stream = event.stream;
  life.pool = event.pool;
  if (life.pool == 0 && !pool_of_heap_.empty()) {
    const auto pool = pool_of_heap_.find(event.heap.value);
    if (pool != pool_of_heap_.end()) life.pool = pool->second;
  }
  life.stack = event.stack < recording_.stacks.size() ? event.stack : 0;
  life.begin = event.time;
  life.begin_event = now_;
  life.live_at_begin = now_ < recording_.initial;
  life.live_at_end = true;  // until it ends
  last_fence_.push_back(kNone);
  streams_.of(life.stream);
  if (life.pool != 0) pools_.of(life.pool);
  live_ += life.bytes;

  before_.clear();
  physical_.take(life.address, life.bytes, block, before_);
  for (const std::uint32_t before : before_) reuse(before, block);
  memory_changed(event.time);
}

void LivesFold::reuse(std::uint32_t before, std::uint32_t block) {
  Life& old = lives_.blocks[before];
  if (old.reused_by != kNone || old.live_at_end) return;
  old.reused_by = block;
  const std::uint64_t stream = lives_.blocks[block].stream;
  const std::uint32_t freed = old.end_event;
  old.waited_for = freed != kNone && has_waited(stream, old.stream, freed);
  for (std::uint32_t i = last_fence_[before]; i != kNone && !old.waited_for; i = fences_[i].next) {
    old.waited_for = has_waited(stream, fences_[i].taken.stream, fences_[i].event);
  }
}

// Whether `stream` was made to wait for `other`, alone or with all streams, after event `since`.
bool LivesFold::has_waited(std::uint64_t stream, std::uint64_t other, std::uint32_t since) {
  if (stream == other || waits_.empty()) return false;
  const std::uint64_t waiter = number_of(stream);
  const auto waited_for = [&](std::uint32_t number) {
    const auto wait = waits_.find(waiter << 32 | number);
    return wait != waits_.end() && wait->second > since;
  };
  return waited_for(number_of(other)) || waited_for(kAllStreams);
}

void LivesFold::deallocate(const Event& event) {
  const auto found = live_at_.find(event.address.value);
  if (found == live_at_.end()) return;
  end(found->second, event.time, now_);
  live_at_.erase(found);
  memory_changed(event.time);
}

void LivesFold::end(std::uint32_t block, Nanoseconds time, std::uint32_t event) {
  Life& life = lives_.blocks[block];
  life.end = time;
  life.end_event = event;
  life.live_at_end = false;
  live_ -= life.bytes;
}

void LivesFold::fence(const Event& event) {
  const auto found = live_at_.find(event.address.value);
  if (found == live_at_.end()) return;
  const std::uint32_t block = found->second;
  (void)number_of(event.other);
  fences_.push_back({block, now_, last_fence_[block], {event.time, event.other}});
  last_fence_[block] = static_cast<std::uint32_t>(fences_.size() - 1);
  ++lives_.blocks[block].fences;
}

// All streams together are none of the recording's streams.
std::uint32_t LivesFold::number_of(std::uint64_t stream) {
  return Stream{.id = stream}.is_all() ? kAllStreams : streams_.of(stream);
}

void LivesFold::memory_changed(Nanoseconds time) {
  if (now_ < recording_.initial) return;
  if (lives_.memory.empty()) change_ = kNone;
  lives_.memory.push_back({time, live_, reserved_, change_});
  if (live_ > lives_.peak_live.live || lives_.memory.size() == 1) {
    lives_.peak_live = lives_.memory.back();
  }
  const MemoryPoint& peak = lives_.peak_reserved;
  if (reserved_ > peak.reserved || (reserved_ == peak.reserved && live_ > peak.live) ||
      lives_.memory.size() == 1) {
    lives_.peak_reserved = lives_.memory.back();
  }
}

// From the order in which they were taken to one block after the other.
void LivesFold::sort_fences() {
  std::uint32_t first = 0;
  for (Life& life : lives_.blocks) {
    life.first_fence = first;
    first += life.fences;
  }
  lives_.fences.resize(first);
  std::vector<std::uint32_t> placed(lives_.blocks.size());
  for (const Fence& fence : fences_) {
    const Life& life = lives_.blocks[fence.block];
    lives_.fences[life.first_fence + placed[fence.block]++] = fence.taken;
  }
}

}  // namespace

Lives lives_of(const Recording& recording) { return LivesFold(recording).run(); }

}  // namespace weir
