// SPDX-License-Identifier: Apache-2.0
#include "observe/statistics_fold.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

namespace weir {
namespace {

Event event(EventKind kind, HeapId heap = {}) {
  Event event;
  event.kind = kind;
  event.heap = heap;
  return event;
}

Event block(EventKind kind, HeapId heap, Bytes bytes, Bytes requested) {
  Event of_block = event(kind, heap);
  of_block.stream = heap.value + 10;
  of_block.bytes = bytes;
  of_block.requested = requested;
  return of_block;
}

Event page(EventKind kind, Bytes bytes, HeapId heap = {}) {
  Event of_page = event(kind, heap);
  of_page.bytes = bytes;
  return of_page;
}

TEST(StatisticsFold, AddsUpPlainMemoryOfSeveralHeaps) {
  StatisticsFold fold;
  for (const std::uint32_t i : {0u, 1u}) {
    const HeapId heap{i};
    fold.on_event({.kind = EventKind::heap_open, .plain = true, .heap = heap, .stream = 4 + i});
    fold.on_event(block(EventKind::allocate, heap, Bytes{1024 * (i + 1)}, 1000_B));
  }
  EXPECT_EQ(fold.statistics().plain_live_bytes, 3072u);
  EXPECT_EQ(fold.statistics().live_bytes.current, 3072u);
}

TEST(StatisticsFold, CountsWaitsForTheWorkOfAllStreamsApart) {
  StatisticsFold fold;
  for (const HeapId heap : {HeapId{0}, kNoHeap}) {
    Event wait = event(EventKind::stream_wait, heap);
    wait.other = 3;
    fold.on_event(wait);
    wait.other = Stream::all().id;
    fold.on_event(wait);
    fold.on_event(wait);
  }
  const Statistics all = fold.statistics();
  EXPECT_EQ(all.stream_waits, 6u);
  EXPECT_EQ(all.context_waits, 4u);
  ASSERT_EQ(all.heaps.size(), 1u);
  EXPECT_EQ(all.heaps[0].stream_waits, 3u);
  EXPECT_EQ(all.heaps[0].context_waits, 2u);
}

TEST(DeviceFold, ResettingPeaksStartsThemAtTheCurrentLevel) {
  DeviceFold device;
  HeapFold heap(device, HeapId{0}, 10);
  device.on_event(page(EventKind::create, 4_MiB));
  device.on_event(page(EventKind::create, 2_MiB));
  device.on_event(page(EventKind::release, 2_MiB));
  for (const bool plain : {false, true}) {
    for (const EventKind kind : {EventKind::create, EventKind::lease, EventKind::map,
                                 EventKind::unmap, EventKind::unlease, EventKind::release}) {
      Event event = page(kind, 1_MiB);
      event.plain = plain;
      device.on_event(event);
    }
  }
  heap.on_event(block(EventKind::allocate, HeapId{0}, 4096_B, 4096_B));
  heap.on_event(block(EventKind::allocate, HeapId{0}, 512_B, 512_B));
  heap.on_event(block(EventKind::deallocate, HeapId{0}, 4096_B, 4096_B));
  heap.reset_peaks();
  device.reset_peaks();

  const Statistics all = device.combine({heap.statistics()});
  EXPECT_EQ(all.live_bytes, (Gauge{512, 512, 4608}));
  EXPECT_EQ(all.live_blocks.peak, 1u);
  EXPECT_EQ(all.requested_bytes.peak, 512u);
  EXPECT_EQ(all.reserved_bytes, (Gauge{(4_MiB).count, (4_MiB).count, (8_MiB).count}));
  EXPECT_EQ(all.pages, (Gauge{1, 1, 4}));
  for (const Gauge& gauge : {all.leased_bytes, all.mapped_bytes}) {
    EXPECT_EQ(gauge, (Gauge{0, 0, (2_MiB).count}));
  }
  for (const Gauge& gauge : {all.plain_bytes, all.plain_leased_bytes}) {
    EXPECT_EQ(gauge, (Gauge{0, 0, (1_MiB).count}));
  }
  EXPECT_EQ(all.mappings, (Gauge{0, 0, 2}));
  EXPECT_EQ(all.heaps[0].live_bytes.peak, 512u);
}

// Heaps are read one after the other: what goes from one to the next meanwhile must not count
// twice.
TEST(DeviceFold, ABlockThatGoesFromHeapToHeapIsOne) {
  DeviceFold device;
  constexpr Bytes kBlock = 1_GiB;
  Mutex locks[9];
  std::deque<HeapFold> heaps;
  for (std::uint32_t i = 0; i < 9; ++i) heaps.emplace_back(device, HeapId{i}, i, false, &locks[i]);
  std::atomic<bool> done{false};
  std::thread moves([&] {
    for (std::size_t i = 0; !done; i = (i + 1) % 8) {
      for (const EventKind kind : {EventKind::allocate, EventKind::deallocate}) {
        const MutexLock lock(locks[i]);
        heaps[i].on_event(block(kind, heaps[i].heap(), kBlock, kBlock));
      }
    }
  });
  // Each rises above all before, and so the others are asked.
  constexpr int kLooks = 200'000;
  for (int i = 0; i < kLooks; ++i) {
    const MutexLock lock(locks[8]);
    heaps[8].on_event(block(EventKind::allocate, HeapId{8}, 1_B, 1_B));
  }
  done = true;
  moves.join();
  EXPECT_LE(device.combine({}).live_bytes.peak, kBlock.count + kLooks);
}

// It keeps its bounds where it was found at work, but not for ever.
TEST(DeviceFold, AHeapThatWasFoundAtWorkIsAskedAgainLater) {
  DeviceFold device;
  Mutex locks[2];
  HeapFold mine(device, HeapId{0}, 10, false, &locks[0]);
  HeapFold other(device, HeapId{1}, 11, false, &locks[1]);
  const auto add = [](HeapFold& heap, Bytes bytes) {
    heap.on_event(block(EventKind::allocate, heap.heap(), bytes, bytes));
  };
  add(other, 10_GiB);
  other.on_event(block(EventKind::deallocate, other.heap(), 10_GiB, 10_GiB));
  {
    const MutexLock at_work(locks[1]);
    add(mine, 5_GiB);
    EXPECT_EQ(device.combine({}).live_bytes.peak, (10_GiB).count);
  }
  for (std::uint64_t i = 0; i < 1000; ++i) add(mine, 5_GiB);
  const std::uint64_t peak = (5_GiB).count * 1001;
  EXPECT_EQ(device.combine({}).live_bytes.peak, peak);
  add(other, 10_GiB);
  EXPECT_EQ(device.combine({}).live_bytes.peak, peak + (10_GiB).count);
}

TEST(Event, EveryKindHasANameOfItsOwn) {
  std::vector<std::string_view> names;
  for (int kind = 0; kind < kEventKinds; ++kind) {
    names.push_back(name_of(static_cast<EventKind>(kind)));
    EXPECT_NE(names.back(), "unknown");
    for (int before = 0; before < kind; ++before) EXPECT_NE(names[before], names.back());
  }
}

}  // namespace
}  // namespace weir
