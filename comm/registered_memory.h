// SPDX-License-Identifier: Apache-2.0
// The memory of a registered pool: segments, the blocks in them, and the fences of their users.
//
// All segments are of one size. Their order, and what lies where in each, are the same on all
// ranks; addresses are not.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/range.h"
#include "core/time/fence_set.h"
#include "weir/comm/nccl.h"
#include "weir/comm/registered_pool.h"

namespace weir {

class CommState;

// Self-synchronised. The communicator's state outlives it.
class RegisteredMemory {
 public:
  RegisteredMemory(CommState& comm, std::uint64_t number, Bytes segment);

  // Makes all segments: on every rank, or on none.
  Status make(std::uint64_t segments);
  // As RegisteredPool's.
  Result<void*> allocate(Bytes bytes, Stream stream);
  Status fence(void* block, Stream user);
  Status deallocate(void* block);
  void deallocate_all();  // that can be
  Status close();
  RegisteredPoolStatistics statistics() const;

  struct Block {
    Bytes bytes;
    Stream stream;
    FenceSet fences;
    std::vector<std::weak_ptr<void>> graphs;  // that use it

    void keep_for(const std::weak_ptr<void>& graph);
    std::size_t live_graphs() const;
  };
  // Calls use(block) for the block that the pointer lies in, if any.
  template <class Use>
  void with_block(const void* pointer, Use use) {
    const std::lock_guard lock(mutex_);
    const Address address = Address::of(pointer);
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return;
    auto& [begin, block] = *--after;
    if (address < begin + block.bytes) use(block);
  }

 private:
  // The bytes of a block that went; who has them next waits.
  struct Freed {
    Range bytes;
    FenceSet fences;
  };
  struct Segment {
    Address address;
    RegistrationHandle registration;
  };
  using Blocks = std::map<Address, Block>;

  Result<Segment> make_segment();
  // The smallest gap between blocks that has room; 0: there is none.
  Address find_room(Bytes bytes) const;
  Result<Blocks::iterator> find(const char* call, const void* block);
  Bytes live_bytes() const;
  Status wait_for(const FenceSet& fences);
  Status end_segments(std::vector<Segment> segments);
  Error error(ErrorCode code, const std::string& what) const;
  Error error(const Error& why, const std::string& call = "") const;

  CommState& comm_;
  const std::string name_;  // by its number among the communicator's pools, from 1
  const Bytes segment_;

  mutable std::mutex mutex_;  // of what follows
  std::vector<Segment> segments_;
  std::vector<Freed> freed_;
  Blocks blocks_;
};

}  // namespace weir
