// SPDX-License-Identifier: Apache-2.0
// A recording as blocks rather than events: when and where each was live, and which block used its
// memory next. Its events do not contradict each other: whoever reads them sees to that
// (observe/recorded_state.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "weir/recording.h"

namespace weir {

// Memory at one moment. Both of the values hold from then on.
struct MemoryPoint {
  static constexpr std::uint32_t kInitial = ~std::uint32_t{0};

  Nanoseconds time;
  Bytes live, reserved;
  std::uint32_t event = kInitial;  // that made it so; kInitial: what was there at the beginning
};

struct FenceTaken {
  Nanoseconds time;
  std::uint64_t stream = 0;  // that used the block
};

// A block from its allocation to its deallocation. There is one for each allocation of a recording,
// so its members stand without gaps.
struct BlockLifetime {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  Address address;
  Bytes bytes, requested;
  std::uint64_t stream = 0, pool = 0;
  Nanoseconds begin, end;  // of what is known of it, where the `live_at` say so
  HeapId heap;
  std::uint32_t stack = 0;
  std::uint32_t begin_event = kNone, end_event = kNone;  // into Recording::events
  std::uint32_t first_fence = 0, fences = 0;             // into BlockLifetimes::fences
  // The first block that got some of its physical bytes afterwards, through whatever address; and
  // whether that one's stream was made to wait for that.
  std::uint32_t reused_by = kNone;
  bool waited_for = false;
  bool live_at_begin = false, live_at_end = false;
};

struct BlockLifetimes {
  std::vector<BlockLifetime> blocks;  // in order of allocation
  std::vector<FenceTaken> fences;     // those of one block in a row
  // In order of first use; streams without Stream::all(), which has no blocks, and pools without 0.
  std::vector<std::uint64_t> streams, pools;
  MemoryPoint peak_live;
  MemoryPoint peak_reserved;  // of those moments the first with the most live
  MemoryPoint begin, end;
  Bytes late_peak_live;  // the most that was live in the second half of the time
};

BlockLifetimes lifetimes_of(const Recording& recording);

// Calls `visit` with memory at the beginning, and after every event that changes it.
void memory_over_time(const Recording& recording,
                      const std::function<void(const MemoryPoint&)>& visit);

// Calls `visit` at the beginning and at the end of each block, in order of the events that they
// are.
void for_each_step(
    const BlockLifetimes& lifetimes,
    const std::function<void(std::uint32_t block, bool begins, std::size_t event)>& visit);

// How many events have happened when memory changes to `point`, a moment of the same recording.
std::size_t events_at(const MemoryPoint& point, const Recording& recording);

// Whether a block is live once the first `events` events have happened.
bool is_live_after(const BlockLifetime& lifetime, std::size_t events);

// How many events have happened once all events up to `time` have: the initial ones at least.
std::size_t events_until(const Recording& recording, Nanoseconds time);

}  // namespace weir
