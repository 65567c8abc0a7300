#include "observe/statistics_fold.h"

#include <algorithm>
#include <cassert>
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

void SharedLevel::add(std::uint64_t n) {
  const std::uint64_t level = current_.fetch_add(n, std::memory_order_relaxed) + n;
  std::uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (level > peak && !peak_.compare_exchange_weak(peak, level, std::memory_order_relaxed)) {
  }
}

Gauge SharedLevel::gauge(std::uint64_t total) const {
  const std::uint64_t current = current_.load(std::memory_order_relaxed);
  return {current, std::max(current, peak_.load(std::memory_order_relaxed)), total};
}

void DeviceFold::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::allocate:
      live_blocks_.add(1);
      live_bytes_.add(event.bytes.count);
      requested_bytes_.add(event.requested.count);
      return;
    case EventKind::deallocate:
      live_blocks_.subtract(1);
      live_bytes_.subtract(event.bytes.count);
      requested_bytes_.subtract(event.requested.count);
      return;
    case EventKind::fence:
    case EventKind::stream_wait:
      return;  // summed over the heaps in combine()
    default:
      break;
  }
  const std::lock_guard lock(mutex_);
  switch (event.kind) {
    case EventKind::create:
      rare_.pages.add(1);
      rare_.reserved_bytes.add(event.bytes.count);
      break;
    case EventKind::release:
      rare_.pages.subtract(1);
      rare_.reserved_bytes.subtract(event.bytes.count);
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
      break;
    case EventKind::unlease:
      rare_.leased_bytes.subtract(event.bytes.count);
      break;
    case EventKind::host_wait:
      ++rare_.host_waits;
      break;
    case EventKind::trim:
      rare_.trimmed_bytes += event.bytes.count;
      break;
    case EventKind::out_of_memory:
      ++rare_.out_of_memory;
      break;
    default:
      break;
  }
}

void DeviceFold::reset_peaks() {
  for (SharedLevel* level : {&live_blocks_, &live_bytes_, &requested_bytes_}) level->reset_peak();
  const std::lock_guard lock(mutex_);
  for (Gauge* gauge : {&rare_.leased_bytes, &rare_.reserved_bytes, &rare_.mapped_bytes,
                       &rare_.pages, &rare_.mappings}) {
    gauge->peak = gauge->current;
  }
}

Statistics DeviceFold::combine(std::vector<HeapStatistics> heaps) const {
  Statistics all = [this] {
    const std::lock_guard lock(mutex_);
    return rare_;
  }();
  std::uint64_t blocks = 0, bytes = 0, requested = 0;
  for (const HeapStatistics& heap : heaps) {
    blocks += heap.live_blocks.total;
    bytes += heap.live_bytes.total;
    requested += heap.requested_bytes.total;
    all.fences += heap.fences;
    all.stream_waits += heap.stream_waits;
  }
  all.live_blocks = live_blocks_.gauge(blocks);
  all.live_bytes = live_bytes_.gauge(bytes);
  all.requested_bytes = requested_bytes_.gauge(requested);
  all.heaps = std::move(heaps);
  return all;
}

HeapFold::HeapFold(DeviceFold& device, HeapId heap, std::uint64_t stream) : device_(device) {
  statistics_.heap = heap;
  statistics_.stream = stream;
}

void HeapFold::on_event(const Event& event) {
  assert(event.heap == statistics_.heap);
  switch (event.kind) {
    case EventKind::allocate:
      statistics_.stream = event.stream;  // news only where events are all that is known
      statistics_.live_blocks.add(1);
      statistics_.live_bytes.add(event.bytes.count);
      statistics_.requested_bytes.add(event.requested.count);
      break;
    case EventKind::deallocate:
      statistics_.live_blocks.subtract(1);
      statistics_.live_bytes.subtract(event.bytes.count);
      statistics_.requested_bytes.subtract(event.requested.count);
      break;
    case EventKind::fence:
      ++statistics_.fences;
      break;
    case EventKind::stream_wait:
      ++statistics_.stream_waits;
      break;
    case EventKind::lease:
      statistics_.leased_bytes.add(event.bytes.count);
      break;
    case EventKind::unlease:
      statistics_.leased_bytes.subtract(event.bytes.count);
      break;
    default:
      break;
  }
  device_.on_event(event);
}

void HeapFold::reset_peaks() {
  for (Gauge* gauge : {&statistics_.live_blocks, &statistics_.live_bytes,
                       &statistics_.requested_bytes, &statistics_.leased_bytes}) {
    gauge->peak = gauge->current;
  }
}

void StatisticsFold::on_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  switch (event.kind) {
    case EventKind::create:
    case EventKind::release:
    case EventKind::host_wait:
    case EventKind::trim:
    case EventKind::out_of_memory:
      device_.on_event(event);
      return;
    default:
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
