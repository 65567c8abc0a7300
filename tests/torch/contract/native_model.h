// SPDX-License-Identifier: Apache-2.0
// A plain model of PyTorch's native caching allocator on the simulated device: what a legal program
// runs on without a race, so that the generator of programs can be checked.
//
// Blocks are split and merged within segments, and given out again, best fit, within their pool and
// for their stream alone; a block that record_stream() named is held back until events on those
// streams are done; while anything is captured or allocates from a pool, no event is recorded or
// asked about; segments go by cudaFree alone, which waits for the device.
// Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11, without expandable segments.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/torch/contract/torch_allocator.h"
#include "weir/sim_device.h"

namespace weir::contract {

// What is wrong with a model on purpose, for tests of the programs: they have to find it.
enum class NativeDefect : std::uint8_t {
  none,
  frees_at_once,         // cudaFree waits for nothing
  serves_other_streams,  // a free block serves every stream
  serves_other_pools,    // what a pool frees is everybody's
  forgets_records,       // record_stream() does nothing
  asks_in_captures,      // events are recorded and asked about while captures go on
  orders_streams,        // a request's stream waits for the one that asked before
  keeps_dropped,         // what is dropped while a pool is bound stays live
};

// Not thread-safe.
class NativeModel final : public TorchAllocator {
 public:
  // `device` must outlive this.
  explicit NativeModel(SimDevice& device, NativeDefect defect = NativeDefect::none)
      : device_(device), defect_(defect) {}
  ~NativeModel() override;

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
  Status save_pool(PoolId pool) override;
  Status restore_pool(PoolId pool) override;
  PoolId pool_of(void* block) const override;
  Bytes live_bytes() const override;
  std::vector<std::string> validate() const override { return {}; }

 private:
  struct Pool;
  struct Block {
    Address address;
    Bytes bytes;
    std::uint64_t stream = 0;
    Pool* pool = nullptr;
    bool small = false;
    bool live = false;
    Block* before = nullptr;  // its neighbours in the segment
    Block* after = nullptr;
    std::vector<Stream> recorded;
    int events = 0;  // that are to be done before it is given out again
  };
  struct ByFit {
    bool operator()(const Block* a, const Block* b) const;
  };
  struct Saved {
    Address address;
    Bytes bytes;
    bool small = false;
  };
  struct Pool {
    PoolId id;
    std::set<Block*, ByFit> small, large;  // free blocks
    std::vector<Saved> saved;
    int uses = 0;
  };
  struct Binding {
    PoolId pool;
    PoolFilter takes;
  };
  struct Segment {
    PhysicalHandle handle;
    Bytes bytes;
  };

  Result<Address> cuda_malloc(Bytes bytes);
  void cuda_free(Address address);
  Pool& pool_for(Stream stream);
  // Whose free blocks a request may have.
  std::uint64_t owner(Stream stream) const {
    return defect_ == NativeDefect::serves_other_streams ? 0 : stream.id;
  }
  bool defers() const { return !bindings_.empty() && defect_ != NativeDefect::asks_in_captures; }
  Block* find_free(Pool& pool, bool small, std::uint64_t stream, Bytes bytes);
  void split(Block& block, Bytes bytes);
  Block& cut(Block& block, Bytes bytes);  // returns the rest, which is free
  void free_block(Block& block);
  static bool take_free(Block* block);  // out of its pool's free blocks, if it is one
  void absorb(Block& lower, Block& upper);
  void wait_for_the_last(Stream stream);
  void insert_events(Block& block);
  void process_events();
  void wait_for_events();
  void release_cached();
  void release_blocks(std::set<Block*, ByFit>& blocks);

  SimDevice& device_;
  const NativeDefect defect_;
  bool caching_ = true;
  Bytes limit_;
  Bytes reserved_;
  Pool default_pool_;
  std::map<PoolId, std::unique_ptr<Pool>> pools_;
  std::vector<Binding> bindings_;  // the newest last
  Stream asked_last_;              // with NativeDefect::orders_streams
  std::unordered_map<void*, std::unique_ptr<Block>> blocks_;
  std::set<void*> uncached_;
  std::map<Address, Segment> segments_;
  std::vector<Block*> deferred_;  // until nothing is captured
  std::deque<std::pair<EventHandle, Block*>> events_;
};

}  // namespace weir::contract
