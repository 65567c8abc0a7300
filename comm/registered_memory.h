// The memory of a registered pool: segments, their free ranges, and the fences of their users.
//
// All segments are of one size. Ranges are offsets in one offset space of all segments, with a gap
// between segments, so that no free range spans two of them. Offsets are the same on all ranks;
// addresses are not.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/range_set.h"
#include "core/time/fence_set.h"
#include "weir/comm/nccl.h"
#include "weir/comm/registered_pool.h"

namespace weir {

class CommState;

// Self-synchronised. The communicator's state outlives it.
// Locks: agreeing_, then those of the communicator, then mutex_.
class RegisteredMemory {
 public:
  static constexpr Bytes kMost = 1_TiB * 1024;  // more than any device has

  RegisteredMemory(CommState& comm, std::uint64_t number, Bytes segment);

  // Makes all segments: on every rank, or on none.
  Status make(std::uint64_t segments);
  // As RegisteredPool's.
  Result<void*> allocate(Bytes bytes, Stream stream);
  Status fence(void* block, Stream user);
  Status deallocate(void* block);
  Status verify();
  Status close();
  RegisteredPoolStatistics statistics() const;

  // The pool is gone, and blocks are live or close() failed: what is here goes with leave().
  // Returns whether the communicator has left already.
  bool abandon();
  // The communicator ends, and its work is done: takes back the registrations, and gives back the
  // memory of a pool that is gone. Takes no lock of the communicator's.
  Status leave();

  // The block that the pointer lies in, if any, is used until the fence; by a graph.
  void fence_use(const void* pointer, Fence done);
  void keep_for(const void* pointer, const std::weak_ptr<void>& graph);
  // Does the pointer lie in a block that was allocated for another stream?
  bool is_of_other(const void* pointer, Stream stream);

 private:
  struct Segment {
    Address address;
    RegistrationHandle registration;  // 0: the communicator has left
  };
  struct Block {
    Bytes begin, bytes;  // in the offset space
    Stream stream;
    FenceSet fences;
    std::vector<std::weak_ptr<void>> graphs;
  };
  struct Freed {
    Bytes end;
    FenceSet fences;
  };
  struct AgreementMessage;
  using Blocks = std::map<Address, Block>;

  Result<Segment> make_segment();
  Result<std::vector<AgreementMessage>> gather_messages(const AgreementMessage& mine);
  FenceSet take_fences(Bytes begin, Bytes end);
  Bytes begin_of(std::size_t segment) const;
  std::size_t segment_of(Bytes offset) const;
  Blocks::iterator containing(const void* pointer);
  std::size_t graphs_of(const void* block) const;  // alive
  std::string describe(const std::uint64_t* block) const;
  Status wait_for(const FenceSet& fences);
  Status end_segments(std::vector<Segment> segments, bool free);
  Error error(ErrorCode code, const std::string& what) const;
  Error unknown(const char* call, const void* block) const;

  CommState& comm_;
  const std::uint64_t number_;  // of the communicator's pools, from 1
  const Bytes segment_;

  std::mutex agreeing_;  // one call that ranks agree on at a time

  mutable std::mutex mutex_;  // of what follows
  std::vector<Segment> segments_;
  RangeSet free_;
  std::map<Bytes, Freed> freed_;  // by begin; disjoint; parts of blocks that went, all free
  Blocks blocks_;
  bool left_ = false, abandoned_ = false;
};

}  // namespace weir
