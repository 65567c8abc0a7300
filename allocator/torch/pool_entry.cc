// SPDX-License-Identifier: Apache-2.0
// What the Python package calls of pools, by ctypes.
#include <cstdint>

#include "api/c_status.h"
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

// Of the pool, on that device; a pool that was just made: errors as Pools::make_plain().
weir_status_t weir_torch_make_plain(int32_t device, uint64_t first, uint64_t second) {
  return c::guarded([&] {
    c::check(pools_of(device, "plain memory").make_plain({first, second}));
  });
}

}  // extern "C"
}  // namespace weir::pytorch
