// SPDX-License-Identifier: Apache-2.0
// Long-lived memory that is registered with NCCL (ncclCommRegister), which can then move data
// between GPUs without copies to its own buffers.
//
//   auto buffer = RegisteredBuffer::create(world, compute, 64_MiB);
//   void* gradients = buffer->data();
//   ... world.all_reduce(gradients, gradients, ...) ...
//
// The buffer is one physical handle, which can be exported to other processes and network cards,
// and is registered as a whole. NCCL requires the same registrations on all ranks, so ranks agree
// on the buffer. Use separate buffers for sends and receives and for collectives. (NCCL 2.28 may
// treat a collective as unregistered if its buffer was sent before.)
//
// The memory is the caller's alone until close(), so operations need no fence.
//
// A buffer is closed, or destroyed, before its communicator is closed, and after the graphs that
// captured the communicator's operations. A buffer that was moved from may be destroyed or assigned
// to, nothing else.
//
// Threads: any thread may read; close() excepted. Ranks make their buffers in the same order.
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
  // All ranks call it; the host waits. Errors: invalid_argument (the communicator is not prepared;
  // ranks ask for different sizes: the message names each); out_of_memory, device (a rank has no
  // memory, names no stream of its device's, or did not call). After an error of one rank all have
  // one, and no rank keeps memory.
  static Result<RegisteredBuffer> create(Communicator& communicator, Stream stream, Bytes bytes);
  RegisteredBuffer(RegisteredBuffer&&) noexcept = default;
  RegisteredBuffer& operator=(RegisteredBuffer&&) noexcept;
  // Calls close(). If that fails, the destructor logs the error, and the communicator's close()
  // frees the memory.
  ~RegisteredBuffer();

  void* data() const { return memory_.pointer(); }  // null once it is closed
  Bytes bytes() const { return bytes_; }

  // Host-waits for the communicator's operations and for what the stream holds, then deregisters
  // and frees the memory; each takes at most the communicator's host_timeout. Work of other streams
  // must have been ordered before the stream's. Errors: capture (the stream is being captured);
  // invalid_argument (graphs that captured the communicator's operations are still alive 0.1 s
  // after the call); device (work does not end: abort() the communicator and call again; or NCCL
  // does not deregister, and the memory is kept). After all but the last the buffer is as before.
  Status close();

 private:
  RegisteredBuffer(std::shared_ptr<CommState> communicator, Stream stream, Bytes bytes);
  Status register_memory();
  Status agree(const Status& mine) const;
  std::function<Status()> release();
  Status end();

  std::shared_ptr<CommState> communicator_;  // none: closed
  Stream stream_;
  Bytes bytes_;
  Address memory_;
  RegistrationHandle registration_;
};

}  // namespace weir
