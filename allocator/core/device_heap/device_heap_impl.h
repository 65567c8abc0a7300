// The parts of a device heap, put together.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/heap/caching_heaps.h"
#include "core/heap/stream_heap.h"
#include "core/memory/address_map.h"
#include "core/memory/budget.h"
#include "core/memory/page_heap.h"
#include "core/pool/graph_pool.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/device_heap.h"

namespace weir {

// What a thread knows of a stream: a few streams a thread, in a table of its own.
struct alignas(32) KnownStream {
  std::uint64_t device_heap = 0;  // its number; 0: nothing is known here
  std::uint64_t stream = 0;       // Stream::id, which is never used again
  StreamHeap* heap = nullptr;     // that served the stream the last time
};

// Threads: self-synchronised. `heaps_mutex_` (which heaps there are) is taken before every heap's
// lock; the calls of a block's life do not take it, but for the first that a thread makes for a
// stream.
class DeviceHeap::Impl {
 public:
  Impl(Device& device, const HeapOptions& options, EventSink* sink);

  Result<Stream> per_thread_stream(void* handle);
  Result<Stream> stream_in_a_capture(void* handle);
  Result<void*> allocate_after_miss(StreamHeap& heap, Bytes bytes,
                                    Stream stream) WEIR_NO_THREAD_ANALYSIS;
  Result<void*> allocate_block(Bytes bytes, Stream stream);
  Status fence(std::span<void* const> blocks, Stream user);
  Result<Fence> take_fence(std::span<void* const> blocks, Stream user);
  Result<Fence> take_fence_around(std::span<const void* const> pointers, Stream user);
  Status wait(Stream waiter, Fence fence);
  Status order(Stream earlier, Stream later);
  Status record_stream(void* block, Stream user);
  Status deallocate(void* block);
  std::optional<BlockInfo> find(Address address) const;
  Status retire(Stream stream);
  void on_out_of_memory(OutOfMemoryCallback callback);
  void on_miss(MissCallback callback);
  Statistics statistics() const;
  void reset_peaks();
  HeapSnapshot snapshot() const;
  void start_recording(EventSink& sink);
  bool stop_recording(EventSink& sink);
  std::vector<std::string> validate() const;
  void meet(Stream stream) { captures_.meet(stream); }
  void forgo_context_events() { captures_.forgo_context_events(); }
  void assume_graphs_leak() { graphs_leak_ = true; }
  Result<Bytes> trim(Bytes keep, Trim how);
  Status renew_access();
  std::vector<PagePart> parts(const void* block) const;
  void set_limit(Bytes limit);
  Bytes limit() const { return budget_.limit(); }
  ReusePolicy reuse() const { return pages_.reuse(); }

  // Graph pools. The first three are called by GraphPool and PoolRoute.
  std::shared_ptr<PoolHeap> open_pool(Bytes limit);
  // Of a stream, and the capture that the driver says it is in.
  using Takes = std::function<bool(Stream, const CaptureInfo&)>;
  // Whose requests a route serves: eager ones; or a capture's, which a CaptureScope may end.
  enum class RouteKind { eager, captured, scoped };
  // `origin`: the stream that the capture begins on, where it is known.
  Result<std::uint64_t> open_route(std::shared_ptr<PoolHeap> pool, Takes takes, RouteKind kind,
                                   std::optional<Stream> origin = std::nullopt);
  Result<bool> attach(Stream captured, CaptureAttachment attachment);
  std::vector<CaptureAttachment> attached(std::uint64_t route) const;
  void close_route(std::uint64_t id, bool keep);
  void free_deferred();
  // These blocks are live again, whatever waits to be freed.
  void forget_deferred(std::span<const PlacedBlock> live);
  Device& device() { return device_; }
  // May streams be captured, or destroyed, with nobody saying so?
  bool is_untold() const { return options_.trust == Trust::context; }
  // Is any route open? Then no call takes a fast path.
  bool routed() const { return routes_open_.load(std::memory_order_acquire) != 0; }

  static KnownStream& known(Stream stream);
  bool knows(const KnownStream& known, Stream stream) const;
  // The heap of the last run that begins at `address` or before; null: none does. Whether the
  // address lies in that run, the heap knows.
  StreamHeap* owner_of(Address address) const;
  bool has_region_around(Address address) const { return addresses_.contains(address); }

 private:
  friend struct TestAccess;
  // No device has more: what is asked where the driver does not say how much there is.
  static constexpr Bytes kMostBytes = 1024_TiB;
  // As many as AddressMap can tell apart.
  static constexpr std::size_t kMostHeaps = 65'000;

  struct Route {
    std::uint64_t id = 0;
    std::shared_ptr<PoolHeap> pool;
    Takes takes;
    RouteKind kind = RouteKind::eager;
    std::vector<CaptureAttachment> attached;
    std::uint64_t announced = 0;  // OpenCaptures' number of its capture

    bool captures() const { return kind != RouteKind::eager; }
  };
  struct Routed {
    std::shared_ptr<PoolHeap> pool;  // none: the device heap's own
    std::uint64_t capture = 0;       // its id; 0: the stream is not being captured
  };
  Result<Routed> route_of(Stream stream);
  static Error not_served(Stream stream);
  Status begin_capture(PoolHeap& pool, bool watches);
  void count_route();
  void discount_route();  // routes_mutex_ is held
  void allow_fast_paths(bool allowed) const;
  Result<void*> allocate_in_pool(Bytes bytes, Stream stream, const Routed& routed);
  Result<bool> is_captured(Stream stream);
  Status retire_in_pools(Stream stream);
  Result<StreamHeap*> new_pool_heap(PoolHeap& pool, Stream stream);
  bool call_in_pools() const;
  Status wait_for_other_heaps();
  void wait_for_lingering_pools();
  static void wait_for_streams(Timelines& timelines);
  std::vector<PageHeap::UnmappedPage> spare_of_pools(Bytes wanted) const;
  Result<bool> fence_in_its_epoch(StreamHeap& heap, Address block, Stream user);
  Result<bool> record_stream_in_its_epoch(StreamHeap& heap, Address block, Stream user);
  // Is this block of the device heap in use by a capture? Then it goes back when that has ended.
  Result<bool> defer(StreamHeap& heap, Address block);
  struct Deferred {
    StreamHeap* heap = nullptr;
    std::uint64_t last_route = 0;  // that was open, or was before; 0: it is tried again and again
  };
  void defer_locked(Address block, Deferred deferred);  // routes_mutex_ is held
  // Its free failed for a while: as a stream that uses it is captured, or (Trust::context) as the
  // device refused to record what uses it.
  bool may_be_freed_later(const Error& error) const;
  Result<bool> deallocate_now(StreamHeap& heap, Address block, StreamHeap::Gone gone);
  std::vector<std::pair<Address, Deferred>> take_due();
  void free_due(const std::vector<std::pair<Address, Deferred>>& due, StreamHeap::Gone gone);
  Status free_deferred_after_all_work();
  std::vector<std::shared_ptr<PoolHeap>> pools() const;
  // The heaps' locks in the order in which they are taken: pools' first.
  std::vector<StreamHeap*> heaps_in_order() const;

  Result<StreamHeap*> heap_of(Stream stream);
  Address try_allocate(Bytes bytes, Stream stream, Status& status);
  Address try_allocate(Bytes bytes, Stream stream, PageHeap::Create create, Status& status);
  Address call_and_allocate(Bytes bytes, Stream stream, Status& status);
  // May new memory be had before the callbacks at a miss were called?
  PageHeap::Create at_first() const {
    return has_miss_callbacks_.load(std::memory_order_relaxed) ? PageHeap::Create::not_yet
                                                               : PageHeap::Create::may;
  }
  Result<void*> allocate_under_pressure(Bytes bytes, Stream stream, Status status);
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
  // Has every heap give back the blocks that it caches; were there any?
  bool give_back_cached() const;
  void call_at_miss();
  // Asks the callbacks for memory; false if there are none.
  bool call_back(Bytes bytes);
  Error out_of_memory(Bytes bytes, Stream stream);
  template <class Function>
  void at_one_moment(Function&& function) const;
  template <class Look>
  void with_pages(const std::vector<std::shared_ptr<PoolHeap>>& pools, Look&& look) const;
  template <class Function>
  void with_all_held(Function&& function);
  void list_heaps(HeapSnapshot& snapshot) const WEIR_NO_THREAD_ANALYSIS;  // at one moment
  std::vector<Event> as_events(const HeapSnapshot& snapshot) const;
  std::vector<std::string> validate_registry() const WEIR_NO_THREAD_ANALYSIS;  // at one moment
  std::vector<std::string> validate_owner(const StreamHeap& heap,
                                          std::span<const Range> runs) const;
  static std::vector<std::string> validate_statistics(const Statistics& all,
                                                      const PageHeap::Totals& totals,
                                                      const std::vector<PageInfo>& pages);

  const std::uint64_t number_;  // of this device heap, in the process; from 1, never reused
  Device& device_;
  const HeapOptions options_;
  AddressMap addresses_;
  Budget budget_;
  Observer observer_;
  OpenCaptures captures_;
  std::atomic<std::uint64_t> routes_open_{0};
  std::atomic<bool> tries_deferred_{false};  // are there blocks to be tried again and again?
  std::atomic<bool> graphs_leak_{false};
  Timelines timelines_;
  PageHeap pages_;
  const Bytes device_bytes_;  // in all, whoever has them
  CachingHeaps<StreamHeap> caching_heaps_;

  // By AddressMap's owner; null where none is. Written before the heap's first address is there to
  // be looked up, and then never changed, so it is read without a lock.
  struct Free {
    void operator()(void* table) const { std::free(table); }
  };
  std::unique_ptr<StreamHeap*[], Free> owners_;

  mutable std::shared_mutex heaps_mutex_;
  std::vector<std::unique_ptr<StreamHeap>> heaps_;            // by HeapId
  std::unordered_map<std::uint64_t, StreamHeap*> by_stream_;  // by Stream::id; not the retired
  std::vector<OutOfMemoryCallback> callbacks_;
  std::vector<MissCallback> miss_callbacks_;
  std::atomic<bool> has_miss_callbacks_{false};

  // Pools and routes; taken before every other lock, and never while a heap's is held.
  mutable std::shared_mutex routes_mutex_;
  // By handle: streams that have no other name yet. Guarded by routes_mutex_, as is the counter.
  std::unordered_map<void*, Stream> met_in_captures_;
  std::uint64_t last_met_ = 0;
  std::vector<Route> routes_;                     // the last opened is asked first
  std::vector<std::shared_ptr<PoolHeap>> pools_;  // never fewer: one that is gone serves again
  std::uint64_t last_pool_ = 0, last_route_ = 0;
  std::unordered_map<std::uint64_t, Deferred> deferred_;  // blocks freed during a capture
  // Blocks that captured streams use, each with the last route when it was fenced.
  std::unordered_map<std::uint64_t, std::uint64_t> captured_uses_;
};

inline StreamHeap* DeviceHeap::Impl::owner_of(Address address) const {
  return owners_[addresses_.owner(address)];
}

}  // namespace weir
