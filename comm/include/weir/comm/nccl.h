// The seam between the communication layer and NCCL: all that it knows of NCCL, and of the streams
// that collectives run on.
//
// Two implementations ship: LoadedNccl (the library, loaded at run time) and SimNccl (ranks of one
// process on simulated devices, with the happens-before checker).
//
// Threads: calls about one communicator are made one at a time. Exceptions: async_error() may be
// made beside any other call; revoke() and abort() beside one that waits for other ranks, to end
// it. Calls about different communicators may be made side by side. A group is a thread's.
// Captures: no call breaks a capture that is going on, whatever its mode: each is made with the
// thread's capture mode exchanged to relaxed. What is queued on a captured stream becomes part of
// its graph.
// Errors: device (NCCL refused: the call's name, its error, and NCCL's own last words);
// unavailable.
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

// A communicator of NCCL's, as one rank has it. 0: none.
struct CommHandle {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const CommHandle&) const = default;
};

// Memory that NCCL was told of. 0: none.
struct RegistrationHandle {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const RegistrationHandle&) const = default;
};

// What the ranks of a new communicator have in common, so that they find each other.
struct UniqueId {
  std::array<char, 128> bytes{};
  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

// What a communicator is made with. (NCCL: ncclConfig_t.)
struct CommConfig {
  std::string name;                // in NCCL's own logs
  std::optional<int> most_blocks;  // thread blocks that a collective may take (NCCL: maxCTAs)
};

class Nccl {
 public:
  Nccl() = default;
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  virtual ~Nccl() = default;

  virtual std::string version() const = 0;  // "2.28.9"
  // Are rings and trees connected when init() and split() return? Else the first operations of each
  // size do that.
  virtual bool connects_at_once() const = 0;

  // Communicators. init() and split() return once every rank has come; rank and size of what
  // split() and shrink() made follow from their arguments. split() with a negative color makes
  // none.
  virtual Result<UniqueId> unique_id() = 0;
  virtual Result<CommHandle> init(const UniqueId& id, int ranks, int rank,
                                  const CommConfig& config) = 0;
  virtual Result<CommHandle> split(CommHandle comm, int color, int key,
                                   const CommConfig& config) = 0;
  // Without the excluded ranks, which do not call. `abort`: work of `comm` that goes on is ended.
  virtual Result<CommHandle> shrink(CommHandle comm, std::span<const int> excluded, bool abort,
                                    const CommConfig& config) = 0;
  // Ends: destroy() after everything of it is done and every graph that holds it is destroyed (it
  // may wait for ever otherwise); abort() ends what goes on, and waits for graphs as destroy()
  // does; revoke() ends what goes on without waiting for graphs, and leaves the rest to destroy().
  virtual Status destroy(CommHandle comm) = 0;
  virtual Status abort(CommHandle comm) = 0;
  virtual Status revoke(CommHandle comm) = 0;
  // An error that work in the background met; success: none so far.
  virtual Status async_error(CommHandle comm) = 0;
  virtual Result<int> size(CommHandle comm) = 0;
  virtual Result<int> rank(CommHandle comm) = 0;

  // Queues one operation on `stream`, or, between group_start() and group_end(), notes it.
  virtual Status enqueue(CommHandle comm, const Operation& operation, Stream stream) = 0;
  virtual Status group_start() = 0;
  virtual Status group_end() = 0;

  // Memory that NCCL can register: one physical handle, that other processes and network cards can
  // be given. (NCCL: ncclMemAlloc.)
  virtual Result<Address> allocate_segment(Bytes bytes) = 0;
  virtual Status free_segment(Address segment) = 0;
  virtual Result<RegistrationHandle> register_range(CommHandle comm, Address address,
                                                    Bytes bytes) = 0;
  virtual Status deregister(CommHandle comm, RegistrationHandle registration) = 0;

  // Streams of the layer's own, which wait for no default stream; and copies within the device.
  virtual Result<Stream> create_stream() = 0;
  virtual Status destroy_stream(Stream stream) = 0;
  virtual Status copy(void* to, const void* from, Bytes bytes, Stream stream) = 0;

  // Every rank's `mine`, in order of rank, all of one size: for agreeing on something. The host
  // waits for all ranks, at most `timeout`; not for a communicator with work that is not done.
  // Errors: device (a rank did not come in time).
  virtual Result<std::vector<std::vector<std::byte>>> exchange(CommHandle comm,
                                                               std::span<const std::byte> mine,
                                                               Nanoseconds timeout) = 0;
};

// NCCL itself, for device number `device`: the library `libnccl.so.2`, or what WEIR_NCCL_LIBRARY
// names. The settings that captures need (docs/comm.md) are made in the environment where the user
// made none. Errors: unavailable (no such library, too old, a build without NCCL); invalid_argument
// (in the environment NCCL_COMM_BLOCKING=0, with which NCCL's calls don't wait, or
// NCCL_GRAPH_REGISTER=1, with which NCCL registers memory that Weir's pools move); device.
Result<std::unique_ptr<Nccl>> load_nccl(int device);

}  // namespace weir
