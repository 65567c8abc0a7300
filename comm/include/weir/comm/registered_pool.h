// Memory that NCCL was told of (ncclCommRegister), for buffers of communication that live long:
// with it NCCL moves data between GPUs without copies of its own, where it can.
//
//   Result<RegisteredPool> pool = RegisteredPool::create(world, {.segment = 64_MiB});
//   Result<void*> buffer = pool->allocate(16_MiB, compute);
//
// Memory comes in segments, each one physical handle that other processes and network cards can be
// given. A segment is registered once, whole, as soon as it is there, and stays mapped where it is
// until it was deregistered. No buffer lies in two of them.
//
// NCCL requires that all ranks have the same: ranks that make the same calls in the same order have
// their buffers at the same offsets of equal segments. New segments are agreed on; verify() checks
// the rest. Buffers of sends and receives should have another pool than those of collectives.
// (NCCL 2.28 may take a collective on a buffer that was sent before for one without registration.)
//
// Blocks carry fences as those of a DeviceHeap do: a block may be used at once by work on the
// stream that it was allocated for; work on another is named with fence(). Operations of the
// communicator are fenced by themselves. Whoever gets the bytes next waits on the GPU, never the
// host.
//
// Captures: allocate before the capture begins. A block that captured operations used stays
// allocated until their graph is destroyed; of a capture that the program ends by itself, until the
// graph's launches are done too. Work of a stream that a graph was launched on is fence()d as any
// other.
//
// Threads: any thread may call; where ranks must agree, in the same order on all of them.
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
  // A larger buffer has a segment of its own size. Rounded up to the device's granularity.
  Bytes segment = 64_MiB;
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
  // Blocks are aligned to this within their segment, which begins at the device's granularity.
  static constexpr Bytes kAlignment = 4_KiB;

  // With one segment. All ranks call it; the host waits. Errors: invalid_argument (the communicator
  // is not prepared; ranks ask for different sizes: each is named); out_of_memory, device (a rank
  // has no memory, or did not come). After an error no rank has kept anything.
  static Result<RegisteredPool> create(Communicator& communicator,
                                       const RegisteredPoolOptions& options = {});
  RegisteredPool(RegisteredPool&&) noexcept;
  RegisteredPool& operator=(RegisteredPool&&) noexcept;
  // close(). Where blocks are live, that is logged, and the memory stays, registered, until the
  // communicator is closed. If that is closed already, nobody can have use for them: the memory
  // goes once work queued so far on the streams that they were allocated for is done.
  ~RegisteredPool();

  // A block for work on `stream`. Zero bytes: null. Where no segment has room, the pool grows by
  // one: then all ranks must have come to the same call, and the host waits for them.
  // Errors: as create(); capture (the stream is being captured).
  Result<void*> allocate(Bytes bytes, Stream stream);
  // "Work queued so far on `user` uses the block." Errors: unknown_pointer; capture; device.
  Status fence(void* block, Stream user);
  // Null is fine. Errors: unknown_pointer; invalid_argument (graphs that captured operations on it
  // are alive, 0.1 s after the call still); capture (its stream is being captured). The block stays
  // live then.
  Status deallocate(void* block);

  // Have all ranks equal segments, and live blocks at equal offsets? All ranks call it; the host
  // waits. Errors: invalid_argument (names the first difference and its rank); device.
  Status verify();

  // Waits for work on the pool's memory, deregisters it and gives it back, in at most the
  // communicator's patience for each of the two. Calls after it are errors (invalid_argument), but
  // for close(). Errors: invalid_argument (blocks are live: the pool stays as it is); device
  // (something did not end: what NCCL may still use is kept). A communicator that is closed first
  // takes back the registrations; the memory stays until the pool goes, but nothing can be
  // allocated any more.
  Status close();

  RegisteredPoolStatistics statistics() const;

 private:
  friend class Bucketer;
  explicit RegisteredPool(std::shared_ptr<CommState> communicator);
  Status closed() const;
  std::shared_ptr<CommState> communicator_;
  std::shared_ptr<RegisteredMemory> memory_;  // none: closed
};

// Could NCCL register these bytes, which are not of a RegisteredPool? Errors: invalid_argument:
// they are the device heap's, whose pages go elsewhere when they are freed, while NCCL and other
// ranks would keep the old ones (and which straddle physical handles, where peers would read past
// the first); or not whole multiples of RegisteredPool::kAlignment. Of other memory it can't be
// told here what it is made of: NCCL needs one physical handle, exportable, and equal on all ranks.
Status check_registrable(const DeviceHeap& heap, const void* pointer, Bytes bytes);

}  // namespace weir
