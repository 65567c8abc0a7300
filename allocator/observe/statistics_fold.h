// SPDX-License-Identifier: Apache-2.0
// Events folded into statistics, sharded so that streams don't meet on a lock.
//
// A device heap keeps one DeviceFold, and one HeapFold beside each stream heap. Each event goes to
// exactly one of them: to the HeapFold of the heap that it names, which passes the device's share
// on, or to the DeviceFold when it names no heap (create, release, host_wait, trim, out_of_memory).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "core/base/mutex.h"
#include "weir/event.h"
#include "weir/statistics.h"
#include "weir/types.h"

namespace weir {

class HeapFold;

// The device-wide counters. Every call may be made from any thread, under any lock of the heap.
// Blocks are counted by the HeapFolds, without a line that all of them write; the rare events here,
// under a short lock.
//
// A peak of the device is the highest sum of its heaps' levels. So that no two heaps meet to find
// it, each has published a bound for each of its levels, and says nothing while it keeps to them:
// the bounds add up to the peak at most, so the peak stands. A heap that rises above a bound raises
// it. Where that would take the sum above the peak, the heaps that lag, whose levels have fallen
// since they published, first lower their bounds to what they have; then the sum is the new peak,
// if it is above the old one. A heap that did so lags no more until it frees a block. So each is
// asked once at most for all that it freed meanwhile, and streams that a program is done with cost
// the others nothing.
//
// That is exact while one thread at a time is at work. A heap that is found locked is at work on
// another thread: it counts for what it has just then, and keeps its bounds, the next few hundred
// times that it would be asked as well. For heaps that rise and fall together would lower each
// other's bounds for ever. What such a heap takes again within its bounds may be in no peak.
class DeviceFold {
 public:
  static constexpr std::size_t kLevels = 3;  // blocks, bytes, requested bytes
  using Levels = std::array<std::uint64_t, kLevels>;

  void on_event(const Event& event);
  // The same as events of pages that are leased, or are no more.
  void count_lease(Bytes bytes, bool leased, bool plain);
  // Once each heap's were, with the locks of all held.
  void reset_peaks();

  // The device's statistics. `heaps`: of all its heaps, by HeapId; sums over them are taken here.
  Statistics combine(std::vector<HeapStatistics> heaps) const;

 private:
  friend class HeapFold;
  // So many times a heap is not asked that was found locked.
  static constexpr int kLeftAlone = 256;

  // All with mutex_ held.
  void publish(HeapFold& heap);
  void raise_peaks(HeapFold& heap);
  bool lower(HeapFold& heap);

  void lease(Bytes bytes, bool leased, bool plain);  // mutex_ is held

  mutable std::mutex mutex_;
  Levels bounds_{};                 // guarded by mutex_: the heaps', added up
  mutable Levels peaks_{};          // guarded by mutex_
  std::vector<HeapFold*> lagging_;  // guarded by mutex_
  Statistics rare_;                 // guarded by mutex_; what on_event() counts
};

// The counters of one stream heap; that heap's lock guards them.
class HeapFold {
 public:
  // `device` must outlive this. `stream`: Stream::id. `lock`: the heap's; null where no two calls
  // for any heap of the device are ever made at the same time.
  HeapFold(DeviceFold& device, HeapId heap, std::uint64_t stream, bool plain = false,
           Mutex* lock = nullptr);
  ~HeapFold();
  HeapFold(const HeapFold&) = delete;
  HeapFold& operator=(const HeapFold&) = delete;

  // An event whose `heap` is this one (a stream_wait: whose waiting stream is this heap's).
  void on_event(const Event& event);
  // The two events that are not rare, without an Event. Before the lock is let go after an
  // allocation, publish() is called, unless there was room for it.
  // The levels with one more block.
  DeviceFold::Levels levels_with(Bytes bytes, Bytes requested) const {
    return {level(0) + 1, level(1) + bytes.count, level(2) + requested.count};
  }
  bool has_room(const DeviceFold::Levels& levels) const {
    return levels[0] <= levels_[0].bound && levels[1] <= levels_[1].bound &&
           levels[2] <= levels_[2].bound;
  }
  void allocate(Bytes bytes, Bytes requested) {
    allocate(levels_with(bytes, requested), bytes, requested);
  }
  // `levels`: levels_with() these.
  void allocate(const DeviceFold::Levels& levels, Bytes bytes, Bytes requested) {
    rise(0, levels[0], 1);
    rise(1, levels[1], bytes.count);
    rise(2, levels[2], requested.count);
  }
  void publish() {
    if (!has_room({level(0), level(1), level(2)})) raise();
  }
  // Before a deallocation, lag() is called, unless it lags().
  bool lags() const { return lags_; }
  void lag() {
    if (!lags_) join_lagging();
  }
  void deallocate(Bytes bytes, Bytes requested) {
    fall(0, 1);
    fall(1, bytes.count);
    fall(2, requested.count);
  }

  HeapId heap() const { return rare_.heap; }
  // Of the stream that its heap serves from now on.
  void set_stream(std::uint64_t stream) { rare_.stream = stream; }
  void reset_peaks();
  HeapStatistics statistics() const;
  // The same as the `total` of live_blocks and live_bytes.
  std::uint64_t blocks_in_all() const { return levels_[0].total; }
  std::uint64_t bytes_in_all() const { return levels_[1].total; }

 private:
  friend class DeviceFold;
  // `bound` and `lags_` are written with the heap's lock and the device's held, and read with
  // either. current <= bound <= peak, but for what is not published yet; current < bound only where
  // it lags.
  struct Level {
    std::atomic<std::uint64_t> current{0};  // read by any thread
    std::uint64_t bound = 0;
    std::uint64_t total = 0;
    std::uint64_t peak = 0;  // the device's lock guards it
  };

  void raise();
  void join_lagging();
  DeviceFold::Levels live() const;

  std::uint64_t level(std::size_t which) const {
    return levels_[which].current.load(std::memory_order_relaxed);
  }
  void rise(std::size_t which, std::uint64_t to, std::uint64_t by) {
    levels_[which].current.store(to, std::memory_order_relaxed);
    levels_[which].total += by;
  }
  void fall(std::size_t which, std::uint64_t by) {
    levels_[which].current.store(level(which) - by, std::memory_order_relaxed);
  }

  DeviceFold& device_;
  Mutex* const lock_;
  alignas(64) std::array<Level, DeviceFold::kLevels> levels_;
  bool lags_ = false;
  int left_alone_ = 0;         // the device's lock guards these two
  DeviceFold::Levels seen_{};  // in the look that goes on
  HeapStatistics rare_;        // what on_event() counts apart from the levels
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
