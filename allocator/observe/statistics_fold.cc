// SPDX-License-Identifier: Apache-2.0
#include "observe/statistics_fold.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

namespace weir {
void Gauge::add(std::uint64_t n) {
  current += n;
  total += n;
  peak = std::max(peak, current);
}

void Gauge::subtract(std::uint64_t n) {
  assert(n <= current);
  current -= n;
}

void DeviceFold::count_lease(Bytes bytes, bool leased, bool plain) {
  const std::lock_guard lock(mutex_);
  lease(bytes, leased, plain);
}

void DeviceFold::lease(Bytes bytes, bool leased, bool plain) {
  const auto change = [&](Gauge& gauge) {
    leased ? gauge.add(bytes.count) : gauge.subtract(bytes.count);
  };
  change(rare_.leased_bytes);
  if (plain) change(rare_.plain_leased_bytes);
}

void DeviceFold::on_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  switch (event.kind) {
    case EventKind::create:
      rare_.pages.add(1);
      rare_.reserved_bytes.add(event.bytes.count);
      if (event.plain) rare_.plain_bytes.add(event.bytes.count);
      if (event.pool != 0) rare_.lent_bytes.add(event.bytes.count);
      break;
    case EventKind::release:
      rare_.pages.subtract(1);
      rare_.reserved_bytes.subtract(event.bytes.count);
      if (event.plain) rare_.plain_bytes.subtract(event.bytes.count);
      if (event.pool != 0) rare_.lent_bytes.subtract(event.bytes.count);
      break;
    case EventKind::keep:
      rare_.lent_bytes.subtract(event.bytes.count);
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
    case EventKind::unlease:
      lease(event.bytes, event.kind == EventKind::lease, event.plain);
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
    case EventKind::region_elsewhere:
      ++rare_.regions_elsewhere;
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
  peaks_ = bounds_;
  for (Gauge* gauge :
       {&rare_.leased_bytes, &rare_.reserved_bytes, &rare_.mapped_bytes, &rare_.pages,
        &rare_.mappings, &rare_.plain_bytes, &rare_.plain_leased_bytes, &rare_.lent_bytes}) {
    gauge->peak = gauge->current;
  }
}

// Its bounds are what it has.
void DeviceFold::publish(HeapFold& heap) {
  const Levels live = heap.live();
  for (std::size_t i = 0; i < kLevels; ++i) {
    bounds_[i] += live[i] - std::exchange(heap.levels_[i].bound, live[i]);
  }
}

// The sum of the bounds is above a peak, since `heap` raised its own.
void DeviceFold::raise_peaks(HeapFold& heap) {
  std::erase_if(lagging_, [&](HeapFold* each) { return each != &heap && lower(*each); });
  // The others are at work. They are read one after the other: what one frees once it was read, and
  // another has taken by the time that it is, would count twice. So all are read again, and each
  // counts for the lesser: what lasts is the same both times.
  for (HeapFold* each : lagging_) each->seen_ = each->live();
  Levels live = bounds_;
  for (const HeapFold* each : lagging_) {
    const Levels again = each->live();
    for (std::size_t i = 0; i < kLevels; ++i) {
      const std::uint64_t bound = each->levels_[i].bound;
      live[i] -= bound - std::min({bound, each->seen_[i], again[i]});
    }
  }
  for (std::size_t i = 0; i < kLevels; ++i) peaks_[i] = std::max(peaks_[i], live[i]);
}

// Not if it is at work on another thread.
bool DeviceFold::lower(HeapFold& heap) WEIR_NO_THREAD_ANALYSIS {
  if (heap.left_alone_ > 0) {
    --heap.left_alone_;
    return false;
  }
  if (heap.lock_ != nullptr && !heap.lock_->try_lock()) {
    heap.left_alone_ = kLeftAlone;
    return false;
  }
  publish(heap);
  heap.lags_ = false;
  if (heap.lock_ != nullptr) heap.lock_->unlock();
  return true;
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

HeapFold::HeapFold(DeviceFold& device, HeapId heap, std::uint64_t stream, bool plain, Mutex* lock)
    : device_(device), lock_(lock) {
  rare_.heap = heap;
  rare_.stream = stream;
  rare_.plain = plain;
}

HeapFold::~HeapFold() {
  const std::lock_guard lock(device_.mutex_);
  for (std::size_t i = 0; i < levels_.size(); ++i) device_.bounds_[i] -= levels_[i].bound;
  if (!lags_) return;
  // From the end: where all heaps go, the latest goes first.
  std::vector<HeapFold*>& list = device_.lagging_;
  list.erase(std::next(std::find(list.rbegin(), list.rend(), this)).base());
}

DeviceFold::Levels HeapFold::live() const {
  DeviceFold::Levels live;
  for (std::size_t i = 0; i < live.size(); ++i) {
    live[i] = levels_[i].current.load(std::memory_order_relaxed);
  }
  return live;
}

// Only those levels that are above their bounds: so the others' stay what the heap has had.
void HeapFold::raise() {
  const std::lock_guard lock(device_.mutex_);
  bool above = false;
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    Level& mine = levels_[i];
    const std::uint64_t current = level(i);
    if (current <= mine.bound) continue;
    device_.bounds_[i] += current - std::exchange(mine.bound, current);
    mine.peak = std::max(mine.peak, current);
    above = above || device_.bounds_[i] > device_.peaks_[i];
  }
  if (above) device_.raise_peaks(*this);
}

void HeapFold::join_lagging() {
  const std::lock_guard lock(device_.mutex_);
  device_.lagging_.push_back(this);
  lags_ = true;
}

void HeapFold::on_event(const Event& event) {
  assert(event.heap == rare_.heap);
  switch (event.kind) {
    case EventKind::allocate:
      rare_.stream = event.stream;  // news only where events are all that is known
      allocate(event.bytes, event.requested);
      publish();
      return;
    case EventKind::deallocate:
      lag();
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
  device_.publish(*this);
  for (Level& level : levels_) level.peak = level.bound;
}

HeapStatistics HeapFold::statistics() const {
  HeapStatistics all = rare_;
  const std::lock_guard lock(device_.mutex_);
  std::size_t i = 0;
  for (Gauge* gauge : {&all.live_blocks, &all.live_bytes, &all.requested_bytes}) {
    const Level& level = levels_[i++];
    *gauge = {level.current.load(std::memory_order_relaxed), level.peak, level.total};
  }
  return all;
}

void StatisticsFold::on_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  switch (event.kind) {
    case EventKind::create:
    case EventKind::release:
    case EventKind::keep:
    case EventKind::host_wait:
    case EventKind::trim:
    case EventKind::out_of_memory:
    case EventKind::context_events_lost:
    case EventKind::region_elsewhere:
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
