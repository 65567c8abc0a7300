// Events folded into statistics, sharded so that streams don't meet on a lock.
//
// A device heap keeps one DeviceFold, and one HeapFold beside each stream heap. Each event goes to
// exactly one of them: to the HeapFold of the heap that it names, which passes the device's share
// on, or to the DeviceFold when it names no heap (create, release, host_wait, trim, out_of_memory).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "weir/event.h"
#include "weir/statistics.h"
#include "weir/types.h"

namespace weir {

// The level of a quantity that many threads move, and the highest level it ever had: exact, since
// each change sees the level that it made. Self-synchronised, without a lock.
class SharedLevel {
 public:
  void add(std::uint64_t n);
  void subtract(std::uint64_t n) { current_.fetch_sub(n, std::memory_order_relaxed); }
  // Changes made by other threads meanwhile count for the new peak or not at all.
  void reset_peak() { peak_.store(current_.load(std::memory_order_relaxed)); }

  // With `total`, which the caller knows from elsewhere.
  Gauge gauge(std::uint64_t total) const;

 private:
  std::atomic<std::uint64_t> current_{0};
  std::atomic<std::uint64_t> peak_{0};
};

// The device-wide counters. Every call may be made from any thread, under any lock of the heap:
// the events of a block's life (allocate, deallocate) take no lock, the rare ones a short one.
class DeviceFold {
 public:
  void on_event(const Event& event);
  void reset_peaks();

  // The device's statistics. `heaps`: of all its heaps, by HeapId; sums over them are taken here.
  Statistics combine(std::vector<HeapStatistics> heaps) const;

 private:
  // Self-synchronised. On lines of their own: every thread that allocates writes them.
  alignas(64) SharedLevel live_blocks_;
  SharedLevel live_bytes_;
  SharedLevel requested_bytes_;

  alignas(64) mutable std::mutex mutex_;
  Statistics rare_;  // guarded by mutex_; what on_event() counts apart from the three above
};

// The counters of one stream heap. Guarded by that heap's lock.
class HeapFold {
 public:
  // `device` must outlive this. `stream`: Stream::id.
  HeapFold(DeviceFold& device, HeapId heap, std::uint64_t stream);

  // An event whose `heap` is this one (a stream_wait: whose waiting stream is this heap's).
  void on_event(const Event& event);
  void reset_peaks();
  const HeapStatistics& statistics() const { return statistics_; }

 private:
  DeviceFold& device_;
  HeapStatistics statistics_;
};

// The whole fold in one piece: statistics from nothing but the events of a device heap, in order.
// Self-synchronised.
class StatisticsFold final : public EventSink {
 public:
  void on_event(const Event& event) override;
  Statistics statistics() const;

 private:
  mutable std::mutex mutex_;
  DeviceFold device_;                 // guarded by mutex_
  std::map<HeapId, HeapFold> heaps_;  // guarded by mutex_
};

}  // namespace weir
