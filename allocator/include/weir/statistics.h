// SPDX-License-Identifier: Apache-2.0
// Counters of one device heap, made from its events (weir/event.h). docs/statistics.md explains
// every number.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "weir/event.h"
#include "weir/types.h"

namespace weir {

// A quantity that rises and falls.
struct Gauge {
  std::uint64_t current = 0;
  std::uint64_t peak = 0;   // highest `current` since the start or the last reset_peaks(); may be
                            // too low if several threads change it at one moment
  std::uint64_t total = 0;  // sum of all rises

  void add(std::uint64_t n);
  void subtract(std::uint64_t n);  // n <= current
  friend bool operator==(const Gauge&, const Gauge&) = default;
};

// Calls of one kind that a device heap made to its device, which makes them to the driver.
struct DeviceCallCount {
  std::string_view call;    // name_of(DeviceCall)
  std::uint64_t calls = 0;  // failed ones included
  Nanoseconds time;         // of the host, in all of them; zero unless Config::time_driver
  friend bool operator==(const DeviceCallCount&, const DeviceCallCount&) = default;
};

// Of one stream heap.
struct HeapStatistics {
  HeapId heap;
  std::uint64_t stream = 0;         // Stream::id
  bool plain = false;               // its memory is plain (MemoryKind::plain)
  Gauge live_blocks;                // blocks between allocate and deallocate
  Gauge live_bytes;                 // their sizes, rounded up to kGrain
  Gauge requested_bytes;            // their sizes as asked for
  std::uint64_t fences = 0;         // explicit fences taken on this heap's blocks
  std::uint64_t stream_waits = 0;   // GPU waits of its stream, which its requests needed
  std::uint64_t context_waits = 0;  // those of them for all streams' work
  friend bool operator==(const HeapStatistics&, const HeapStatistics&) = default;
};

// Where a pool placed blocks since it was opened, as a number: equal in two runs, or two ranks,
// exactly if each stream's blocks had the same sizes and places in the same order (up to a chance
// of 2^-64). Places count from the start of the pool's own addresses, streams in the order in which
// they first asked the pool.
struct PoolLayout {
  std::uint64_t pool = 0;  // GraphPool::id(); 0: the device heap's own
  std::uint64_t placements = 0;
  std::uint64_t hash = 0;
  friend bool operator==(const PoolLayout&, const PoolLayout&) = default;
};

// Of one device heap; gauges named as in HeapStatistics cover all its heaps.
struct Statistics {
  Gauge live_blocks, live_bytes, requested_bytes;
  Gauge leased_bytes;    // sizes of pages that are not idle, whichever heaps use them
  Gauge reserved_bytes;  // physical memory held: sum of page sizes
  Gauge mapped_bytes;    // sum over mappings: a page that is mapped twice counts twice
  Gauge pages, mappings;
  // Of reserved_bytes, leased_bytes and live_bytes, what is plain memory (MemoryKind::plain).
  Gauge plain_bytes, plain_leased_bytes;
  std::uint64_t plain_live_bytes = 0;
  Gauge lent_bytes;  // of reserved_bytes, scratch that graph pools lend (GraphScratch)
  std::uint64_t fences = 0, stream_waits = 0, host_waits = 0, out_of_memory = 0;
  std::uint64_t context_waits = 0;  // of stream_waits, those for the work of all streams
  std::uint64_t trimmed_bytes = 0;
  std::uint64_t regions_elsewhere = 0;  // under Addresses::prefer: not where they were to be
  // By ContextEventsLost: 1 if events of the whole context were given up for that reason.
  std::array<std::uint64_t, kContextEventsLost> context_events_lost{};
  std::vector<HeapStatistics> heaps;  // by HeapId
  // Those made at least once, in the order of DeviceCall. Only Allocator::statistics() has them.
  std::vector<DeviceCallCount> driver_calls;
  std::vector<PoolLayout> layouts;  // DeviceHeap::layouts(); only Allocator::statistics() has them
  friend bool operator==(const Statistics&, const Statistics&) = default;
};

// Of one graph pool.
struct GraphPoolStatistics {
  std::uint64_t live_blocks = 0;
  Bytes live_bytes;           // of blocks not deallocated, outputs of graphs among them
  Bytes reserved_bytes;       // physical memory that the pool holds
  Bytes peak_reserved_bytes;  // the most it ever held
  Bytes kept_bytes;           // what launches of graphs may use: of reserved_bytes, and lent
  Bytes lent_bytes;           // scratch of graphs that serves the device heap meanwhile
  std::uint64_t graphs = 0;
  std::uint64_t deferred = 0;  // blocks freed during a capture, which go back when it ends
};

}  // namespace weir
