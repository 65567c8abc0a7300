// SPDX-License-Identifier: Apache-2.0
// Peaks of the device and of its heaps: exact, though no two heaps meet to find them each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "observe/statistics_fold.h"

namespace weir {
namespace {

void allocate(HeapFold& heap, Bytes bytes, Bytes requested) {
  heap.allocate(bytes, requested);
  heap.publish();
}

void deallocate(HeapFold& heap, Bytes bytes, Bytes requested) {
  heap.lag();
  heap.deallocate(bytes, requested);
}

// The folds of a device's heaps, each with its lock, as threads use them.
class LockedFolds {
 public:
  explicit LockedFolds(std::uint32_t heaps) : locks_(heaps) {
    for (std::uint32_t i = 0; i < heaps; ++i)
      folds_.emplace_back(device, HeapId{i}, i, false, &locks_[i]);
  }
  void allocate(std::size_t heap, Bytes bytes) {
    const MutexLock lock(locks_[heap]);
    weir::allocate(folds_[heap], bytes, bytes);
  }
  void deallocate(std::size_t heap, Bytes bytes) {
    const MutexLock lock(locks_[heap]);
    weir::deallocate(folds_[heap], bytes, bytes);
  }
  std::size_t size() const { return folds_.size(); }
  // While no thread is at work.
  Statistics statistics() const {
    std::vector<HeapStatistics> parts;
    for (const HeapFold& fold : folds_) parts.push_back(fold.statistics());
    return device.combine(parts);
  }

  DeviceFold device;

 private:
  std::vector<Mutex> locks_;
  std::deque<HeapFold> folds_;
};

// What the statistics say, counted without folds: the device's gauges and each heap's.
struct NaiveStatistics {
  Gauge live_blocks, live_bytes, requested_bytes;
  std::vector<HeapStatistics> heaps;

  void allocate(std::size_t i, Bytes bytes, Bytes requested) {
    for (Gauge* gauge : {&live_blocks, &heaps[i].live_blocks}) gauge->add(1);
    for (Gauge* gauge : {&live_bytes, &heaps[i].live_bytes}) gauge->add(bytes.count);
    for (Gauge* gauge : {&requested_bytes, &heaps[i].requested_bytes}) gauge->add(requested.count);
  }
  void deallocate(std::size_t i, Bytes bytes, Bytes requested) {
    for (Gauge* gauge : {&live_blocks, &heaps[i].live_blocks}) gauge->subtract(1);
    for (Gauge* gauge : {&live_bytes, &heaps[i].live_bytes}) gauge->subtract(bytes.count);
    for (Gauge* gauge : {&requested_bytes, &heaps[i].requested_bytes}) {
      gauge->subtract(requested.count);
    }
  }
  void reset_peaks() {
    const auto reset = [](auto& all) {
      for (Gauge* gauge : {&all.live_blocks, &all.live_bytes, &all.requested_bytes}) {
        gauge->peak = gauge->current;
      }
    };
    reset(*this);
    for (HeapStatistics& heap : heaps) reset(heap);
  }
};

// Blocks of up to 20 heaps, which come one after the other. Some heaps do much, some little; now
// and then nearly all is freed, and peaks start anew.
class PeaksProgram {
 public:
  explicit PeaksProgram(std::uint64_t seed) : random_(seed), most_heaps_(1 + seed % 20) {}

  void step() {
    if (folds_.empty() || (folds_.size() < most_heaps_ && random_() % 40 == 0)) add_heap();
    if (random_() % 300 == 0) shrinking_ = !shrinking_;
    if (random_() % 400 == 0) reset_peaks();
    if (!blocks_.empty() && random_() % 8 < (shrinking_ ? 6 : 3)) {
      deallocate();
    } else {
      allocate_some();
    }
  }
  void check() const {
    std::vector<HeapStatistics> parts;
    for (const HeapFold& fold : folds_) parts.push_back(fold.statistics());
    ASSERT_EQ(parts, expected_.heaps);
    const Statistics all = device_.combine(parts);
    ASSERT_EQ(all.live_blocks, expected_.live_blocks);
    ASSERT_EQ(all.live_bytes, expected_.live_bytes);
    ASSERT_EQ(all.requested_bytes, expected_.requested_bytes);
    ASSERT_EQ(all.heaps, expected_.heaps);
  }

 private:
  struct Live {
    std::size_t heap;
    Bytes bytes, requested;
  };
  void add_heap() {
    const HeapId id{static_cast<std::uint32_t>(folds_.size())};
    folds_.emplace_back(device_, id, id.value + 10);
    expected_.heaps.push_back({.heap = id, .stream = id.value + 10});
  }
  void allocate_some() {
    // The first heaps are asked most.
    const std::size_t heap = random_() % (1 + random_() % folds_.size());
    const Bytes requested{1 + random_() % (random_() % 10 == 0 ? 1'000'000 : 5'000)};
    const Bytes bytes = round_up(requested, kGrain);
    allocate(folds_[heap], bytes, requested);
    expected_.allocate(heap, bytes, requested);
    blocks_.push_back({heap, bytes, requested});
  }
  void deallocate() {
    std::swap(blocks_[random_() % blocks_.size()], blocks_.back());
    const auto [heap, bytes, requested] = blocks_.back();
    blocks_.pop_back();
    weir::deallocate(folds_[heap], bytes, requested);
    expected_.deallocate(heap, bytes, requested);
  }
  void reset_peaks() {
    for (HeapFold& fold : folds_) fold.reset_peaks();
    device_.reset_peaks();
    expected_.reset_peaks();
  }

  std::mt19937_64 random_;
  const std::size_t most_heaps_;
  bool shrinking_ = false;
  DeviceFold device_;
  std::deque<HeapFold> folds_;
  std::vector<Live> blocks_;
  NaiveStatistics expected_;
};

TEST(DeviceFold, PeaksAreExactInEverySequentialProgram) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PeaksProgram program(seed);
    for (int i = 0; i < 4000; ++i) {
      program.step();
      // Not after every step: to look must not be what keeps the peaks right.
      if (seed % 2 == 0 || i % 97 == 0) program.check();
      if (testing::Test::HasFatalFailure()) return;
    }
    program.check();
  }
}

TEST(DeviceFold, PeaksAreExactWhereHeapsAreLeftAloneAndUsedAgain) {
  DeviceFold device;
  std::deque<HeapFold> heaps;
  for (std::uint32_t i = 0; i < 50; ++i) heaps.emplace_back(device, HeapId{i}, i);
  std::mt19937_64 random(1);
  std::uint64_t live = 0, peak = 0;
  for (int turn = 0; turn < 400; ++turn) {
    HeapFold& heap = heaps[random() % heaps.size()];
    std::vector<Bytes> blocks;
    for (int i = 0; i < 20; ++i) {
      blocks.push_back(kGrain * (1 + random() % 2000));
      allocate(heap, blocks.back(), blocks.back());
      live += blocks.back().count;
      peak = std::max(peak, live);
    }
    // One block in twenty turns stays for good, and the next heap takes over.
    for (std::size_t i = random() % 20 == 0 ? 1 : 0; i < blocks.size(); ++i) {
      deallocate(heap, blocks[i], blocks[i]);
      live -= blocks[i].count;
    }
    std::vector<HeapStatistics> parts;
    for (const HeapFold& each : heaps) parts.push_back(each.statistics());
    const Statistics all = device.combine(parts);
    ASSERT_EQ(all.live_bytes.current, live) << "turn " << turn;
    ASSERT_EQ(all.live_bytes.peak, peak) << "turn " << turn;
  }
}

TEST(DeviceFold, AHeapThatIsGoneTakesNoPartInLaterPeaks) {
  DeviceFold device;
  HeapFold stays(device, HeapId{0}, 10);
  {
    HeapFold gone(device, HeapId{1}, 11);
    allocate(gone, 4_KiB, 4_KiB);
    allocate(stays, 1_KiB, 1_KiB);
  }
  allocate(stays, 5_KiB, 5_KiB);
  const Statistics all = device.combine({stays.statistics()});
  EXPECT_EQ(all.live_bytes, (Gauge{6144, 6144, 6144}));
  EXPECT_EQ(all.live_blocks, (Gauge{2, 2, 2}));
}

// It keeps its bounds where it was found at work, but not for ever.
TEST(DeviceFold, AHeapThatWasFoundAtWorkIsAskedAgainLater) {
  DeviceFold device;
  Mutex locks[2];
  HeapFold mine(device, HeapId{0}, 10, false, &locks[0]);
  HeapFold other(device, HeapId{1}, 11, false, &locks[1]);
  allocate(other, 10_GiB, 10_GiB);
  deallocate(other, 10_GiB, 10_GiB);
  {
    const MutexLock at_work(locks[1]);
    allocate(mine, 5_GiB, 5_GiB);
    EXPECT_EQ(device.combine({}).live_bytes.peak, (10_GiB).count);
  }
  for (std::uint64_t i = 0; i < 1000; ++i) allocate(mine, 5_GiB, 5_GiB);
  const std::uint64_t peak = (5_GiB).count * 1001;
  EXPECT_EQ(device.combine({}).live_bytes.peak, peak);
  allocate(other, 10_GiB, 10_GiB);
  EXPECT_EQ(device.combine({}).live_bytes.peak, peak + (10_GiB).count);
}

TEST(DeviceFold, PeaksOfManyThreadsLieBetweenWhatWasReachedForSureAndWhatMayHaveBeen) {
  constexpr std::uint32_t kThreads = 8;
  constexpr int kRounds = 3000;
  LockedFolds heaps(kThreads);
  std::vector<std::uint64_t> highest(kThreads);  // of each heap
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&heaps, &most = highest[i], i] {
      std::mt19937_64 random(i);
      std::vector<Bytes> live;
      std::uint64_t now = 0;
      for (int round = 0; round < kRounds; ++round) {
        if (!live.empty() && random() % 9 < 4) {
          heaps.deallocate(i, live.back());
          now -= live.back().count;
          live.pop_back();
        } else {
          live.push_back(kGrain * (1 + random() % 100));
          heaps.allocate(i, live.back());
          most = std::max(most, now += live.back().count);
        }
      }
      for (const Bytes bytes : live) heaps.deallocate(i, bytes);
    });
  }
  std::thread reader([&] {
    std::uint64_t peak = 0;
    while (!done.load()) {
      const std::uint64_t now = heaps.device.combine({}).live_bytes.peak;
      EXPECT_GE(now, peak);  // a peak never falls
      peak = now;
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  reader.join();

  const Statistics all = heaps.statistics();
  std::uint64_t sum = 0;
  for (const std::uint64_t most : highest) sum += most;
  EXPECT_EQ(all.live_bytes.current, 0u);
  EXPECT_GE(all.live_bytes.peak, *std::max_element(highest.begin(), highest.end()));
  EXPECT_LE(all.live_bytes.peak, sum);
  // A heap has one thread at a time: its own peak is exact.
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(all.heaps[i].live_bytes.peak, highest[i]);
  }

  // Whatever was missed, a rise above all before is seen.
  for (std::size_t i = 0; i < kThreads; ++i) heaps.allocate(i, 64_MiB);
  for (std::size_t i = 0; i < kThreads; ++i) heaps.deallocate(i, 64_MiB);
  ASSERT_LT(sum, (64_MiB * kThreads).count);
  EXPECT_EQ(heaps.statistics().live_bytes.peak, (64_MiB * kThreads).count);
}

}  // namespace
}  // namespace weir
