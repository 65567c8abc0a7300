// SPDX-License-Identifier: Apache-2.0
// Peaks of the device and of its heaps: exact, though no two heaps meet to find them each time.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>
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

}  // namespace
}  // namespace weir
