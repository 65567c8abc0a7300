// SPDX-License-Identifier: Apache-2.0
// Long-lived buffers that are registered with NCCL (ncclCommRegister), which can then move data
// between GPUs without copies to its own buffers.
//
//   auto buffers = RegisteredBuffers::create(world, compute, 64_MiB);
//   void* gradients = (*buffers)[0];
//   ... world.all_reduce(gradients, gradients, ...) ...
//
// Each buffer is one physical handle, which can be exported to other processes and network cards,
// and is registered as a whole. NCCL requires the same registrations on all ranks, so ranks agree
// on the buffers. Use separate buffers for sends and receives and for collectives. (NCCL 2.28 may
// treat a collective as unregistered if its buffer was sent before.)
//
// The memory is the caller's alone until close(), so operations need no fence.
//
// Buffers are closed, or destroyed, before their communicator is closed, and after the graphs that
// captured its operations. Buffers that were moved from may be destroyed or assigned to, nothing
// else.
//
// Threads: any thread may read; close() excepted. Ranks make their buffers in the same order.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "weir/comm/communicator.h"
#include "weir/comm/nccl.h"
#include "weir/device.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

class RegisteredBuffers {
 public:
  // Makes `count` buffers of `bytes` each, rounded up to the device's granularity, that work on
  // `stream` uses. All ranks call it; the host waits. Errors: invalid_argument (the communicator is
  // not prepared; ranks ask for different buffers: the message names each); out_of_memory, device
  // (a rank has no memory, names no stream of its device's, or did not call). After an error of one
  // rank all have one, and no rank keeps memory.
  static Result<RegisteredBuffers> create(Communicator& communicator, Stream stream, Bytes bytes,
                                          int count = 1);
  RegisteredBuffers(RegisteredBuffers&&) noexcept = default;
  RegisteredBuffers& operator=(RegisteredBuffers&&) noexcept;
  // Calls close(). If that fails, the destructor logs the error, and the communicator's close()
  // frees the memory.
  ~RegisteredBuffers();

  std::size_t size() const { return segments_.size(); }  // the number of buffers
  // Null: there is none of that number, or they are closed.
  void* operator[](std::size_t number) const {
    return number < segments_.size() ? segments_[number].address.pointer() : nullptr;
  }
  Bytes bytes() const { return bytes_; }  // the size of each buffer

  // Host-waits for the communicator's operations and for what the stream holds, then deregisters
  // and frees the memory; each takes at most the communicator's host_timeout. Work of other streams
  // must have been ordered before the stream's. Errors: capture (the stream is being captured);
  // invalid_argument (graphs that captured the communicator's operations are still alive 0.1 s
  // after the call); device (work does not end: abort() the communicator and call again; or NCCL
  // does not deregister, and the memory is kept). After all but the last the buffers are as before.
  Status close();

 private:
  struct Segment {
    Address address;
    RegistrationHandle registration;
  };
  RegisteredBuffers(std::shared_ptr<CommState> communicator, Stream stream, Bytes bytes);
  Result<Segment> make_segment() const;
  Status agree(int count, const Status& mine) const;
  std::function<Status()> release_segments();
  Status end_segments();

  std::shared_ptr<CommState> communicator_;  // none: closed
  Stream stream_;
  Bytes bytes_;
  std::vector<Segment> segments_;
};

}  // namespace weir
