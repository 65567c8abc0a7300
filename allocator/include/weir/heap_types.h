// SPDX-License-Identifier: Apache-2.0
// Types of a device heap's calls: its options, the parts of a snapshot, and what libraries attach
// to a capture.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weir/statistics.h"
#include "weir/types.h"

namespace weir {

// Whether a request takes free memory whose last use may still be running (the request's stream
// then waits on the GPU), or new memory from the driver. (Blocks of up to 256 KiB take their
// stream's free memory even if that needs a wait, except under no_wait.)
enum class ReusePolicy {
  wait,      // free memory first: least memory
  balanced,  // free memory, unless its last use is recent and a little growth avoids the wait
  no_wait,   // free memory that needs no wait (the stream's own, or its use is seen to be over),
             // else new. Two still wait: GraphPool::restore(), and a graph pool's warm-up, for
             // launches that Weir saw. Where blocks lie depends on how fast the GPU is.
};

// What the heap may rely on to know who uses a block.
enum class Trust {
  // Uses on other streams are told, by fence() or record_stream(), and streams are retired before
  // they are destroyed: the contract of this interface.
  told,
  // Only what PyTorch's own allocator relies on: a use on another stream is queued before the block
  // goes back, and may be told or not; streams may be destroyed at any time. Memory goes to another
  // stream or pool, or back to the driver, only behind an event of the whole context
  // (docs/guarantees.md).
  context,
};

// What memory is made of.
enum class MemoryKind {
  pages,  // mapped by Weir, at several addresses where that saves memory
  plain,  // segments from the driver (CUDA: cudaMalloc), which other processes and libraries may
          // open; a block lies within one. Memory that lies in pieces is not joined.
};

// Where a pool's own addresses lie; those of plain memory are always the driver's.
enum class Addresses {
  any,  // wherever the driver puts them
  // At addresses that follow from the heap's window, from whether the pool is the device heap's own
  // or a graph pool, and from the order of requests. No place depends on time, as the device is
  // never asked whether work is done: the GPU waits for memory whose last use may be running, or
  // the host does, where memory must be unmapped. Where the driver gives other addresses, the
  // request fails (ErrorCode::device).
  fixed,
  // The same, but the driver's other addresses are taken, and counted
  // (Statistics::regions_elsewhere).
  prefer,
};

// What becomes of the memory that graphs allocate and free within their captures, while they do not
// run.
enum class GraphScratch {
  keep,  // it stays the graph pool's
  // It serves launches of other graph pools, and eager requests that would otherwise make the
  // device heap hold more than ever before, or more than its limit. Graphs that the program
  // launches itself must be launched within GraphPool::begin_launch(); what a graph leaves in
  // memory that was freed within its capture is not there at its next launch. While a launch is
  // being made nothing is lent, so that a request near the limit may find no memory then. Free
  // memory that a launch claims counts as live blocks until the launch is made, also in recordings.
  // The program must not register a graph's memory with another process or network.
  lend,
};

struct HeapOptions {
  // Most physical memory to hold. Zero: as much as the device has.
  Bytes limit;
  ReusePolicy reuse = ReusePolicy::balanced;
  // Most mappings of each pool, not of all pools together. A context has room for some 524,000 in
  // all, and past that unrelated calls fail: lower this if several pools are large.
  std::uint64_t most_mappings = 400'000;
  Trust trust = Trust::told;
  MemoryKind memory = MemoryKind::pages;
  // Under Trust::context: may events of the whole context be recorded? They break a capture that
  // the heap can't know of. Without them memory goes to another stream only where the host waits:
  // in trim(), and before a request fails.
  bool context_events = true;
  Addresses addresses = Addresses::any;
  GraphScratch graph_scratch = GraphScratch::keep;
  // With fixed addresses: which part of the process's addresses the heap has, from 0. Heaps of one
  // process need different ones, below kAddressWindows.
  std::uint32_t address_window = 0;
};
inline constexpr std::uint32_t kAddressWindows = 8;

enum class Trim { at_once, waits };

// When a request that finds too little memory calls the program (DeviceHeap::on_shortage()).
enum class Shortage {
  // A request to the device heap itself (not to a graph pool) finds no free memory there, or the
  // reuse policy prefers new memory. The call comes before pages of graph pools are taken and the
  // device is asked for memory, and also if the limit leaves no room for new memory.
  miss,
  // No memory was found anywhere. The call comes before the request fails, but not for a request
  // that is larger than the device's memory.
  out_of_memory,
};

struct BlockInfo {
  Address address;
  Bytes bytes;      // rounded up to kGrain
  Bytes requested;  // as asked for
  HeapId heap;
  std::uint64_t stream = 0;  // Stream::id of the stream it was allocated for
  std::uint64_t pool = 0;    // GraphPool::id(); 0: none's
  // The rest in a snapshot only.
  std::vector<std::uint64_t> waits_for;     // Stream::id of others that use it
  std::optional<Nanoseconds> allocated_at;  // while recording
};

// A live block of a graph pool, and its place, for GraphPool::restore().
struct PlacedBlock {
  Address address;
  Bytes bytes;      // rounded up to kGrain
  Bytes requested;  // as asked for
  Stream stream;
  Address run;  // begin of its run: the block itself, or a small block's slab
  Bytes run_bytes;
};

// Where a page is mapped: whole, from `address` on.
struct MappingInfo {
  Address address;
  HeapId heap;  // whose request it was mapped for; any heap of the pool may use it
};

// Bytes of a block that lie in one page.
struct PagePart {
  PhysicalHandle handle;  // of plain memory: the segment's address
  Bytes page_bytes;
  Bytes offset;  // in the page
  Bytes bytes;
  MemoryKind memory = MemoryKind::pages;
};

struct PageInfo {
  PageId page;
  Bytes bytes;
  Bytes used;                   // by live blocks of all heaps; a slab with one counts whole
  std::optional<HeapId> lease;  // the heap that used it first since it was idle; none: it is idle
  std::uint32_t mappings = 0;
  std::vector<MappingInfo> mapped_at;     // all; the first is in the home row (docs/glossary.md)
  MemoryKind memory = MemoryKind::pages;  // plain: a segment, which has that one address
  std::uint64_t lent_by = 0;              // GraphPool::id() whose scratch it is; 0: none's
};

struct HeapInfo {
  HeapId heap;
  std::uint64_t stream = 0;  // Stream::id that it serves, or served last
  std::uint64_t pool = 0;    // GraphPool::id(); 0: the device heap's own
  bool open = true;          // false: its stream was retired
  MemoryKind memory = MemoryKind::pages;
};

// Everything a device heap holds, at one moment.
struct HeapSnapshot {
  std::string device;  // Device::name()
  Bytes device_bytes;  // memory of the device in all; zero: unknown
  Nanoseconds time;
  std::vector<BlockInfo> blocks;    // live, by address
  std::vector<PageInfo> pages;      // by id
  std::vector<HeapInfo> heaps;      // by id
  std::vector<PoolLayout> layouts;  // DeviceHeap::layouts()
  Statistics statistics;
};

// What a library keeps with a capture and then with its graph, until the graph is destroyed or the
// capture has failed. Several libraries may attach theirs: each finds its own by dynamic_cast.
struct CaptureResource {
  virtual ~CaptureResource() = default;
};

// What a library adds to a capture that it queues work in.
struct CaptureAttachment {
  // A stream that the library forked to, or one that is captured already: CaptureScope::end() joins
  // it.
  Stream forked;
  std::shared_ptr<CaptureResource> resource;  // null: none
};

}  // namespace weir
