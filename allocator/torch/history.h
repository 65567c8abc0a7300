// SPDX-License-Identifier: Apache-2.0
// What PyTorch's memory history asks for: the latest events, with the contexts (stacks) in which
// memory was allocated and freed, and whoever wants to hear of segments as they come and go.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch/streams.h"
#include "weir/event.h"
#include "weir/types.h"

namespace weir::pytorch {

namespace native = c10::CachingDeviceAllocator;

// Of the calling thread: what torch.compile is at work on, and what the program noted.
struct ThreadNotes {
  std::vector<std::string> compile_contexts;
  std::string user_metadata;
};
ThreadNotes& thread_notes();

// Of one device. As an EventSink it hears of mappings: PyTorch's segments.
// Threads: self-synchronised. Trackers are called under the history's lock, and of segments under
// the heap's: once memory is there, and before it goes. They must not call Weir or PyTorch's
// allocator.
class History final : public EventSink {
 public:
  struct Options {
    bool enabled = false;
    native::CreateContextFn context = nullptr;  // null: no stacks
    std::size_t most_entries = 1;
    native::RecordContext when = native::RecordContext::NEVER;
    std::vector<std::string> skip_actions;
  };
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Action = native::TraceEntry::Action;

  // `pool`: of a GraphPool::id().
  using PoolNames = std::function<c10::MempoolId_t(std::uint64_t)>;

  // `heap` and `streams` must outlive this; who destroys it has the heap stop recording first.
  History(c10::DeviceIndex device, DeviceHeap& heap, const Streams& streams, PoolNames pool)
      : device_(device), heap_(heap), streams_(streams), pool_(std::move(pool)) {}

  // Throws c10::Error for an action to skip that PyTorch does not know.
  void set(const Options& options, bool clear);
  // Does anybody want entries: the history itself, or a tracker? Else nothing need be told.
  bool wants_entries() const { return wants_entries_.load(std::memory_order_relaxed); }
  // Trackers get every entry, whether there is a history or not.
  void track(native::AllocatorTraceTracker tracker);

  // The caller's stack, if one is wanted for that: before an allocation; before memory is freed, or
  // goes back to the driver.
  Context context_of_allocation() const { return gather(native::RecordContext::STATE); }
  Context context_of_release() const { return gather(native::RecordContext::ALL); }
  // While it lives, mappings that this thread makes and removes are said to come of `context`,
  // which must outlive it.
  class Cause {
   public:
    explicit Cause(const Context& context);
    ~Cause();
    Cause(const Cause&) = delete;
    Cause& operator=(const Cause&) = delete;

   private:
    const Context* const before_;
  };
  // An entry of the history, and of trackers. Sizes of blocks are as asked for, as in PyTorch's own
  // history. FREE_COMPLETED comes before the memory may serve others. SEGMENT_ALLOC and
  // SEGMENT_FREE are those of an allocator that is not Weir's; the entry's context is then the
  // thread's Cause. What goes without a context has that of its allocation,
  // if there has been a history since then.
  // `metadata`: of an annotation; null: the thread's.
  void note(Action action, Address at, Bytes bytes, Stream stream, c10::MempoolId_t pool,
            Context context = nullptr, const std::string* metadata = nullptr);
  void annotate(const std::vector<std::pair<std::string, std::string>>& metadata);

  // Segments that were there before somebody asked are no news: PyTorch's snapshots show them.
  void on_start(std::span<const Event> initial) override;
  void on_event(const Event& event) override;

  Context context_of(const void* block) const;
  // Of the request that the segment around `address` was made for, while somebody wanted entries.
  Context context_of_segment(Address address) const;
  // A live block has another owner now, or none.
  void forget(const void* block);
  std::vector<native::TraceEntry> entries() const;  // oldest first
  std::vector<native::AnnotationEntry> annotations() const;

 private:
  Context gather(native::RecordContext least) const;
  void listen();
  void add(Action action, Address at, Bytes bytes, void* stream, c10::MempoolId_t pool,
           Context context, const std::string* metadata = nullptr);
  void note_owners(const Event& event);

  const c10::DeviceIndex device_;
  DeviceHeap& heap_;
  const Streams& streams_;
  const PoolNames pool_;
  std::atomic<bool> wants_entries_{false};  // then this is a sink of heap_; by listening_mutex_

  std::mutex listening_mutex_;  // before the heap's locks, and so before mutex_

  mutable std::mutex mutex_;
  Options options_;                                    // guarded by mutex_
  std::vector<Action> skipped_;                        // guarded by mutex_
  std::deque<native::TraceEntry> entries_;             // guarded by mutex_
  std::deque<native::AnnotationEntry> annotations_;    // guarded by mutex_
  std::unordered_map<const void*, Context> contexts_;  // guarded by mutex_; of live blocks
  struct Owner {
    std::uint64_t stream = 0;  // Stream::id
    std::uint64_t pool = 0;    // GraphPool::id()
  };
  std::unordered_map<std::uint32_t, Owner> heaps_;  // guarded by mutex_; by HeapId
  struct Segment {
    Bytes bytes;
    Owner owner;      // of a mapping
    Context context;  // that it comes of
  };
  Segment take_segment(Address at);
  std::map<Address, Segment> segments_;                  // guarded by mutex_; mapped
  std::map<PageId, std::uint64_t> lenders_;              // guarded by mutex_; of lent pages
  std::vector<native::AllocatorTraceTracker> trackers_;  // guarded by mutex_
};

}  // namespace weir::pytorch
