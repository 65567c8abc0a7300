// SPDX-License-Identifier: Apache-2.0
// Memory registered with NCCL (ncclCommRegister), for long-lived communication buffers: NCCL can
// then move data between GPUs without copies to its own buffers.
//
//   Result<RegisteredPool> pool = RegisteredPool::create(world, {.segment = 64_MiB});
//   Result<void*> buffer = pool->allocate(16_MiB, compute);
//
// The pool allocates its segments when it is created, all of one size, and never grows. A segment
// is one physical handle, which can be exported to other processes and network cards. The pool
// registers a segment once, as a whole; the segment stays mapped at its address until it is
// deregistered. A buffer lies in one segment.
//
// NCCL requires the same registrations on all ranks, and ranks agree on the segments. Ranks that
// make the same calls in the same order have their buffers at the same offsets. Use separate pools
// for buffers of sends and receives and for buffers of collectives. (NCCL 2.28 may treat a
// collective as unregistered if its buffer was sent before.)
//
// Blocks carry fences as those of a DeviceHeap do: work on the stream that a block was allocated
// for may use the block at once; fence() reports work on another stream. Operations of the
// communicator are fenced automatically. The next user of the bytes waits on the GPU, never on the
// host.
//
// Captures: allocate before the capture begins. A block that captured operations used stays
// allocated until their graph is destroyed; if the program ended the capture by itself, until the
// graph's launches are done too. Report work of a stream that a graph was launched on with fence(),
// as any other work.
//
// A pool is closed, or destroyed, before its communicator is closed. One that was moved from may be
// destroyed or assigned to, nothing else.
//
// Threads: any thread may call; close() excepted. Ranks make their pools in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "weir/comm/communicator.h"
#include "weir/device_heap.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

struct RegisteredPoolOptions {
  // Size of a segment, rounded up to the device's granularity: the largest buffer.
  Bytes segment = 64_MiB;
  int segments = 1;
};

struct RegisteredPoolStatistics {
  std::uint64_t segments = 0;
  Bytes segment_bytes;
  std::uint64_t live_blocks = 0;
  Bytes live_bytes;  // in whole multiples of the alignment
};

class CommState;
class RegisteredMemory;

class RegisteredPool {
 public:
  // Alignment of a block within its segment; a segment is aligned to the device's granularity.
  static constexpr Bytes kAlignment = 4_KiB;

  // Creates a pool with its segments. All ranks call it; the host waits. Errors: invalid_argument
  // (the communicator is not prepared; ranks ask for different sizes: the message names each);
  // out_of_memory, device (a rank has no memory, or did not call). After an error no rank keeps
  // memory.
  static Result<RegisteredPool> create(Communicator& communicator,
                                       const RegisteredPoolOptions& options = {});
  RegisteredPool(RegisteredPool&&) noexcept;
  RegisteredPool& operator=(RegisteredPool&&) noexcept;
  // close(). If blocks are live, the destructor logs that, and the memory stays registered for
  // good.
  ~RegisteredPool();

  // Allocates a block for work on `stream`. Zero bytes: null. Errors: out_of_memory (no segment has
  // room); capture (the stream is being captured); whatever ended the communicator; device.
  Result<void*> allocate(Bytes bytes, Stream stream);
  // Reports that work queued so far on `user` uses the block. Errors: unknown_pointer; capture;
  // device.
  Status fence(void* block, Stream user);
  // Null is allowed. Errors: unknown_pointer; invalid_argument (graphs that captured operations on
  // the block are still alive 0.1 s after the call); capture (the block's stream is being
  // captured). After an error the block stays live.
  Status deallocate(void* block);

  // Waits for work on the pool's memory, then deregisters and frees the memory; each of the two
  // steps takes at most the communicator's host_timeout. Nothing else may be called afterwards.
  // Errors: invalid_argument (blocks are live: the pool stays as it is); device (a step did not
  // end: memory that NCCL may still use is kept).
  Status close();

  RegisteredPoolStatistics statistics() const;

 private:
  explicit RegisteredPool(std::shared_ptr<CommState> communicator);
  std::shared_ptr<CommState> communicator_;
  std::shared_ptr<RegisteredMemory> memory_;  // none: closed
};

}  // namespace weir
