// SPDX-License-Identifier: Apache-2.0
// Programs that use PyTorch's memory: a list of typed steps over small numbers that name streams,
// tensors, graphs, pools, events and flags.
//
// Which programs PyTorch's own allocator runs correctly is legality.h's business; a program knows
// nothing of allocators.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weir/types.h"

namespace weir::contract {

// What a kernel does with a tensor: all of its bytes.
struct Use {
  std::uint32_t tensor = 0;
  bool write = false;
  friend bool operator==(const Use&, const Use&) = default;
};

struct Step {
  enum class Kind : std::uint8_t {
    make_stream,         // `stream`: made by the program itself (torch.cuda.ExternalStream)
    destroy_stream,      // `stream`, which make_stream made
    allocate,            // `tensor` of `bytes` on `stream`; `on`: by its bare handle
                         // (torch.cuda.caching_allocator_alloc)
    kernel,              // on `stream`: `uses`, for `duration`; it ends once `flag` is set, if any
    order,               // later work of `stream` runs after the work that `other` has so far
    record_event,        // `event`: the work that `stream` has so far
    wait_event,          // later work of `stream` runs after `event`
    synchronize_event,   // the host waits for `event`
    synchronize_stream,  // the host waits for the work of `stream`
    synchronize_device,  // the host waits for all work
    record_stream,       // Tensor.record_stream: `tensor`, `stream`
    drop,                // the last reference to `tensor` goes
    empty_cache,         // torch.cuda.empty_cache()
    set_limit,           // to `bytes` (torch.cuda.set_per_process_memory_fraction); zero: none
    set_caching,         // to `on` (torch.cuda.caching_allocator_enable)
    make_pool,           // `pool` (torch.cuda.MemPool())
    enter_pool,          // `thread` allocates from `pool` (torch.cuda.use_mem_pool)
    leave_pool,          // `thread` does so no more
    drop_pool,           // the MemPool object goes
    begin_capture,       // `graph` on `stream`, with `pool` (CUDAGraph.capture_begin)
    end_capture,         // of `graph` (CUDAGraph.capture_end)
    pause_pool,          // in the capture of `graph`: its pool takes no requests
                         // (_cuda_endAllocateToPool)
    resume_pool,         // it takes all requests of `thread` until the capture ends
                         // (_cuda_beginAllocateCurrentThreadToPool); `on`: the use of the pool that
                         // this adds is given back at once (_cuda_releasePool)
    fail_capture,        // of `graph`: a call that captures forbid; then capture_end() raises, and
                         // PyTorch leaves the pool's binding open
    refuse_capture,      // of `graph` on `stream` with `pool`: capture_begin() raises, and PyTorch
                         // leaves the binding; the stream is captured already, or, where `on`, the
                         // driver refuses
    replay,              // `graph` on `stream`
    drop_graph,          // CUDAGraph.reset()
    begin_raw_capture,   // `graph` on `stream`, by a library that PyTorch knows nothing of
    end_raw_capture,     // of `graph`
    save_pool,           // the live tensors of `pool` are noted, as cudagraph trees do
    restore_pool,        // just these are live again, where they were
    set_flag,            // the host sets `flag`
    busy,                // the host does something else for `duration`
  };
  static constexpr int kKinds = static_cast<int>(Kind::busy) + 1;

  Kind kind = Kind::busy;
  std::uint32_t thread = 0;
  std::uint32_t stream = 0;  // 0: the default stream
  std::uint32_t other = 0;
  std::uint32_t tensor = 0;
  std::uint32_t graph = 0;
  std::uint32_t pool = 0;  // from 1
  std::uint32_t event = 0;
  std::uint32_t flag = 0;  // from 1; 0: none
  bool on = false;
  Bytes bytes;
  Nanoseconds duration;
  std::vector<Use> uses;

  friend bool operator==(const Step&, const Step&) = default;
};

struct Program {
  std::uint64_t seed = 0;     // 0: not from a seed
  std::string name;           // of an enumerated program
  std::uint32_t streams = 4;  // that exist from the start and for ever: 0 is the default stream
  Bytes memory = 4_GiB;       // of the device
  // Kernels may wait for flags of the host, so no stream may be made to wait for another one.
  bool has_flags = false;
  std::vector<Step> steps;

  friend bool operator==(const Program&, const Program&) = default;
};

const char* name_of(Step::Kind kind);
// Its seed, as weir_contract --replay takes it, or its name.
std::string name_of(const Program& program);
// One line.
std::string describe(const Step& step);
std::string describe(const Program& program);

}  // namespace weir::contract
