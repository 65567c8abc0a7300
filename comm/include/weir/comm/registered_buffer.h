// SPDX-License-Identifier: Apache-2.0
// Long-lived memory that is registered with NCCL (ncclCommRegister), so that NCCL moves its data
// between GPUs without copies to NCCL's own buffers.
//
//   auto buffer = RegisteredBuffer::create(world, compute, 64_MiB);
//   void* gradients = buffer->data();
//   ... world.all_reduce(gradients, gradients, ...) ...
//
// The buffer is one physical handle, which can be exported to other processes and network cards,
// and is registered as a whole. NCCL requires the same registrations on all ranks, so in create()
// the ranks compare their calls. Use one buffer for sends and receives, and another for
// collectives. (NCCL 2.28 may treat a collective as unregistered after a send from its buffer.)
//
// Weir uses the memory for nothing else until close(), so operations need no fence.
//
// Destroy graphs that captured the communicator's operations first, then close or destroy the
// buffer, then close the communicator. A buffer that was moved from may be destroyed or assigned
// to, nothing else.
//
// Threads: any thread may call data() and bytes(), but not during close(), a move or the
// destructor. Ranks make their buffers in the same order.
#pragma once

#include <functional>
#include <memory>

#include "weir/comm/communicator.h"
#include "weir/comm/nccl.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

class RegisteredBuffer {
 public:
  // Makes a buffer of `bytes`, rounded up to the device's granularity, that work on `stream` uses.
  // All ranks call it, and the host waits for them. Errors: invalid_argument (the communicator is
  // not prepared; `bytes` is zero; ranks ask for different sizes, which the message names);
  // out_of_memory (this rank has no memory); device (`stream` is not of this rank's device; another
  // rank failed, or did not call). If one rank fails, all fail, and no rank keeps memory.
  static Result<RegisteredBuffer> create(Communicator& communicator, Stream stream, Bytes bytes);
  RegisteredBuffer(RegisteredBuffer&&) noexcept = default;
  RegisteredBuffer& operator=(RegisteredBuffer&&) noexcept;
  // Calls close(). If that fails, the destructor logs the error, and the communicator's close()
  // frees the memory.
  ~RegisteredBuffer();

  void* data() const { return memory_.pointer(); }  // null once it is closed
  Bytes bytes() const { return bytes_; }

  // Host-waits for the communicator's operations and for what the buffer's stream holds, then
  // deregisters and frees the memory; the wait and the rest each take at most the communicator's
  // host_timeout. Order other streams' uses of the memory before the buffer's stream. Errors:
  // capture (the stream is being captured); invalid_argument (graphs that captured the
  // communicator's operations are still alive 0.1 s after the call); device (work does not end:
  // abort() the communicator and call again; or NCCL does not deregister the memory: the buffer is
  // then closed, and the memory stays allocated). After any other error the buffer is as before.
  Status close();

 private:
  RegisteredBuffer(std::shared_ptr<CommState> communicator, Stream stream, Bytes bytes);
  Status register_memory();
  std::function<Status()> release();
  Status end();

  std::shared_ptr<CommState> communicator_;  // none: closed
  Stream stream_;
  Bytes bytes_;
  Address memory_;
  RegistrationHandle registration_;
};

}  // namespace weir
