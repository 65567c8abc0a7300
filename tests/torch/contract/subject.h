// SPDX-License-Identifier: Apache-2.0
// Weir as PyTorch's backend drives it: a device heap with pools and uncached memory.
//
// As there, a stream is looked up by its handle when memory is allocated for it or recorded on it,
// and at no other time: readers run on streams that Weir has never met.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/torch/contract/torch_allocator.h"
#include "torch/pools.h"
#include "torch/segment_pool.h"
#include "weir/device_heap.h"

namespace weir::contract {

struct SubjectOptions {
  // No stream may be made to wait for another one, since its kernels may wait for the host.
  bool never_waits = false;
  // Another library captures a stream that the allocator can't know of: WEIR_CONTEXT_EVENTS=0.
  bool captures_unseen = false;
  bool fixed_addresses = false;
};

// Not thread-safe.
class Subject final : public TorchAllocator {
 public:
  // `device` must outlive this.
  explicit Subject(Device& device, SubjectOptions options = {});

  Result<void*> allocate(Bytes bytes, StreamName stream) override;
  Status deallocate(void* block) override;
  Status record_stream(void* block, StreamName user) override;
  Status empty_cache() override;
  Status set_limit(Bytes limit) override;
  void set_caching(bool on) override { caching_ = on; }
  Status retain_pool(PoolId pool) override;
  Status release_pool(PoolId pool) override;
  Status begin_pool(PoolId pool, PoolFilter filter, StreamName current) override;
  Status end_pool(PoolId pool, StreamName current) override;
  void capture_failed(StreamName current) override;
  Status save_pool(PoolId pool) override;
  Status restore_pool(PoolId pool) override;
  PoolId pool_of(void* block) const override;
  Bytes live_bytes() const override { return {heap_.statistics().live_bytes.current}; }
  std::vector<std::string> validate() const override { return heap_.validate(); }
  std::vector<PoolLayout> layouts() const override { return heap_.layouts(); }

 private:
  Result<Stream> known(StreamName name);
  bool is_captured(Stream stream);

  Device& device_;
  DeviceHeap heap_;
  pytorch::Pools pools_{heap_, device_};
  pytorch::SegmentPool uncached_;
  std::unordered_map<void*, Stream> lasting_;  // by handle
  std::map<PoolId, std::vector<PlacedBlock>> saved_;
  bool caching_ = true;
};

}  // namespace weir::contract
