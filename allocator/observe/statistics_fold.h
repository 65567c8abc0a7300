// SPDX-License-Identifier: Apache-2.0
// Events folded into statistics, sharded so that streams don't meet on a lock.
//
// A device heap keeps one DeviceFold, and one HeapFold beside each stream heap. Each event goes to
// exactly one of them: to the HeapFold of the heap that it names, which passes the device's share
// on, or to the DeviceFold when it names no heap (create, release, host_wait, trim, out_of_memory).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "weir/event.h"
#include "weir/statistics.h"
#include "weir/types.h"

namespace weir {

class HeapFold;

// A clock that costs next to nothing.
#if defined(__x86_64__)
inline std::uint64_t ticks() { return __builtin_ia32_rdtsc(); }
#else
inline std::uint64_t ticks() {
  using std::chrono::steady_clock;
  return static_cast<std::uint64_t>(steady_clock::now().time_since_epoch() /
                                    std::chrono::nanoseconds(1));
}
#endif

// The device-wide counters. Every call may be made from any thread, under any lock of the heap.
// Blocks are counted by the HeapFolds, without a line that all of them write; the rare events here,
// under a short lock.
class DeviceFold {
 public:
  void on_event(const Event& event);
  // Its heaps' too, but for what is rare there. Other threads' changes meanwhile count for the new
  // peaks or not at all.
  void reset_peaks();

  // The device's statistics. `heaps`: of all its heaps, by HeapId; sums over them are taken here.
  Statistics combine(std::vector<HeapStatistics> heaps) const;

 private:
  friend class HeapFold;
  static constexpr std::size_t kLevels = 3;  // blocks, bytes, requested bytes
  using Levels = std::array<std::uint64_t, kLevels>;

  void add(HeapFold& heap);
  void remove(HeapFold& heap);
  // Some level of `heap` rose above its ceiling.
  void raise(HeapFold& heap);
  // `heap` saw that a look is owed. Once this returns it was taken, by whatever thread.
  void settle(HeapFold& heap);
  void wake(HeapFold& heap);
  void add_up(HeapFold& heap, bool whatever_passed);
  std::uint64_t lower_ceilings(std::size_t level);
  void share_headroom(std::size_t level, std::uint64_t headroom);

  mutable std::mutex mutex_;
  std::vector<HeapFold*> heaps_;  // guarded by mutex_
  std::vector<HeapFold*> awake_;  // guarded by mutex_: those of heaps_ that sums are taken over
  mutable Levels peaks_{};        // guarded by mutex_: the highest sums over heaps_ that were seen
  std::thread::id raised_by_;     // guarded by mutex_: who added everything up the last time
  Statistics rare_;               // guarded by mutex_; what on_event() counts

  // When the first rise that passed since everything was added up has to be looked at, in ticks;
  // never: none did. On a line of its own, since all read it and few write.
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  alignas(64) std::atomic<std::uint64_t> owed_at_{kNever};
};

// The counters of one stream heap; that heap's lock guards them.
//
// A peak of the device is the highest sum of its heaps' levels. So that no two heaps meet to find
// it, each has a ceiling for each level: the ceilings add up to the device's peak at most, and as
// long as every heap keeps below its own, the peak stands. Only a heap that rises above its ceiling
// adds everything up, and shares out anew what there is below the peak. A heap in which nothing was
// live the last few times that sums were taken is left out of them, with ceilings of zero, until
// its next allocation: so streams that a program is done with cost the others nothing.
//
// That is exact while one thread at a time is at work. Threads that rise and fall together would
// find their ceilings too low again and again: there is no room for all of them below a peak that
// few of them made. So a heap that added everything up for nothing, after another thread had done
// so, lets what it rises pass for some 20 us times the number of heaps: one heap adds up in 20 us.
// What has lasted longer is added up before any heap falls; only a peak of the device that was
// shorter can be missed. A heap's own peak never is.
class HeapFold {
 public:
  // `device` must outlive this. `stream`: Stream::id.
  HeapFold(DeviceFold& device, HeapId heap, std::uint64_t stream, bool plain = false);
  ~HeapFold();
  HeapFold(const HeapFold&) = delete;
  HeapFold& operator=(const HeapFold&) = delete;

  // An event whose `heap` is this one (a stream_wait: whose waiting stream is this heap's).
  void on_event(const Event& event);
  // The two events that are not rare, without an Event. After an allocation that returns true the
  // caller calls raise_peaks(), with or without the heap's lock.
  bool allocate(Bytes bytes, Bytes requested) {
    const bool blocks_above = rise(0, 1);
    const bool bytes_above = rise(1, bytes.count);
    const bool requested_above = rise(2, requested.count);
    return blocks_above || bytes_above || requested_above;
  }
  void raise_peaks() {
    if (!passes()) device_.raise(*this);
  }
  // Before a call of deallocate(): did a rise of some heap pass that has lasted so long that
  // settle_peaks() must be called first?
  bool owes() const {
    const std::uint64_t at = device_.owed_at_.load(std::memory_order_relaxed);
    return at != DeviceFold::kNever && ticks() >= at;
  }
  void settle_peaks() { device_.settle(*this); }
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
  // Written under the heap's lock, read by any thread.
  struct Level {
    std::atomic<std::uint64_t> current{0};
    std::atomic<std::uint64_t> ceiling{0};  // current <= ceiling <= peak; the device's lock guards
    std::uint64_t total = 0;
    std::atomic<std::uint64_t> peak{0};  // the device's lock guards writing
  };

  // Nothing was live in it so many times that everything was added up; then its ceilings stay at
  // zero, so that its next rise is looked at; and then it is left out.
  static constexpr int kIdle = 4, kAsleep = 8;

  bool passes();
  // To be asked once each time that everything is added up.
  bool falls_asleep();

  // Returns whether the level is above its ceiling now.
  bool rise(std::size_t level, std::uint64_t n) {
    Level& mine = levels_[level];
    const std::uint64_t current = mine.current.load(std::memory_order_relaxed) + n;
    mine.current.store(current, std::memory_order_relaxed);
    mine.total += n;
    return current > mine.ceiling.load(std::memory_order_relaxed);
  }
  void fall(std::size_t level, std::uint64_t n) {
    Level& mine = levels_[level];
    const std::uint64_t current = mine.current.load(std::memory_order_relaxed);
    mine.current.store(current - n, std::memory_order_relaxed);
  }

  DeviceFold& device_;
  alignas(64) std::array<Level, DeviceFold::kLevels> levels_;
  std::atomic<std::uint64_t> passes_until_{0};  // a time, in ticks
  int idle_looks_ = kAsleep;                    // kAsleep: it is not in awake_; the device's lock
  HeapStatistics rare_;                         // what on_event() counts apart from the levels
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
