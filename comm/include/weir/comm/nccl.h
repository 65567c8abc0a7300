// SPDX-License-Identifier: Apache-2.0
// The interface between the communication layer and NCCL: the layer reaches NCCL, and the streams
// that collectives run on, only through it.
//
// Two implementations ship: LoadedNccl (the library, loaded at run time) and SimNccl (ranks of one
// process on simulated devices, with the happens-before checker).
//
// Threads: calls about one communicator are made one at a time, with two exceptions. async_error()
// may run concurrently with any other call; revoke() and abort() may run concurrently with a call
// that waits for other ranks, to end it. Calls about different communicators may run concurrently.
// Captures: no call breaks a capture in progress, whatever its mode: a call that could break one
// exchanges the thread's capture mode for relaxed while it runs. Work queued on a captured stream
// becomes part of its graph. Errors: device (NCCL refused: the call's or operation's name, its
// error, and the text of ncclGetLastError); unavailable; invalid_argument.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/comm/operation.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// One rank's handle of an NCCL communicator; 0 is no communicator.
struct CommHandle {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const CommHandle&) const = default;
};

// Memory registered with NCCL (ncclCommRegister); 0 is no memory.
struct RegistrationHandle {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const RegistrationHandle&) const = default;
};

// What the ranks of a new communicator share, so that they find each other. (NCCL: ncclUniqueId.)
struct UniqueId {
  std::array<char, 128> bytes{};
  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

// The settings of a new communicator. (NCCL: ncclConfig_t.)
struct CommConfig {
  std::string name;                            // in NCCL's own logs
  std::optional<int> max_ctas = std::nullopt;  // most thread blocks of a collective (NCCL: maxCTAs)
};

class Nccl {
 public:
  Nccl() = default;
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  virtual ~Nccl() = default;

  virtual std::string version() const = 0;  // "2.28.9"

  // init() and split() make a communicator, and return once every rank has called. split() with a
  // negative color makes none.
  virtual Result<UniqueId> unique_id() = 0;
  virtual Result<CommHandle> init(const UniqueId& id, int ranks, int rank,
                                  const CommConfig& config) = 0;
  virtual Result<CommHandle> split(CommHandle comm, int color, int key,
                                   const CommConfig& config) = 0;
  // destroy() requires that all work of the communicator is done and every graph that captured its
  // operations is destroyed; otherwise it may wait forever. abort() ends running work, and waits
  // for graphs as destroy() does. revoke() ends running work without waiting for graphs; destroy()
  // must follow.
  virtual Status destroy(CommHandle comm) = 0;
  virtual Status abort(CommHandle comm) = 0;
  virtual Status revoke(CommHandle comm) = 0;
  // Returns the error of NCCL's background work (ncclCommGetAsyncError), or success if there was
  // none so far.
  virtual Status async_error(CommHandle comm) = 0;
  virtual Result<int> size(CommHandle comm) = 0;
  virtual Result<int> rank(CommHandle comm) = 0;

  // Queues the operations on `stream`; several are one group. After an error some of them may run.
  virtual Status enqueue(CommHandle comm, std::span<const Operation> group, Stream stream) = 0;

  // A segment is memory that NCCL can register (NCCL: ncclMemAlloc): one physical handle, which can
  // be exported to other processes and network cards. (MemoryCalls::allocate_segment() gives other
  // memory.)
  virtual Result<Address> allocate_segment(Bytes bytes) = 0;
  virtual Status free_segment(Address segment) = 0;
  virtual Result<RegistrationHandle> register_range(CommHandle comm, Address address,
                                                    Bytes bytes) = 0;
  virtual Status deregister(CommHandle comm, RegistrationHandle registration) = 0;

  // Streams of the communication layer, which do not synchronise with the default stream.
  virtual Result<Stream> create_stream() = 0;
  virtual Status destroy_stream(Stream stream) = 0;

  // An all-gather of host memory, by which ranks agree: returns every rank's `mine`, in order of
  // rank. All ranks pass the same number of bytes, which are gathered in parts if those of all
  // ranks are more than 2 MiB. For each part the host waits at most `timeout` for all ranks, then
  // at most `timeout` for the copy back. The communicator must have no unfinished work. Errors:
  // device (a rank did not call in time); invalid_argument (2 Mi ranks or more).
  virtual Result<std::vector<std::vector<std::byte>>> host_all_gather(
      CommHandle comm, std::span<const std::byte> mine, Nanoseconds timeout) = 0;
};

// Loads NCCL for device number `device`: the library `libnccl.so.2`, or the one that
// WEIR_NCCL_LIBRARY names. Sets in the environment what captures need (docs/comm.md), unless the
// user has set it. Errors: unavailable (no such library, too old, a build without NCCL);
// invalid_argument (the environment has NCCL_COMM_BLOCKING=0, with which NCCL's calls don't wait,
// or NCCL_GRAPH_REGISTER=1, with which NCCL registers memory that Weir's pools move); device.
Result<std::unique_ptr<Nccl>> load_nccl(int device);

}  // namespace weir
