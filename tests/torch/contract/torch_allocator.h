// SPDX-License-Identifier: Apache-2.0
// What PyTorch asks of its allocator, as far as the contract's programs go: the seam between the
// runner of programs and what it runs them on.
//
// Errors: whatever is not out_of_memory would be raised in the program, from allocations, captures
// and deleters alike, where the native allocator raises nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "weir/device.h"
#include "weir/result.h"
#include "weir/statistics.h"
#include "weir/types.h"

namespace weir::contract {

// c10::MempoolId_t.
using PoolId = std::pair<unsigned long long, unsigned long long>;
// Called with a stream's handle, in the thread that allocates.
using PoolFilter = std::function<bool(void*)>;

// A stream as PyTorch names it.
struct StreamName {
  Stream stream;
  bool lasts = true;  // a stream of PyTorch's own, which lives as long as the process
  bool bare = false;  // only its handle is given: the allocator finds out whether it lasts
};

class TorchAllocator {
 public:
  TorchAllocator() = default;
  TorchAllocator(const TorchAllocator&) = delete;
  TorchAllocator& operator=(const TorchAllocator&) = delete;
  virtual ~TorchAllocator() = default;

  virtual Result<void*> allocate(Bytes bytes, StreamName stream) = 0;
  virtual Status deallocate(void* block) = 0;
  virtual Status record_stream(void* block, StreamName user) = 0;
  virtual Status empty_cache() = 0;
  virtual Status set_limit(Bytes limit) = 0;  // zero: none
  virtual void set_caching(bool on) = 0;

  // One more, or one fewer, user of the pool; it is made for its first.
  virtual Status retain_pool(PoolId pool) = 0;
  virtual Status release_pool(PoolId pool) = 0;
  // One more user; and requests that the filter takes go to the pool until end_pool().
  virtual Status begin_pool(PoolId pool, PoolFilter filter, StreamName current) = 0;
  virtual Status end_pool(PoolId pool, StreamName current) = 0;
  // A capture that was to begin or to end on that stream failed with an error.
  virtual void capture_failed(StreamName) {}

  // The pool's live blocks are noted; and just these are live again, at their addresses: others are
  // freed.
  virtual Status save_pool(PoolId pool) = 0;
  virtual Status restore_pool(PoolId pool) = 0;

  // The pool that the block came from; {0, 0}: none.
  virtual PoolId pool_of(void* block) const = 0;
  // Of blocks that were not given back, or that have yet to go.
  virtual Bytes live_bytes() const = 0;
  // What is wrong with the allocator's own books.
  virtual std::vector<std::string> validate() const = 0;
  // Where memory was placed, for comparing runs.
  virtual std::vector<PoolLayout> layouts() const { return {}; }
};

}  // namespace weir::contract
