// SPDX-License-Identifier: Apache-2.0
#include "observe/statistics_fold.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace weir {
namespace {

// 20 us, more or less.
#if defined(__x86_64__)
constexpr std::uint64_t kTicksToPass = 50'000;
#else
constexpr std::uint64_t kTicksToPass = 20'000;
#endif

}  // namespace

void Gauge::add(std::uint64_t n) {
  current += n;
  total += n;
  peak = std::max(peak, current);
}

void Gauge::subtract(std::uint64_t n) {
  assert(n <= current);
  current -= n;
}

void DeviceFold::on_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  switch (event.kind) {
    case EventKind::create:
      rare_.pages.add(1);
      rare_.reserved_bytes.add(event.bytes.count);
      if (event.plain) rare_.plain_bytes.add(event.bytes.count);
      break;
    case EventKind::release:
      rare_.pages.subtract(1);
      rare_.reserved_bytes.subtract(event.bytes.count);
      if (event.plain) rare_.plain_bytes.subtract(event.bytes.count);
      break;
    case EventKind::map:
      rare_.mappings.add(1);
      rare_.mapped_bytes.add(event.bytes.count);
      break;
    case EventKind::unmap:
      rare_.mappings.subtract(1);
      rare_.mapped_bytes.subtract(event.bytes.count);
      break;
    case EventKind::lease:
      rare_.leased_bytes.add(event.bytes.count);
      if (event.plain) rare_.plain_leased_bytes.add(event.bytes.count);
      break;
    case EventKind::unlease:
      rare_.leased_bytes.subtract(event.bytes.count);
      if (event.plain) rare_.plain_leased_bytes.subtract(event.bytes.count);
      break;
    case EventKind::host_wait:
      ++rare_.host_waits;
      break;
    case EventKind::stream_wait:  // of no heap's request
      ++rare_.stream_waits;
      rare_.context_waits += Stream{.id = event.other}.is_all() ? 1 : 0;
      break;
    case EventKind::trim:
      rare_.trimmed_bytes += event.bytes.count;
      break;
    case EventKind::out_of_memory:
      ++rare_.out_of_memory;
      break;
    case EventKind::context_events_lost:
      if (event.other < rare_.context_events_lost.size()) {
        ++rare_.context_events_lost[event.other];
      }
      break;
    default:
      break;
  }
}

void DeviceFold::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < kLevels; ++i) {
    // The heaps' own with it: one above the device's would let rises pass.
    for (HeapFold* heap : heaps_) heap->levels_[i].peak.store(0, std::memory_order_relaxed);
    peaks_[i] = lower_ceilings(i);
  }
  for (Gauge* gauge :
       {&rare_.leased_bytes, &rare_.reserved_bytes, &rare_.mapped_bytes, &rare_.pages,
        &rare_.mappings, &rare_.plain_bytes, &rare_.plain_leased_bytes}) {
    gauge->peak = gauge->current;
  }
}

void DeviceFold::add(HeapFold& heap) {
  const std::lock_guard lock(mutex_);
  heaps_.push_back(&heap);
}

void DeviceFold::remove(HeapFold& heap) {
  const std::lock_guard lock(mutex_);
  for (std::vector<HeapFold*>* const list : {&heaps_, &awake_}) {
    // From the end: where all heaps go, the latest goes first.
    const auto found = std::find(list->rbegin(), list->rend(), &heap);
    if (found != list->rend()) list->erase(std::next(found).base());
  }
}

void DeviceFold::wake(HeapFold& heap) {
  if (heap.idle_looks_ == HeapFold::kAsleep) awake_.push_back(&heap);
  heap.idle_looks_ = 0;
}

void DeviceFold::raise(HeapFold& heap) {
  const std::lock_guard lock(mutex_);
  add_up(heap, /*whatever_passed=*/owed_at_.load(std::memory_order_relaxed) != kNever);
}

void DeviceFold::settle(HeapFold& heap) {
  const std::lock_guard lock(mutex_);
  if (heap.owes()) add_up(heap, /*whatever_passed=*/true);
}

// Those levels of which the heap is above its ceiling; or all, since another heap may be above its.
void DeviceFold::add_up(HeapFold& heap, bool whatever_passed) {
  wake(heap);
  std::erase_if(awake_, [](HeapFold* each) { return each->falls_asleep(); });
  if (whatever_passed) {
    // Before the levels are read: a rise that passes meanwhile is either seen, or owed anew.
    (void)owed_at_.exchange(kNever, std::memory_order_acq_rel);
  }
  bool risen = false;
  for (std::size_t i = 0; i < kLevels; ++i) {
    const HeapFold::Level& level = heap.levels_[i];
    if (!whatever_passed && level.current.load(std::memory_order_relaxed) <=
                                level.ceiling.load(std::memory_order_relaxed)) {
      continue;
    }
    const std::uint64_t now = lower_ceilings(i);
    risen = risen || now > peaks_[i];
    peaks_[i] = std::max(peaks_[i], now);
    share_headroom(i, peaks_[i] - now);
  }
  const std::thread::id me = std::this_thread::get_id();
  const bool by_another = std::exchange(raised_by_, me) != me;
  heap.passes_until_.store(by_another && !risen ? ticks() + kTicksToPass * awake_.size() : 0,
                           std::memory_order_relaxed);
}

// To the levels as they are; returns their sum. They are read one after the other, while others
// rise and fall: what a heap gives back once it was read, and another has by the time that it is,
// would count twice. So all are read again, and each counts for the lesser: what lasts is the same
// both times.
std::uint64_t DeviceFold::lower_ceilings(std::size_t i) {
  for (HeapFold* heap : awake_) {
    HeapFold::Level& level = heap->levels_[i];
    const std::uint64_t current = level.current.load(std::memory_order_relaxed);
    // Its heap may not have looked yet, and would then find itself below the ceiling.
    if (current > level.peak.load(std::memory_order_relaxed)) {
      level.peak.store(current, std::memory_order_relaxed);
    }
    level.ceiling.store(current, std::memory_order_relaxed);
  }
  std::uint64_t sum = 0;
  for (HeapFold* heap : awake_) {
    HeapFold::Level& level = heap->levels_[i];
    const std::uint64_t lesser = std::min(level.current.load(std::memory_order_relaxed),
                                          level.ceiling.load(std::memory_order_relaxed));
    level.ceiling.store(lesser, std::memory_order_relaxed);
    sum += lesser;
  }
  return sum;
}

// Everybody gets an equal share, up to the heap's own peak; then the first get what is left.
void DeviceFold::share_headroom(std::size_t i, std::uint64_t headroom) {
  for (std::uint64_t share : {headroom / std::max<std::size_t>(awake_.size(), 1), headroom}) {
    for (HeapFold* heap : awake_) {
      if (heap->idle_looks_ >= HeapFold::kIdle) continue;
      HeapFold::Level& level = heap->levels_[i];
      const std::uint64_t ceiling = level.ceiling.load(std::memory_order_relaxed);
      const std::uint64_t peak = level.peak.load(std::memory_order_relaxed);
      const std::uint64_t wanted = peak - std::min(peak, ceiling);
      const std::uint64_t more = std::min({wanted, share, headroom});
      level.ceiling.store(ceiling + more, std::memory_order_relaxed);
      headroom -= more;
    }
  }
}

Statistics DeviceFold::combine(std::vector<HeapStatistics> heaps) const {
  const std::lock_guard lock(mutex_);
  Statistics all = rare_;
  for (const HeapStatistics& heap : heaps) {
    const std::array<std::pair<Gauge*, const Gauge*>, kLevels> gauges{
        {{&all.live_blocks, &heap.live_blocks},
         {&all.live_bytes, &heap.live_bytes},
         {&all.requested_bytes, &heap.requested_bytes}}};
    for (const auto& [sum, gauge] : gauges) {
      sum->current += gauge->current;
      sum->total += gauge->total;
    }
    if (heap.plain) all.plain_live_bytes += heap.live_bytes.current;
    all.fences += heap.fences;
    all.stream_waits += heap.stream_waits;
    all.context_waits += heap.context_waits;
  }
  std::size_t i = 0;
  for (Gauge* gauge : {&all.live_blocks, &all.live_bytes, &all.requested_bytes}) {
    // Once said, it stays so.
    gauge->peak = peaks_[i] = std::max(gauge->current, peaks_[i]);
    ++i;
  }
  all.heaps = std::move(heaps);
  return all;
}

HeapFold::HeapFold(DeviceFold& device, HeapId heap, std::uint64_t stream, bool plain)
    : device_(device) {
  rare_.heap = heap;
  rare_.stream = stream;
  rare_.plain = plain;
  device_.add(*this);
}

HeapFold::~HeapFold() { device_.remove(*this); }

bool HeapFold::falls_asleep() {
  const bool idle = std::all_of(levels_.begin(), levels_.end(), [](const Level& level) {
    return level.current.load(std::memory_order_relaxed) == 0;
  });
  idle_looks_ = idle ? idle_looks_ + 1 : 0;
  if (idle_looks_ == kIdle) {
    // Its next rise is above its ceilings, and does not pass.
    for (Level& level : levels_) level.ceiling.store(0, std::memory_order_relaxed);
    passes_until_.store(0, std::memory_order_relaxed);
  }
  return idle_looks_ == kAsleep;
}

// A rise that need not be looked at now.
bool HeapFold::passes() {
  const std::uint64_t until = passes_until_.load(std::memory_order_relaxed);
  if (until == 0 || ticks() >= until) return false;
  for (const Level& level : levels_) {
    if (level.current.load(std::memory_order_relaxed) >
        level.peak.load(std::memory_order_relaxed)) {
      return false;
    }
  }
  // Written even where it stays what it is: whoever adds everything up after this sees the level.
  std::uint64_t owed_at = device_.owed_at_.load(std::memory_order_relaxed);
  while (!device_.owed_at_.compare_exchange_weak(owed_at, std::min(owed_at, until),
                                                 std::memory_order_acq_rel)) {
  }
  return true;
}

void HeapFold::on_event(const Event& event) {
  assert(event.heap == rare_.heap);
  switch (event.kind) {
    case EventKind::allocate:
      rare_.stream = event.stream;  // news only where events are all that is known
      if (allocate(event.bytes, event.requested)) raise_peaks();
      return;
    case EventKind::deallocate:
      if (owes()) settle_peaks();
      deallocate(event.bytes, event.requested);
      return;
    case EventKind::fence:
      ++rare_.fences;
      return;
    case EventKind::stream_wait:
      ++rare_.stream_waits;
      rare_.context_waits += Stream{.id = event.other}.is_all() ? 1 : 0;
      return;
    default:
      device_.on_event(event);
  }
}

void HeapFold::reset_peaks() {
  const std::lock_guard lock(device_.mutex_);
  for (Level& level : levels_) {
    const std::uint64_t current = level.current.load(std::memory_order_relaxed);
    level.peak.store(current, std::memory_order_relaxed);
    level.ceiling.store(current, std::memory_order_relaxed);
  }
}

HeapStatistics HeapFold::statistics() const {
  HeapStatistics all = rare_;
  const std::lock_guard lock(device_.mutex_);
  std::size_t i = 0;
  for (Gauge* gauge : {&all.live_blocks, &all.live_bytes, &all.requested_bytes}) {
    const Level& level = levels_[i++];
    const std::uint64_t current = level.current.load(std::memory_order_relaxed);
    *gauge = {current, std::max(current, level.peak.load(std::memory_order_relaxed)), level.total};
  }
  return all;
}

void StatisticsFold::on_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  switch (event.kind) {
    case EventKind::create:
    case EventKind::release:
    case EventKind::host_wait:
    case EventKind::trim:
    case EventKind::out_of_memory:
    case EventKind::context_events_lost:
      device_.on_event(event);
      return;
    case EventKind::pool_open:
    case EventKind::pool_close:
    case EventKind::capture_begin:
    case EventKind::capture_end:
      return;
    case EventKind::heap_open:
      heaps_.try_emplace(event.heap, device_, event.heap, event.stream, event.plain);
      return;
    default:
      if (event.heap == kNoHeap) return device_.on_event(event);
      heaps_.try_emplace(event.heap, device_, event.heap, 0).first->second.on_event(event);
  }
}

Statistics StatisticsFold::statistics() const {
  const std::lock_guard lock(mutex_);
  std::vector<HeapStatistics> heaps;
  for (const auto& [id, heap] : heaps_) heaps.push_back(heap.statistics());
  return device_.combine(std::move(heaps));
}

}  // namespace weir
