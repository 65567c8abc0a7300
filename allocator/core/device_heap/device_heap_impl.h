// SPDX-License-Identifier: Apache-2.0
// The parts of a device heap, put together: it finds the pool of a stream and the heap of an
// address, and passes the call on.
//
// More than 25 methods: each public call of DeviceHeap has one, and what concerns all pools at once
// (captures, shortage, snapshots) is decided here, a file each. What can be decided alone is not:
// HeapRegistry, Pool, CapturePool, PoolBindings, DeferredFrees, StreamNames.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/device_heap/deferred_frees.h"
#include "core/device_heap/pool_bindings.h"
#include "core/device_heap/stream_names.h"
#include "core/heap/heap_registry.h"
#include "core/heap/stream_heap.h"
#include "core/memory/budget.h"
#include "core/memory/page_heap.h"
#include "core/pool/capture_pool.h"
#include "core/sleep/sleeper.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sleep.h"

namespace weir {

// What a thread knows of a stream: a few streams a thread, in a table of its own.
struct alignas(32) KnownStream {
  std::uint64_t device_heap = 0;  // its number; 0: nothing is known here
  std::uint64_t stream = 0;       // Stream::id, which is never used again
  StreamHeap* heap = nullptr;     // that served the stream the last time
};

// Threads: self-synchronised. The calls of a block's life take the locks of the pool and of the
// registry for the first that a thread makes for a stream only.
class DeviceHeap::Impl {
 public:
  Impl(Device& device, const HeapOptions& options, EventSink* sink);
  ~Impl() { registry_.clear(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<Stream> per_thread_stream(void* handle);
  Result<Stream> stream_in_a_capture(void* handle);
  Result<void*> allocate_after_miss(StreamHeap& heap, Bytes bytes,
                                    Stream stream) WEIR_NO_THREAD_ANALYSIS;
  Result<void*> allocate_block(Bytes bytes, Stream stream);
  Result<void*> allocate_in(std::shared_ptr<CapturePool> pool, Bytes bytes, Stream stream);
  Result<void*> take_free_in(std::shared_ptr<CapturePool> pool, Bytes bytes, Stream stream);
  Result<std::uint64_t> pool_serving(Stream stream);
  Status fence(std::span<void* const> blocks, Stream user);
  Result<Fence> take_fence(std::span<void* const> blocks, Stream user);
  Result<Fence> take_fence_around(std::span<const void* const> pointers, Stream user);
  Status wait(Stream waiter, Fence fence);
  void note_waited(Stream waiter, Fence fence);
  Status order(Stream earlier, Stream later);
  void note_remote_work(Stream stream);
  Status record_stream(void* block, Stream user);
  Status deallocate(void* block);
  std::optional<BlockInfo> find(Address address) const;
  Status retire(Stream stream);
  void on_out_of_memory(OutOfMemoryCallback callback);
  void on_miss(MissCallback callback);
  Statistics statistics() const;
  void reset_peaks();
  HeapSnapshot snapshot() const;
  Bytes free_bytes_used_by(std::span<const Stream> users) const;
  void start_recording(EventSink& sink);
  bool stop_recording(EventSink& sink);
  std::vector<std::string> validate() const;
  void meet(Stream stream) { captures_.meet(stream); }
  void forgo_context_events(ContextEventsLost why, std::uint64_t stream) {
    captures_.forgo_context_events(why, stream);
  }
  void on_context_events_lost(ContextEventsLostCallback callback);
  void assume_graphs_leak() { graphs_leak_ = true; }
  Result<Bytes> trim(Bytes keep, Trim how);
  Status renew_access();
  std::vector<PagePart> parts(const void* block) const;
  void set_limit(Bytes limit);
  Bytes limit() const { return budget_.limit(); }
  Trust trust() const { return options_.trust; }
  ReusePolicy reuse() const { return device_pool_.pages().reuse(); }

  // Sleep: device_heap_sleep.cc.
  Result<SleepReport> sleep(const SleepOptions& options);
  Result<SleepReport> wake(const WakeOptions& options);
  std::vector<TagInfo> tags();
  Status set_contents(const std::string& tag, SleepContents contents);
  Status declare_changed(const std::string& tag);
  Result<GraphPool*> tag_pool(DeviceHeap& heap, const std::string& tag);
  Result<std::uint64_t> hold(const void* block, std::string holder);
  void release_hold(std::uint64_t hold);
  Result<std::vector<HostPart>> host_copy(Range range);
  Status read_asleep(Range range, void* to);
  void on_sleep(HeldCallback callback);
  Residue residue();

  // Graph pools. The first three are called by GraphPool and PoolBinding.
  std::shared_ptr<CapturePool> open_pool(Bytes limit, std::optional<MemoryKind> memory,
                                         std::string tag);
  void close_pool(const std::shared_ptr<CapturePool>& pool);
  void close_tags() { tags_.clear(); }  // whose pools look at this
  // Has requests go to the pool until unbind(). `origin`: the stream that the capture begins on,
  // where it is known. Returns the binding's id.
  Result<std::uint64_t> bind(std::shared_ptr<CapturePool> pool, PoolBindings::Takes takes,
                             PoolBindings::Kind kind, std::optional<Stream> origin = std::nullopt);
  // `keep`: the capture made a graph.
  void unbind(std::uint64_t binding, bool keep, bool origin_lives);
  Result<bool> attach(Stream captured, CaptureAttachment attachment);
  bool outlives_capture(std::uint64_t binding) const { return bindings_.is_within(binding); }
  std::vector<CaptureAttachment> attached(std::uint64_t binding) const {
    return bindings_.attached(binding);
  }
  void free_deferred();
  // These blocks are live again, whatever waits to be freed.
  void forget_deferred(std::span<const PlacedBlock> live) { deferred_.forget(live); }
  Device& device() { return device_; }
  // May streams be captured, or destroyed, with nobody saying so?
  bool is_untold() const { return options_.trust == Trust::context; }
  // May a request go elsewhere, or a free have to wait? Then no call takes a fast path.
  bool bound() const { return bindings_.any(); }

  static KnownStream& known(Stream stream);
  bool knows(const KnownStream& known, Stream stream) const;
  Tile* find_tile(Address address) const { return registry_.find_tile(address); }
  StreamHeap* owner_of(Address address) const { return registry_.owner_of(address); }
  bool has_region_around(Address address) const { return registry_.has_region_around(address); }

 private:
  friend struct TestAccess;
  // No device has more: what is asked where the driver does not say how much there is.
  static constexpr Bytes kMostBytes = 1024_TiB;

  // Who serves a request.
  struct Server {
    std::shared_ptr<CapturePool> pool;  // none: the device heap's own
    std::uint64_t capture = 0;  // of the stream, into that pool; 0: it is not being captured
  };
  Result<Server> server_of(Stream stream);
  Result<Server> server_in(std::shared_ptr<CapturePool> pool, Stream stream);
  static Error not_served(Stream stream);
  Result<std::uint64_t> bind_capture(std::shared_ptr<CapturePool> pool, PoolBindings::Takes takes,
                                     PoolBindings::Kind kind, std::optional<Stream> origin);
  // Before a capture begins. `goes_on`: it has begun.
  void settle(bool goes_on);
  void note_context_events_lost(ContextEventsLost why, std::uint64_t stream);
  Result<bool> is_captured(Stream stream);
  // False, too, if it is captured into another pool.
  Result<bool> is_captured_into(const CapturePool& pool, Stream stream);
  bool call_in_pools() const;
  // Idle memory that is of no use to a request of `requester` (null: of no pool's) but by way of
  // the device goes there, until `wanted` bytes went. An error: nothing went.
  Result<Bytes> give_to_device(Bytes wanted, const CapturePool* requester);
  // What two of these gave. An error: one had one, and the other gave nothing.
  static Result<Bytes> together(Result<Bytes> one, Result<Bytes> other);
  // Over the limit, pools of another kind give up what is idle: who is at work, the next time.
  void have_pools_keep_to_limit();
  // Has the host wait for the work that still uses idle pages, and takes what pools can spare then.
  // Capturing pools are passed over, as they spare nothing: but not `requester`, the request's own.
  Status wait_for_idle_pages(const CapturePool* requester = nullptr);
  void wait_for_lingering_pools();
  // What is held for memory that is gone goes.
  void tidy();
  // Closed pools of which nothing is left go. Looks at so many of them: the others' turn comes.
  void drop_gone_pools(std::size_t most);  // with pools_mutex_ held alone
  std::vector<PageHeap::UnmappedPage> spare_of_pools(Bytes wanted);
  Result<bool> fence_in_its_epoch(StreamHeap& heap, Address block, Stream user);
  Result<bool> record_stream_in_its_epoch(StreamHeap& heap, Address block, Stream user);
  // Is this block of the device heap in use by a capture? Then it goes back when that has ended.
  Result<bool> defer(StreamHeap& heap, Address block);
  // Its free failed for a while: as a stream that uses it is captured, or (Trust::context) as the
  // device refused to record what uses it.
  bool may_be_freed_later(const Error& error) const;
  Result<bool> deallocate_now(StreamHeap& heap, Address block, StreamHeap::Gone gone);
  void free_due(const DeferredFrees::Due& due, StreamHeap::Gone gone);
  Status free_deferred_after_all_work();
  std::vector<std::shared_ptr<CapturePool>> pools() const;

  Address try_allocate(Bytes bytes, Stream stream, Status& status);
  Address try_allocate(Bytes bytes, Stream stream, PageHeap::Create create, Status& status);
  Address call_and_allocate(Bytes bytes, Stream stream, Status& status);
  // May new memory be had before the callbacks at a miss were called?
  PageHeap::Create at_first() const {
    return has_miss_callbacks_.load(std::memory_order_relaxed) ? PageHeap::Create::not_yet
                                                               : PageHeap::Create::may;
  }
  struct Request {
    Bytes bytes;
    Stream stream;
    Server server;
  };
  Address try_allocate(const Request& request, Status& status);
  Result<void*> allocate_of(const Request& request);
  // `status`: why there was no memory. The steps are its, in the order in which they are taken:
  // each returns whether it may have helped. Error: nothing else will.
  Result<void*> allocate_when_short(const Request& request, Status status);
  Result<bool> free_what_is_due(const Request& request);
  Result<bool> take_idle_pages_of_pools(const Request& request);
  Result<bool> wait_for_other_work(const Request& request);
  Result<bool> make_room_for_mappings(const Request& request);
  Result<bool> ask_the_program(const Request& request);
  Result<StreamHeap*> owner_of_block(const void* block, const char* call) const;
  static Error unknown(const void* block, const char* call);
  Status fence_one(void* block, Stream user);
  Status fence_each(std::span<void* const> blocks, Stream user);
  struct Used {
    StreamHeap* heap;
    Address block;
  };
  Result<std::vector<Used>> find_used(std::span<void* const> blocks, const char* call) const;
  bool of_several_epochs(std::span<void* const> blocks) const;
  std::vector<void*> blocks_around(std::span<const void* const> pointers) const;
  Status refuse_captured(Stream stream, const char* call);
  static Status refuse_all(Stream stream, const char* call);
  Result<bool> deallocate_in_its_epoch(StreamHeap& heap, Address block);
  void keep_to_limit();
  void call_at_miss();
  Error out_of_memory(const Request& request);
  static Error asleep(const Request& request);
  template <class Look>
  void with_pages(Look&& look) const WEIR_NO_THREAD_ANALYSIS;
  template <class Function>
  void with_all_held(Function&& function);
  // At one moment.
  void list_heaps(HeapRegistry::Heaps heaps, HeapSnapshot& snapshot) const WEIR_NO_THREAD_ANALYSIS;
  std::vector<Event> as_events(const HeapSnapshot& snapshot) const;

  // What sleeps as one: a pool, and its tag.
  struct Unit {
    PageHeap* pages = nullptr;
    const Pool* pool = nullptr;
    std::shared_ptr<CapturePool> graphs;  // none: the device heap's own
    std::string tag;
  };
  std::vector<Unit> units() const;
  // Of these tags, in their order; none: of all. Errors: invalid_argument (there is no such tag).
  Result<std::vector<Unit>> units_of(const std::vector<std::string>& tags, const char* call) const;
  bool is_asleep_locked(const std::string& tag) const;  // with pools_mutex_ held
  Status may_sleep(std::vector<Unit>& units, const SleepOptions& options,
                   std::vector<Sleeper::Job>& jobs, SleepReport& report);
  Status no_capture_goes_on();
  std::vector<HeldMemory> held_by_others();
  std::vector<HeldMemory> held_in(const Unit& unit, std::set<PageId>& pages) const;
  static void set_asleep(const Unit& unit, bool asleep);
  void fall_asleep(std::vector<Unit>& units, std::vector<Sleeper::Job>& jobs);
  Status sleep_units(const std::vector<Unit>& units, const std::vector<Sleeper::Job>& jobs,
                     const std::string& folder, SleepReport& report);
  void note_held(SleepReport& report) const;
  // Bytes of a block that have copies: the pages, where they are at home, where the copies are.
  struct Copied {
    const PageHeap* pages = nullptr;
    std::vector<Range> home;
    std::vector<HostPart> parts;
  };
  Result<Copied> copied(Range range, const char* call);
  SleepContents contents_of(const std::string& tag) const;
  Sleeper::Version version_of(const Unit& unit) const;
  bool make_room_to_wake(Bytes wanted, std::uint64_t& sleeps);
  // These page heaps are the caller's, while it lives: of one sleep or wake.
  class Claim {
   public:
    Claim(Impl& heap, const std::vector<Unit>& units);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

   private:
    Impl& heap_;
    std::set<const PageHeap*> pages_;
  };
  Error no_room_to_wake(const Error& error, const Unit& unit);
  TagInfo info_of(const Unit& unit) const;

  const std::uint64_t number_;  // of this device heap, in the process; from 1, never reused
  Device& device_;
  const HeapOptions options_;
  HeapRegistry registry_;
  Budget budget_;
  Observer observer_;
  OpenCaptures captures_{device_, options_.context_events,
                         [this](ContextEventsLost why, std::uint64_t stream) {
                           note_context_events_lost(why, stream);
                         }};
  RemoteWork remote_work_;
  SparingPools sparing_;
  PoolBindings bindings_{registry_, captures_};
  DeferredFrees deferred_{bindings_};
  StreamNames names_{number_};
  std::atomic<bool> graphs_leak_{false};
  Pool device_pool_;  // the device heap's own
  Timelines& timelines_ = device_pool_.timelines();
  PageHeap& pages_ = device_pool_.pages();
  const Bytes device_bytes_;  // in all, whoever has them

  std::mutex callbacks_mutex_;
  std::vector<OutOfMemoryCallback> callbacks_;
  std::vector<MissCallback> miss_callbacks_;
  std::vector<HeldCallback> held_callbacks_;
  std::atomic<bool> has_miss_callbacks_{false};
  std::mutex lost_mutex_;  // after every other lock of the core
  std::vector<ContextEventsLostCallback> lost_callbacks_;

  // Taken before every other lock of the core, and never while a heap's is held.
  mutable std::shared_mutex pools_mutex_;
  std::map<std::uint64_t, std::shared_ptr<CapturePool>> pools_;  // by GraphPool::id()
  std::deque<std::shared_ptr<CapturePool>> closed_;  // of them: each goes once nothing is left
  std::uint64_t last_pool_ = 0;

  // One sleep and one wake at a time: held while it goes on, and before every other lock. Whoever
  // looks takes both.
  std::mutex sleep_mutex_, wake_mutex_;
  Sleeper sleeper_{device_};  // guarded by either
  std::atomic<bool> sleep_goes_on_{false};
  std::atomic<std::uint64_t> sleeps_ended_{0};
  std::mutex claims_mutex_;
  std::condition_variable claims_ended_;
  std::set<const PageHeap*> claimed_;  // guarded by claims_mutex_
  struct Tag {
    SleepContents contents = SleepContents::backup;
    std::uint64_t changed = 0;  // how often it was declared so
    std::unique_ptr<GraphPool> pool;
  };
  struct Hold {
    const void* block = nullptr;
    std::string holder;
  };
  mutable std::mutex tags_mutex_;  // of what follows; no other lock is taken under it
  std::map<std::string, Tag> tags_;
  std::map<std::uint64_t, Hold> holds_;
  std::uint64_t last_hold_ = 0;
};

}  // namespace weir
