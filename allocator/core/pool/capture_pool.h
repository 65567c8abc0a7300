// SPDX-License-Identifier: Apache-2.0
// A graph pool: a pool on the device of its captures, and what its captures and graphs hold of it.
//
// A stream has one heap here for both of its epochs, eager and captured, so that what a warm-up
// freed serves the capture. Under Trust::told a capture begins when the host has seen all eager
// work on the pool's memory complete; else the program orders the two. And all that was captured is
// past once it has ended: so nothing of one epoch is ever waited for in the other.
//
// Blocks that were not allocated in the capture that is going on may be in use by eager work (but
// those of earlier captures, if no work was left as it began), as are those that an eager stream is
// said to use: when they are freed meanwhile, they go back at its end.
//
// A capture is paused while no binding leads to the pool and the capture itself goes on. Its epoch
// stays until it is resumed or over. Another capture may begin in the pause, or take memory, under
// Trust::context and if the paused one used the pool's memory on one stream only: then nothing but
// the order of that stream is lost with the epoch.
//
// Threads: self-synchronised by one lock a pool, taken before its Pool's. Under it the device
// heap's page lock may be taken, never the other way round.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/pool/graph_order.h"
#include "core/pool/pool.h"
#include "core/pool/pool_events.h"
#include "core/pool/pool_scratch.h"
#include "weir/statistics.h"

namespace weir {

// Where work runs that uses a block: eagerly, in a capture into the block's pool, or in another
// capture (of the device heap's own memory: in any).
enum class UsedIn : std::uint8_t { eager, own_capture, other_capture };

// The device of a graph pool; a base, so that it is there before the pool.
struct OnPoolEvents {
  PoolEvents events_;
};

class CapturePool final : private OnPoolEvents,
                          public Pool,
                          public std::enable_shared_from_this<CapturePool> {
 public:
  // `scratch`: as GraphPoolOptions has it.
  CapturePool(std::uint64_t id, std::string tag, Pool::Shared shared, Pool& eager,
              const HeapOptions& options, std::optional<GraphScratch> scratch);

  // --- Blocks.

  // `capture`: the driver's number of the stream's capture; 0: it is not being captured. No
  // address: `status` says why.
  Address allocate(Bytes bytes, Stream stream, std::uint64_t capture, Status& status,
                   PageHeap::Create create = PageHeap::Create::may);
  // Work of `user`, which runs there, uses the block. False: it is not live. Errors: device.
  Result<bool> note_use(StreamHeap& heap, Address block, Stream user, UsedIn where,
                        LiveBlock::Fenced fenced);
  Result<bool> deallocate(StreamHeap& heap, Address block, StreamHeap::Gone gone);
  std::vector<PlacedBlock> blocks() const;
  // Makes these the live blocks. Errors: invalid_argument, out_of_memory, device: nothing changed.
  Status restore(std::span<const PlacedBlock> blocks);
  // The stream is about to be destroyed.
  Status retire(Stream stream) override;

  // --- Captures. Their numbers are their bindings', which no other has.

  // The capture begins; or goes on, if it is paused. `watches`: nobody tells when the graph is
  // launched; it is watched until it is gone. `goes_on`: the driver's capture has begun. Under
  // Trust::told the host waits for eager work on the pool's memory, with no lock held; under
  // Trust::context it waits for nothing, and memory whose work is not seen to be over by then
  // serves the stream alone that used it. Errors: invalid_argument (another capture goes on);
  // asleep; device.
  Status begin_capture(std::uint64_t number, bool watches, bool goes_on);
  // No request of the capture comes until it begins again; it may be over. `keep`: it makes a
  // graph. `graphs`: how many graphs more the pool has than was said before: 1, 0 or -1.
  void pause_capture(std::uint64_t number, bool keep, int graphs);
  // The paused capture is over. (Another may have taken its place.)
  void end_capture(std::uint64_t number);
  // The number of the capture that goes on, paused or not; 0: none does.
  std::uint64_t capture() const;
  // Does a capture keep warm-ups from beginning?
  bool refuses_warm_ups() const;
  // Before a capture, into whatever pool, begins.
  void settle();

  // --- Graphs.

  // Their launches, and what is lent between them.
  PoolScratch& scratch() { return scratch_; }
  void release_graph();
  // Does it keep pages only because launches of graphs that are gone may be running? They go with
  // give_back_pages() once those are done. `hopes`: and has the host not waited for that in vain?
  bool lingers(bool hopes = false) const;
  // The host begins to wait for that. Does it linger?
  bool begin_to_wait_for_graphs();
  // The host did wait, for as long as it would; `leaked`: the graphs are never destroyed.
  void note_lingers_on(bool leaked);

  // --- Pages.

  // Are its pages of the device heap's kind, so that they may go from one to the other?
  bool shares_pages() const { return memory() == eager_->memory(); }
  // Pages that it need not keep go to the device heap, or to the driver if they are of another
  // kind. `if_useful`: nothing goes to the driver from a pool that is not closed, as it may need
  // the pages again. Returns whether there were any.
  bool give_back_pages(bool if_useful = false);
  // Idle memory goes to the driver until `wanted` bytes went: nothing while it is captured into.
  Result<Bytes> give_to_driver(Bytes wanted);
  // give_to_driver() of a pool that shares no pages, and that no other thread is at work in.
  Result<Bytes> try_give_to_driver(Bytes wanted);
  // Idle pages for the device heap, whose page lock is held: nothing, if another thread is at work.
  // The pool was taken from SparingPools; it enters itself again if more may go later.
  std::vector<PageHeap::UnmappedPage> try_spare(Bytes wanted);
  // Nobody will bind requests to it any more.
  void close();
  // If it is closed, and has no graphs, live blocks or pages, its heaps and addresses go, and
  // nothing is to be asked of it any more.
  bool end_if_gone();
  // For trim(): without pages, what else is held for them goes; but for addresses, since what was
  // captured into an open pool, or saved of it, has their blocks.
  void tidy();

  GraphPoolStatistics statistics() const;
  std::vector<std::string> validate_captures() const;
  // For what is said of the whole as of one moment: nothing changes while the lock is held.
  struct Held {
    std::unique_lock<Mutex> lock;
    std::uint64_t pool = 0;
    bool is_captured = false, is_closed = false;
  };
  Held hold() const WEIR_NO_THREAD_ANALYSIS;

 private:
  static constexpr std::uint32_t kEager = 0;
  struct Capture {
    std::uint64_t number = 0;
    std::uint32_t epoch = kEager;
    bool watches = false;
    bool untold = false;  // its graph is launched without a word
    // No work was left: what earlier captures placed is used by this one alone.
    bool began_idle = false;
    bool paused = false;
    bool keeps = false;            // it makes a graph, as its pause said
    std::uint64_t used_on = 0;     // Stream::id of the first; 0: none yet
    bool several_streams = false;  // use it
    std::uint64_t served = 0;      // the driver's number; 0: none yet
    std::uint64_t watched = 0;     // the driver's number, once its graph is watched
    std::vector<std::pair<Address, Stream>> users;  // that record_stream() named

    // May another capture take its place?
    bool may_be_replaced(bool told) const { return paused && !told && !several_streams; }
    void note_use(Stream stream) {
      if (used_on == 0) used_on = stream.id;
      several_streams = several_streams || used_on != stream.id;
    }
  };

  void end_capture_locked() WEIR_REQUIRES(mutex_);
  void note_user_after(Address block, Stream user) WEIR_REQUIRES(mutex_);
  // Something happens in the pool: there may be points to settle, and idle memory.
  void note_touched() WEIR_REQUIRES(mutex_);
  void enter_as_sparing();
  void free_deferred() WEIR_REQUIRES(mutex_);
  bool give_back_pages_locked() WEIR_REQUIRES(mutex_);
  mutable Mutex mutex_;
  std::optional<Capture> capture_ WEIR_GUARDED_BY(mutex_);  // that goes on
  std::uint32_t last_epoch_ WEIR_GUARDED_BY(mutex_) = kEager;
  // Nothing was served, used or freed here since all that streams did was recorded: pools that a
  // program leaves alone cost its captures nothing.
  bool settled_ WEIR_GUARDED_BY(mutex_) = false;
  std::atomic<bool> may_spare_{false};  // it is entered in SparingPools
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
  GraphOrder graphs_ WEIR_GUARDED_BY(mutex_);
  // Captures that are not the pool's took memory of it.
  bool has_guests_ WEIR_GUARDED_BY(mutex_) = false;
  // Blocks that eager streams were said to use while the capture goes on.
  std::unordered_set<std::uint64_t> eager_uses_ WEIR_GUARDED_BY(mutex_);
  // Blocks that were freed while a capture goes on, and that eager work may use, by address. They
  // go back when it has ended.
  using Deferred = std::unordered_map<std::uint64_t, StreamHeap*>;
  Deferred deferred_ WEIR_GUARDED_BY(mutex_);
  friend class PoolScratch;
  PoolScratch scratch_;
};

}  // namespace weir
