// SPDX-License-Identifier: Apache-2.0
// A graph pool: a pool on the device of its captures, and what its captures and graphs hold of it.
//
// A stream has one heap here for both of its epochs, eager and captured, so that what a warm-up
// freed serves the capture. A capture begins when the host has seen all eager work on the pool's
// memory complete, and all that was captured is past once it has ended: so nothing of one epoch is
// ever waited for in the other.
//
// Blocks that were not allocated in the capture that is going on may be in use by eager work, as
// are those that an eager stream is said to use: when they are freed meanwhile, they go back at its
// end.
//
// A capture is paused while no binding leads to the pool and the capture itself goes on. Its epoch
// stays until it is resumed or over. Another capture may begin in the pause, or take memory, under
// Trust::context and if the paused one used the pool's memory on one stream only: then nothing but
// the order of that stream is lost with the epoch.
//
// Threads: self-synchronised by one lock a pool, taken before its Pool's. Under it the device
// heap's page lock may be taken, never the other way round.
//
// More than 25 methods: the lives of captures, of graphs and of deferred frees end each other,
// under the one lock. capture_pool_graphs.cc decides how long graphs hold pages.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/mutex.h"
#include "core/pool/pool.h"
#include "core/pool/pool_device.h"
#include "weir/statistics.h"

namespace weir {

// Where work runs that uses a block: eagerly, in a capture into the block's pool, or in another
// capture (of the device heap's own memory: in any).
enum class UsedIn : std::uint8_t { eager, own_capture, other_capture };

// The device of a graph pool; a base, so that it is there before the pool.
struct OnPoolDevice {
  PoolDevice device_;
};

class CapturePool final : private OnPoolDevice,
                          public Pool,
                          public std::enable_shared_from_this<CapturePool> {
 public:
  CapturePool(std::uint64_t id, std::string tag, Pool::Shared shared, Pool& eager,
              const HeapOptions& options);

  // `capture`: the id of the capture, into this pool, of the stream; 0: it is not being captured.
  // No address: `status` says why.
  Address allocate(Bytes bytes, Stream stream, std::uint64_t capture, Status& status,
                   PageHeap::Create create = PageHeap::Create::may);
  Result<bool> fence(StreamHeap& heap, Address block, Stream user, UsedIn where);
  bool record_stream(StreamHeap& heap, Address block, Stream user, UsedIn where);
  Result<bool> deallocate(StreamHeap& heap, Address block, StreamHeap::Gone gone);

  // The capture of that number, which no other has, begins; or goes on, if it is paused. `watches`:
  // nobody tells when the graph is launched; it is watched until it is gone. Under Trust::told the
  // host waits for eager work on the pool's memory, with no lock held; under Trust::context it
  // waits for nothing, and memory whose work is not seen to be over by then serves the stream alone
  // that used it. Errors: invalid_argument (another capture goes on); asleep; device.
  Status begin_capture(std::uint64_t number, bool watches);
  // No request of the capture comes until it begins again; it may be over. `keep`: it makes a
  // graph. `graphs`: how many graphs more the pool has than was said before: 1, 0 or -1.
  void pause_capture(std::uint64_t number, bool keep, int graphs);
  // The paused capture is over. (Another may have taken its place.)
  void end_capture(std::uint64_t number);
  // Is it the one that goes on, paused or not?
  bool is_capturing(std::uint64_t number) const;
  // Does a capture keep warm-ups from beginning?
  bool refuses_warm_ups() const;
  // Tries again what could not be freed when the capture ended.
  void free_deferred();
  bool capturing() const;
  // A graph of the pool was launched on `stream`.
  void note_launch(Stream stream);
  // A graph of the pool is about to be launched: after eager work on the pool's memory.
  Status wait_for_eager_work(Stream stream);
  // Before a capture, into whatever pool, begins.
  void settle();
  void release_graph();
  // Does it keep pages only because launches of graphs that are gone may be running? They go with
  // give_back_pages() once those are done.
  bool lingers() const;
  // The same, and the host has not waited in vain yet for the driver to say that they are done.
  bool may_end_lingering() const;
  // It did, for as long as it would; `leaked`: the graphs are never destroyed, so they are done.
  void note_lingers_on(bool leaked);
  // The stream is about to be destroyed.
  Status retire(Stream stream) override;
  // Nobody will bind requests to it any more.
  void close();
  // Are its pages of the device heap's kind, so that they may go from one to the other?
  bool shares_pages() const { return memory() == eager_->memory(); }
  // Pages that it need not keep go to the device heap, or to the device if they are of another
  // kind. Returns whether there were any.
  bool give_back_pages();
  // Those that would be of use to the device heap go there; of another kind they stay, unless the
  // pool is closed.
  bool call_in();
  // Idle memory goes to the device until `wanted` bytes went: nothing, of a pool whose pages go to
  // the device heap, or that is being captured into.
  Result<Bytes> give_to_device(Bytes wanted);
  // Nothing, too, if another thread is at work.
  Result<Bytes> try_give_to_device(Bytes wanted);
  // Idle pages for the device heap, whose page lock is held: nothing, if another thread is at work.
  // The pool was taken from SparingPools; it enters itself again if more may go later.
  std::vector<PageHeap::UnmappedPage> try_spare(Bytes wanted);
  // If it is closed, and has no graphs, live blocks or pages, its heaps and addresses go, and
  // nothing is to be asked of it any more.
  bool end_if_gone();
  // For trim(): without pages, what else is held for them goes; but for addresses, since what was
  // captured into an open pool, or saved of it, has their blocks.
  void tidy();

  std::vector<PlacedBlock> blocks() const;
  Status restore(std::span<const PlacedBlock> blocks);

  GraphPoolStatistics statistics() const;
  std::vector<std::string> validate_captures() const;

  // For what is said of the whole as of one moment.
  void lock() WEIR_ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() WEIR_RELEASE(mutex_) { mutex_.unlock(); }
  bool capturing_locked() const WEIR_REQUIRES(mutex_) { return capturing_; }
  bool closed_locked() const WEIR_REQUIRES(mutex_) { return closed_; }

 private:
  static constexpr std::uint32_t kEager = 0;
  bool is_told() const { return timelines().trust() == Trust::told; }
  bool resume_capture(std::uint64_t number);
  void end_capture_locked() WEIR_REQUIRES(mutex_);
  // May another capture take the place of the one that goes on?
  bool may_be_replaced() const WEIR_REQUIRES(mutex_) {
    return paused_ && !is_told() && !several_streams_;
  }
  void note_captured_use(Stream stream) WEIR_REQUIRES(mutex_);
  // Something happens in the pool: there may be points to settle, and idle memory.
  void note_touched() WEIR_REQUIRES(mutex_);
  void enter_as_sparing();
  bool is_block(const PlacedBlock& block) const;
  Status free_placed(const PlacedBlock& block) WEIR_REQUIRES(mutex_);
  Status place(const PlacedBlock& block) WEIR_REQUIRES(mutex_);
  std::uint64_t live_blocks() const WEIR_REQUIRES(mutex_);
  void forget_captured_time() WEIR_REQUIRES(mutex_);
  void note_eager_work(const StreamHeap& heap, Address block) WEIR_REQUIRES(mutex_);
  void free_deferred_locked() WEIR_REQUIRES(mutex_);
  Status watch(Stream stream, std::uint64_t capture) WEIR_REQUIRES(mutex_);
  bool is_watched() const WEIR_REQUIRES(mutex_);
  Status wait_for_eager_work() WEIR_EXCLUDES(mutex_);
  Result<bool> is_eager_work_done() WEIR_REQUIRES(mutex_);
  Error capture_goes_on() const;
  void begin_to_linger() WEIR_REQUIRES(mutex_);
  bool is_done_lingering() const WEIR_REQUIRES(mutex_);
  void say(EventKind kind) const;
  bool give_back_pages_locked() WEIR_REQUIRES(mutex_);
  // What only they kept, if they are done.
  void let_go_of_launches() WEIR_REQUIRES(mutex_);

  mutable Mutex mutex_;
  bool capturing_ WEIR_GUARDED_BY(mutex_) = false;
  // Of the capture that goes on.
  std::uint64_t number_ WEIR_GUARDED_BY(mutex_) = 0;
  bool paused_ WEIR_GUARDED_BY(mutex_) = false;
  bool keeps_ WEIR_GUARDED_BY(mutex_) = false;         // it makes a graph, as its pause said
  std::uint64_t used_on_ WEIR_GUARDED_BY(mutex_) = 0;  // Stream::id of the first; 0: none yet
  bool several_streams_ WEIR_GUARDED_BY(mutex_) = false;
  std::uint64_t served_capture_ WEIR_GUARDED_BY(mutex_) = 0;  // the driver's number; 0: none yet
  std::uint32_t capture_ WEIR_GUARDED_BY(mutex_) =
      kEager;  // its epoch: number of the latest capture
  // Nothing was served, used or freed here since all that streams did was recorded: pools that a
  // program leaves alone cost its captures nothing.
  bool settled_ WEIR_GUARDED_BY(mutex_) = false;
  std::atomic<bool> may_spare_{false};  // it is entered in SparingPools
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
  std::uint64_t graphs_ WEIR_GUARDED_BY(mutex_) = 0;
  // The last graph went; what it was the last to keep is kept still.
  bool lingers_ WEIR_GUARDED_BY(mutex_) = false;
  bool waited_in_vain_ WEIR_GUARDED_BY(mutex_) = false;  // for the driver, since it lingers
  // Of graphs that are watched, what each holds until it and its launches are gone.
  std::vector<std::weak_ptr<void>> watched_ WEIR_GUARDED_BY(mutex_);
  bool watches_ WEIR_GUARDED_BY(mutex_) = false;               // the capture that goes on
  std::uint64_t watched_capture_ WEIR_GUARDED_BY(mutex_) = 0;  // the last one that is; 0: none yet
  // There is a graph that is to be watched and can't be, as its capture asked for no memory.
  bool has_unwatched_ WEIR_GUARDED_BY(mutex_) = false;
  // Captures that are not the pool's took memory of it.
  bool has_guests_ WEIR_GUARDED_BY(mutex_) = false;
  FenceSet launches_ WEIR_GUARDED_BY(mutex_);    // of graphs, the last on each stream
  FenceSet eager_work_ WEIR_GUARDED_BY(mutex_);  // eager work on memory that is free again
  std::vector<TimelineId> users_ WEIR_GUARDED_BY(mutex_);  // eager, that record_stream named
  std::unordered_map<std::uint64_t, StreamHeap*> deferred_ WEIR_GUARDED_BY(mutex_);
  // Blocks that eager streams were said to use while the capture goes on.
  std::unordered_set<std::uint64_t> eager_uses_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
