// SPDX-License-Identifier: Apache-2.0
// An independent model of what a device heap must be: which blocks are live and what they were
// asked for. It shares no code with the core, and looks at memory only through the simulated
// device's own page table.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "weir/device_heap.h"
#include "weir/sim_device.h"
#include "weir/types.h"

namespace weir::test {

// Not thread-safe.
class Oracle {
 public:
  struct Block {
    Bytes requested;
    Bytes bytes;                    // rounded up as the contract says
    std::uint64_t stream = 0;       // Stream::id
    HeapId heap;                    // that the device heap says it is of
    std::set<std::uint64_t> users;  // streams beside its own that were named for it
  };

  // Asleep no block has memory; partly asleep (a call failed on the way) any block may lack some.
  enum class Memory { awake, asleep, partly_asleep };
  void set_memory(Memory memory) { memory_ = memory; }
  void allocated(void* block, Bytes requested, Stream stream, HeapId heap);
  void deallocated(void* block);
  // fence() or record_stream() named the stream.
  void used(void* block, Stream user);
  void ran_out_of_memory() { ++out_of_memory_; }

  const std::map<std::uint64_t, Block>& blocks() const { return blocks_; }  // by address

  // Everything in which `heap`, on `device`, differs from the model; none: all holds.
  std::vector<std::string> check(const DeviceHeap& heap, const SimDevice& device) const;

 private:
  struct Gauge {
    std::uint64_t current = 0, peak = 0, total = 0;
    void move(std::int64_t by);
  };
  struct Gauges {
    Gauge blocks, bytes, requested;
    void move(const Block& block, int direction);
  };
  // What the blocks of one physical handle use of it.
  struct Page {
    Bytes bytes;
    Bytes used;
    std::uint64_t mappings = 0;
    std::map<std::uint64_t, std::uint64_t> ranges;  // of live blocks: offset to end
  };
  using Pages = std::map<PhysicalHandle, Page>;
  using Complaints = std::vector<std::string>;

  Pages place_blocks(const SimDevice& device, Complaints& complaints) const;
  void check_addresses(Complaints& complaints) const;
  // Returns the sizes of pages that the snapshot shows in use.
  Bytes check_snapshot(const DeviceHeap& heap, const Pages& pages, Complaints& complaints) const;
  void check_pages(const std::vector<PageInfo>& infos, const Pages& pages,
                   Complaints& complaints) const;
  void check_statistics(const DeviceHeap& heap, const SimDevice& device, const Pages& pages,
                        Bytes leased, Complaints& complaints) const;

  Memory memory_ = Memory::awake;
  std::map<std::uint64_t, Block> blocks_;
  Gauges all_;
  std::map<HeapId, Gauges> by_heap_;
  std::uint64_t out_of_memory_ = 0;
};

// Bytes that a request on any stream could surely have had: idle pages, and what the limit and the
// device leave to be created.
Bytes surely_available(const DeviceHeap& heap, Bytes limit, Bytes memory);

// What `device` still holds, in words; none: everything was given back.
std::vector<std::string> leaks(const SimDevice& device);

}  // namespace weir::test
