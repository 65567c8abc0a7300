// SPDX-License-Identifier: Apache-2.0
// Which work uses a block, and in which order streams' work runs: the calls of DeviceHeap that take
// fences, and that wait for them.
//
// Threads: self-synchronised.
#pragma once

#include <span>

#include "core/device_heap/entrance.h"
#include "core/pool/pools.h"

namespace weir {

class Fences {
 public:
  Fences(Pools& pools, Entrance& entrance) : pools_(pools), entrance_(entrance) {}

  // As DeviceHeap has them.
  Status fence(std::span<void* const> blocks, Stream user);
  Result<std::optional<Fence>> fence_use(std::span<const void* const> pointers, Stream user,
                                         bool exact);
  Status record_stream(void* block, Stream user);
  Status wait(Stream waiter, Fence fence);
  void note_waited(Stream waiter, Fence fence);
  Status order(Stream earlier, Stream later);
  void note_remote_work(Stream stream);

 private:
  Status refuse(Stream stream, const char* call);
  // Must each block be asked where its uses count? Otherwise all are eager ones of the device
  // heap's own pool.
  bool differ(std::span<void* const> blocks) const;
  using Fenced = LiveBlock::Fenced;
  // `unsure`: where the driver does not say whether `user` is captured, the block's free waits as
  // for a captured use, and for the stream's work. Otherwise that is an error.
  Status note_use(void* block, Stream user, Fenced fenced, const char* call, bool unsure = false);
  Status fence_each(std::span<void* const> blocks, Stream user);
  // The blocks around the pointers. Where not `now`, or where a fence can't be taken now, the block
  // takes it when it is deallocated. Errors: none but for lack of a block, which another thread
  // freed.
  Status fence_around_each(std::span<const void* const> pointers, Stream user, bool now);
  // One event for all, which are eager uses of the device heap's own blocks; none if it is implied.
  // Error: a block is none, and nothing is changed; device.
  Status fence_together(std::span<void* const> blocks, Stream user);

  Pools& pools_;
  Entrance& entrance_;
  HeapRegistry& registry_ = pools_.shared().registry;
  Timelines& timelines_ = pools_.own().timelines();
};

}  // namespace weir
