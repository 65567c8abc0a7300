// SPDX-License-Identifier: Apache-2.0
// What the Python package calls of pools, by ctypes.
#include <cstdint>

#include "api/c_status.h"
#include "core/pool/launch_gate.h"
#include "torch/pools.h"

namespace weir::pytorch {
extern "C" {

// Pools that the calling thread uses for the first time from now on sleep with that tag ("": none).
void weir_torch_tag_new_pools(const char* tag) { Pools::tag_new_pools(tag == nullptr ? "" : tag); }

// PyTorch's graphs are in their debug mode, which never destroys what it captured.
void weir_torch_assume_graphs_leak() { Pools::assume_graphs_leak(); }

// Until the end, requests of the calling thread get memory that nobody uses (IdleMemory); in the
// same thread. `scope`: what the end takes.
weir_status_t weir_torch_idle_memory_begin(int32_t device, void** scope) {
  return c::guarded([&] {
    DeviceHeap& heap = pools_of(device, "idle memory").heap();
    *scope = new IdleMemory(c::value_of(begin_idle_memory(heap)));
  });
}
void weir_torch_idle_memory_end(void* scope) { delete static_cast<IdleMemory*>(scope); }

// Whether the package tells of launches of the graphs that the calling thread begins to capture
// from now on.
void weir_torch_tell_of_launches(int32_t told) { tell_of_launches(told != 0); }

// A graph of the pool is launched on the stream from here on until the end, in whichever thread.
// `launch`: what the end takes; null: nothing is to be ended. `launched`: the graph was.
weir_status_t weir_torch_graph_launch_begin(int32_t device, uint64_t first, uint64_t second,
                                            void* stream, void** launch) {
  return c::guarded([&] {
    *launch = nullptr;
    Pools& pools = pools_of(device, "a launch");
    const Stream on = c::value_of(pools.heap().stream(stream));
    *launch = c::value_of(begin_launch(pools, {first, second}, on)).release();
  });
}
void weir_torch_graph_launch_end(void* launch, int32_t launched) {
  const std::unique_ptr<GraphLaunch> ended(static_cast<GraphLaunch*>(launch));
  if (ended != nullptr && launched == 0) ended->abandon();
}
// A thread launches graphs without a word while the byte that this returns is 0, and the other, its
// own, is 1 meanwhile (core/pool/launch_gate.h). Null: it tells of each launch.
const void* weir_torch_launch_gate(int32_t device, void** launching) {
  const void* closed = nullptr;
  (void)c::guarded([&] {
    if (pools_of(device, "a launch").heap().options().trust != Trust::context) return;
    if (LaunchGate::closed() == nullptr) return;
    *launching = LaunchGate::add();
    closed = LaunchGate::closed();
  });
  return closed;
}
// `keep`: the program has the handle of a graph of the pool, and may launch it without a word.
weir_status_t weir_torch_keep_scratch(int32_t device, uint64_t first, uint64_t second,
                                      int32_t keep) {
  return c::guarded([&] {
    c::check(keep_scratch(pools_of(device, "a graph"), {first, second}, keep != 0));
  });
}

// Of the pool, on that device; a pool that was just made: errors as Pools::make_plain().
weir_status_t weir_torch_make_plain(int32_t device, uint64_t first, uint64_t second) {
  return c::guarded([&] {
    c::check(pools_of(device, "plain memory").make_plain({first, second}));
  });
}

// Pools with a source, in the order in which they were opened: `pool` counts from 1. As
// weir_layout() otherwise.
weir_status_t weir_torch_source_layouts(int32_t device, weir_pool_layout_t* pools, size_t size,
                                        size_t* needed) {
  return c::guarded([&] {
    *needed = 0;
    for (const auto& [id, source] : pools_of(device, "layouts").sources()) {
      if (id == PoolId{0, 0}) continue;  // what is not cached
      const PoolLayout layout = source->layout();
      if (*needed < size) pools[*needed] = {*needed + 1, layout.placements, layout.hash};
      ++*needed;
    }
  });
}

// Of the pool-th of these the latest placements, oldest first, three numbers each: bytes asked for,
// the segment's number, the offset in it.
weir_status_t weir_torch_source_placements(int32_t device, uint64_t pool, uint64_t* numbers,
                                           size_t size, size_t* needed) {
  return c::guarded([&] {
    *needed = 0;
    for (const auto& [id, source] : pools_of(device, "layouts").sources()) {
      if (id == PoolId{0, 0} || --pool > 0) continue;
      for (const SegmentPool::Placement& each : source->placements()) {
        for (const std::uint64_t number :
             {each.requested.count, static_cast<std::uint64_t>(each.segment), each.offset.count}) {
          if (*needed < size) numbers[*needed] = number;
          ++*needed;
        }
      }
      return;
    }
  });
}

}  // extern "C"
}  // namespace weir::pytorch
