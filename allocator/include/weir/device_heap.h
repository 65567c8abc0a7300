// SPDX-License-Identifier: Apache-2.0
// One device's memory, handed out by stream: the allocator's core.
//
// Work on the stream that a block was allocated for may use it at once. Work on another stream must
// be named with fence(), after it was queued and before the block is deallocated. A block's memory
// serves other requests at once: the stream that gets it waits, on the GPU, for its fences, and for
// the work of the stream that freed it.
//
// Threads: every call may be made from any thread; calls about one block must not overlap (a block
// is deallocated once, after its fences). On the hot path threads with different streams share no
// lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/device.h"
#include "weir/event.h"
#include "weir/heap_captures.h"
#include "weir/heap_tags.h"
#include "weir/heap_types.h"
#include "weir/result.h"
#include "weir/statistics.h"
#include "weir/types.h"

namespace weir {

class DeviceHeap {
 public:
  // `device` and `sink` must outlive the heap. `sink` gets every event from the first on.
  explicit DeviceHeap(Device& device, HeapOptions options = {}, EventSink* sink = nullptr);
  // Does not wait: first synchronise all work that still uses the memory.
  ~DeviceHeap();

  // The identity of the caller's stream. A capture of the stream goes on undisturbed if a
  // PoolBinding is open or paused, or under Trust::context; otherwise the call breaks it, as
  // Device::stream() does. (For the per-thread default stream it always breaks the capture, unless
  // it refuses the stream.) Under Trust::context a stream has one identity, in captures and
  // outside. Under Trust::told a stream that is first seen in a capture has a number of Weir's own
  // while it is captured, and the driver's id afterwards. Errors: device; invalid_argument
  // (Trust::told, and the per-thread default stream: its handle names another stream in each
  // thread); capture (the stream is being captured into no pool: the question broke the capture).
  Result<Stream> stream(void* handle);

  // A block of at least `bytes`, aligned to kGrain, for work on `stream`. Zero bytes: null.
  // Errors: out_of_memory; asleep (the tag's); capture (Trust::told: no graph pool serves the
  // stream's capture); invalid_argument (Stream::all()); device.
  Result<void*> allocate(Bytes bytes, Stream stream);

  // "Work queued so far on `user` uses these blocks": one event for all of them, or one each while
  // a binding is open or a free is deferred, or if one of them is a graph pool's. A fence on the
  // block's own stream is implied by deallocate() and costs nothing. Null is passed over. Errors:
  // unknown_pointer (none of the blocks is changed); invalid_argument (Stream::all()); capture
  // (`user` is being captured into no pool); device.
  Status fence(std::span<void* const> blocks, Stream user);
  Status fence(void* block, Stream user) { return fence(std::span<void* const>(&block, 1), user); }

  // As fence(), for pointers anywhere into blocks; memory that is not the heap's is passed over,
  // and `pointers` may be empty. The blocks may be deallocated at once, even after an error: a
  // block that can't take the fence now takes it later, before its memory serves anything else.
  // Blocks of `user` need no fence. In a capture the fence of a graph pool's block is an edge of
  // the graph; another block's free waits for the capture's end. Returns the fence's point, for
  // wait(); none: `user` is being captured, or the device refuses an event now. `exact`: the point
  // covers the work queued so far and no more; pass true if the point goes to note_waited(). If
  // false, the point may cover later work too, and no event is recorded if no block needs a fence.
  // Errors: device (the driver does not say whether `user` is captured); invalid_argument
  // (Stream::all()).
  Result<std::optional<Fence>> fence_use(std::span<const void* const> pointers, Stream user,
                                         bool exact);
  // Makes work queued on `waiter` from now on run after the point, on the GPU. If the heap knows
  // that it does so already, the call costs nothing. Errors: device; capture (`waiter` is being
  // captured: the order of its work is the graph's).
  Status wait(Stream waiter, Fence fence);

  // Tells the heap that the program has made `waiter` wait for the point by a call of its own. Does
  // nothing for a stream that is being captured.
  void note_waited(Stream waiter, Fence fence);

  // "Work queued so far on `stream` waits for other processes": NCCL's operations do. This matters
  // under Trust::context: there a request may wait for an event of the whole context, and so for
  // this work; if those processes in turn wait for work that needs the requested memory, both hang.
  // Until the work is seen to be over, requests take memory that needs no such wait, else new
  // memory. They wait if there is neither; under ReusePolicy::no_wait they fail. Does nothing for a
  // stream that is being captured, and nothing under Trust::told.
  void note_remote_work(Stream stream);

  // Makes work queued on `later` from now on run after all that `earlier` holds so far, on the GPU:
  // an exact fence_use() of no pointers, then wait(). Errors: device; capture (one of the streams
  // is being captured: the order of its work is the graph's).
  Status order(Stream earlier, Stream later);

  // For code written for PyTorch's record_stream: "`user` may use the block until it is
  // deallocated". deallocate() takes the fence, so it may cover work that was queued after this
  // call.
  Status record_stream(void* block, Stream user);

  // Gives the block back. Null is fine.
  //
  // The free is deferred to a later call in these cases:
  // - While a PoolBinding is open or paused, or another free waits: (a) the block's own stream,
  //   unless it is Stream::may_end, is being captured now; or (b) a captured stream was named for
  //   the block, and a capture that was open then is not over. The free is done once all captures
  //   that are open at this call are over.
  // - A capture into the block's graph pool is going on, and a stream outside it was named for the
  //   block meanwhile, or the block was allocated outside it: until it is over. (Under
  //   Trust::context blocks of earlier captures are exempt, if this one's binding was opened before
  //   it began, with no work left.)
  // - A stream that record_stream() named is being captured: until it is not, or, for a block of a
  //   pool that is captured into, until that capture is over.
  // - Under Trust::context, no event can be recorded for a stream that record_stream() named, nor
  //   for the whole context: until one can.
  // To deallocate the block again is an error (unknown_pointer). Until the free is done the block
  // counts as live in statistics, snapshots and find().
  //
  // Errors: unknown_pointer; device (under Trust::told, no event could be recorded for a stream
  // that record_stream() named; or graph pools are in use, and the driver does not say whether the
  // stream is captured). The block is still live then, and may be deallocated again.
  Status deallocate(void* block);

  // The live block that `pointer` points into.
  std::optional<BlockInfo> find(const void* pointer) const;
  // Returns whether `pointer` lies among this heap's addresses, in a live block or not.
  bool owns(const void* pointer) const;
  // The parts of pages that the live block at `block` consists of, in order; none: no such block.
  std::vector<PagePart> parts(const void* block) const;

  // Says that `stream` is about to be destroyed: its last fence is taken now. Nothing may be queued
  // on it or allocated for it again. Blocks allocated for it may still be deallocated; calls that
  // name it as a block's user, or as order()'s `earlier`, mean its work up to this call.
  Status retire(Stream stream);

  // Calls about captures and graphs.
  HeapCaptures captures() { return HeapCaptures(*this); }

  // Gives idle pages back to the driver until at most `keep` bytes are held, or nothing more can
  // go. Trim::at_once passes over pages that work still uses (with fixed addresses the host waits,
  // as the device is not asked). Trim::waits waits for that work first, and up to 0.1 s for the
  // driver to report released graphs gone. Returns the bytes given back, but not those of deferred
  // frees that the call made first. Errors: device; capture (a stream is being captured, and either
  // Trim::waits would wait for its work, or nothing could go).
  Result<Bytes> trim(Bytes keep = 0_B, Trim how = Trim::at_once);

  // Sets access to all mapped memory anew. Call it once the device has got further peers
  // (CudaDevice::add_peer()).
  Status renew_access();

  // Changes the limit, graph pools included; zero: none. If more is held, idle memory goes back at
  // once. Free memory that work on the device still uses goes back with the first deallocate()
  // after that work is done; memory that a graph may use, once the graph is gone.
  void set_limit(Bytes limit);
  // The options given to the constructor, with the limit as it is now.
  HeapOptions options() const;

  // Adds a callback, which frees blocks that the program can do without; an empty one adds nothing.
  // A request calls each once at most, in its own thread and with no lock held, and then looks for
  // free memory again. What a callback uses must live as long as this. A callback that allocates
  // must bound the recursion: if its own request finds no memory, that calls all callbacks again.
  // An exception that it throws passes through allocate(), which then gives out no block.
  using ShortageCallback = std::function<void(Bytes requested)>;
  void on_shortage(Shortage when, ShortageCallback callback);

  Statistics statistics() const;
  void reset_peaks();
  // Of the device heap's own memory, and of the graph pools that the program has open, by pool.
  std::vector<PoolLayout> layouts() const;
  HeapSnapshot snapshot() const;

  // Calls the on_start() of `sink` with what there is at this moment: pools, heaps, pages, leases,
  // mappings, live blocks. From then on `sink` gets every event. Calls that other threads make
  // meanwhile wait for its end. Several sinks may record at once, each added once.
  void start_recording(EventSink& sink);
  // Once this returns, `sink` is called no more. Returns whether it was recording.
  bool stop_recording(EventSink& sink);

  // The tags of the heap's memory, which sleep and wake.
  HeapTags& tags();

  // Checks every invariant of the whole heap; returns each that is broken, in words.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  friend class GraphPool;
  friend class PoolBinding;
  friend class CaptureScope;
  friend class Graph;
  friend class HeapCaptures;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
