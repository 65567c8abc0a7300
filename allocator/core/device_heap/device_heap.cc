// SPDX-License-Identifier: Apache-2.0
#include "weir/device_heap.h"

#include <atomic>
#include <string>
#include <utility>

#include "core/base/format.h"
#include "core/device_heap/device_heap_impl.h"
#include "weir/graph_pool.h"

namespace weir {
namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

DeviceHeap::Impl::Impl(DeviceHeap& heap, Device& device, const HeapOptions& options,
                       EventSink* sink)
    : number_(next_number()),
      device_bytes_([&] {
        const Result<MemoryInfo> info = device.memory_info();
        return info ? info->total : kMostBytes;
      }()),
      budget(options.limit),
      observer(device, sink),
      addresses(device, observer, options),
      captures(device, options.context_events,
               [this](ContextEventsLost why, std::uint64_t stream) {
                 note_context_events_lost(why, stream);
               }),
      // Of a capture's stream nothing can be asked: an error is no answer.
      remote_work([this](const FenceSet& ends) {
        const Result<bool> over = pools.own().timelines().complete(ends, Timelines::Asks::looks);
        return over && *over;
      }),
      pools(options,
            {device, observer, registry, budget, addresses, captures, remote_work, sparing, lending,
             waiting},
            bindings),
      sleep(pools, exchange, [&heap](const std::string& tag) {
        return std::make_shared<GraphPool>(heap, GraphPoolOptions{.tag = tag});
      }) {}

// Where uses are told, such events are of little use, and nobody misses them.
void DeviceHeap::Impl::note_context_events_lost(ContextEventsLost why, std::uint64_t stream) {
  if (pools.own().is_told()) return;
  observer.emit({.kind = EventKind::context_events_lost,
                 .heap = kNoHeap,
                 .stream = stream,
                 .other = static_cast<std::uint64_t>(why)});
  for (const HeapCaptures::ContextEventsLostCallback& callback : when_lost.all()) callback(why);
}

Status DeviceHeap::Impl::begin_launch(CapturePool& pool, Stream stream) {
  if (pool.pages().is_asleep()) {
    return Error(ErrorCode::asleep,
                 "the tag '" + pool.tag() + "' of the graph's pool sleeps: wake it first");
  }
  // To wait for eager work would break that.
  const Result<CaptureInfo::Status> status = pools.shared().device.capture_status(stream);
  if (!status) return status.error();
  if (*status != CaptureInfo::Status::none) {
    return Error(ErrorCode::capture, "stream " + std::to_string(stream.id) +
                                         " is being captured, and the pool could not keep what the "
                                         "graph uses: launch it once the capture has ended");
  }
  return taking_back([&] { return pool.scratch().begin_launch(stream); });
}

Address DeviceHeap::Impl::try_allocate(Bytes bytes, Stream stream, PageHeap::Create create,
                                       Status& status) {
  std::atomic<StreamHeap*>& known = this->known(stream);
  StreamHeap* heap = known.load(std::memory_order_acquire);
  while (true) {
    if (heap != nullptr) [[likely]] {
      const Address at = heap->allocate(bytes, stream.id, status, create);
      if (at != Address{} || !status) [[likely]]
        return at;
    }
    if (status = Entrance::refuse_all(stream, "allocate"); !status) return {};
    const Result<StreamHeap*> found = pools.own().heap_of(stream);
    if (!found) {
      status = found.error();
      return {};
    }
    heap = *found;
    known.store(heap, std::memory_order_release);
  }
}

// The heap is locked, and its fast paths are open: nothing is bound, and nobody records. (A stream
// that is passed on by reference needs no registers in the fast path.)
[[gnu::noinline]] Result<void*> DeviceHeap::Impl::allocate_after_miss(StreamHeap& heap, Bytes bytes,
                                                                      Stream stream) {
  if (bytes == 0_B || bytes > device_bytes_) [[unlikely]] {
    heap.mutex().unlock();
    return allocate_block(bytes, stream);
  }
  Status status;
  const Address at = heap.allocate_after_miss(bytes, status, ladder.at_first());
  if (at != Address{}) [[likely]]
    return at.pointer();
  return allocate_when_short({bytes, stream, {}}, std::move(status));
}

[[gnu::noinline]] Result<void*> DeviceHeap::Impl::allocate_block(
    Bytes bytes, Stream stream, const std::shared_ptr<CapturePool>* into) {
  if (bytes == 0_B) return nullptr;
  observer.note_stack();
  BlockRequest request{bytes, stream, {}};
  // Refused before anything is rounded or reserved.
  if (bytes > device_bytes_) [[unlikely]]
    return ladder.out_of_memory(request);
  if (into != nullptr || entrance.bound()) [[unlikely]] {
    Result<Route> route = entrance.route(stream, into == nullptr ? nullptr : *into);
    if (!route) return std::move(route).error();
    request.route = *std::move(route);
  }
  Status status;
  const Address at = serve(request, ladder.at_first(), status);
  if (at != Address{}) [[likely]]
    return at.pointer();
  return allocate_when_short(request, std::move(status));
}

Address DeviceHeap::Impl::serve(const BlockRequest& request, PageHeap::Create create,
                                Status& status) {
  const auto& [bytes, stream, route] = request;
  if (route.pool != nullptr) return route.pool->allocate(bytes, stream, route.capture, status);
  return try_allocate(bytes, stream, create, status);
}

Result<void*> DeviceHeap::Impl::allocate_when_short(const BlockRequest& request, Status status) {
  return ladder.climb(request, std::move(status),
                      [&](Status& why) { return serve(request, PageHeap::Create::may, why); });
}

Result<void*> DeviceHeap::Impl::take_free_in(std::shared_ptr<CapturePool> pool, Bytes bytes,
                                             Stream stream) {
  if (bytes == 0_B) return nullptr;
  observer.note_stack();
  const Result<Route> route = entrance.route(stream, std::move(pool));
  if (!route) return route.error();
  Status status;
  // (More than the device has is refused before anything is rounded.)
  if (bytes <= device_bytes_) {
    const Address at =
        route->pool->allocate(bytes, stream, route->capture, status, PageHeap::Create::never);
    if (at != Address{}) return at.pointer();
    if (status.error().code() != ErrorCode::out_of_memory) return std::move(status).error();
  }
  return Error(ErrorCode::out_of_memory,
               "graph pool " + std::to_string(route->pool->id()) + " has no " + format(bytes) +
                   " free for stream " + std::to_string(stream.id) +
                   ": deallocate blocks of it, or let it grow with GraphPool::allocate()");
}

Status DeviceHeap::Impl::deallocate(void* block) {
  if (block == nullptr) return {};
  const Address at = Address::of(block);
  StreamHeap* const heap = registry.owner_of(at);
  if (heap == nullptr) [[unlikely]]
    return pools.unknown(block, "deallocate");
  if (entrance.bound()) {
    const Result<bool> waits = defer(*heap, at);
    if (!waits) return waits.error();
    if (*waits) return {};
  }
  Result<bool> done = pools.free(*heap, at);
  if (!done) [[unlikely]]
    return std::move(done).error();
  if (!*done) [[unlikely]]
    return pools.unknown(block, "deallocate");
  if (budget.excess() > 0_B) [[unlikely]]
    exchange.keep_to_limit();
  return {};
}

Result<bool> DeviceHeap::Impl::defer(StreamHeap& heap, Address block) {
  if (waiting.contains(block)) return pools.unknown(block.pointer(), "deallocate");
  if (heap.pool() != 0) return false;  // the pool has rules of its own
  std::optional<Stream> stream;
  if (const LiveBlock live = heap.live(block)) stream = live.stream();
  if (!stream) return false;  // the heap will say so
  // A stream that may be gone can't be asked, and counts as not captured. (PyTorch's own streams
  // last, and are asked.)
  const Result<bool> captured = stream->may_end ? false : entrance.is_captured(*stream);
  if (!captured) return captured.error();
  if (!*captured && !waiting.has_captured_use(block)) return false;
  waiting.add(heap, block, bindings.last());
  return true;
}

DeviceHeap::DeviceHeap(Device& device, HeapOptions options, EventSink* sink)
    : impl_(std::make_unique<Impl>(*this, device, options, sink)) {}
DeviceHeap::~DeviceHeap() { impl_->sleep.close_pools(); }  // which look at this

Result<void*> DeviceHeap::allocate(Bytes bytes, Stream stream) {
  Impl& impl = *impl_;
  StreamHeap* const heap = impl.known(stream).load(std::memory_order_acquire);
  if (heap != nullptr) [[likely]] {
    bool misses = false;
    const Address at = heap->allocate_cached(bytes, stream.id, misses);
    if (at != Address{}) [[likely]]
      return at.pointer();
    if (misses) return impl.allocate_after_miss(*heap, bytes, stream);
  }
  return impl.allocate_block(bytes, stream);
}

Status DeviceHeap::deallocate(void* block) {
  const Address at = Address::of(block);
  if (Tile* const tile = impl_->tile_near(at)) [[likely]] {
    StreamHeap* const heap = tile->heap.load(std::memory_order_acquire);
    if (heap != nullptr && heap->try_deallocate(at, tile)) [[likely]]
      return {};
  }
  return impl_->deallocate(block);
}

Result<Stream> DeviceHeap::stream(void* handle) { return impl_->entrance.stream(handle); }
Status DeviceHeap::retire(Stream stream) { return impl_->entrance.retire(stream); }

std::optional<BlockInfo> DeviceHeap::find(const void* pointer) const {
  return impl_->pools.find(Address::of(pointer));
}
bool DeviceHeap::owns(const void* pointer) const {
  return impl_->registry.index().contains(Address::of(pointer));
}
std::vector<PagePart> DeviceHeap::parts(const void* block) const {
  const std::optional<BlockInfo> found = find(block);
  if (!found || found->address != Address::of(block)) return {};
  const std::shared_ptr<Pool> pool = impl_->pools.pool_of(*found);
  return pool->pages().listing()->parts({found->address, found->bytes});
}
HeapTags& DeviceHeap::tags() { return impl_->sleep; }
Status DeviceHeap::renew_access() {
  for (const std::shared_ptr<Pool>& pool : impl_->pools.all()) {
    if (Status status = pool->pages().renew_access(); !status) return status;
  }
  return {};
}

void HeapCaptures::meet(Stream stream) { heap_->impl_->captures.meet(stream); }
Result<std::uint64_t> HeapCaptures::pool_serving(Stream stream) {
  Entrance& entrance = heap_->impl_->entrance;
  if (!entrance.bound()) return 0;
  const Result<Route> route = entrance.route(stream);
  if (!route) return route.error();
  return route->pool == nullptr ? 0 : route->pool->id();
}
Result<bool> HeapCaptures::attach(Stream captured, CaptureAttachment attachment) {
  return heap_->impl_->entrance.attach(captured, std::move(attachment));
}
void HeapCaptures::forgo_context_events(ContextEventsLost why, std::uint64_t stream) {
  heap_->impl_->captures.forgo_context_events(why, stream);
}
void HeapCaptures::on_context_events_lost(ContextEventsLostCallback callback) {
  heap_->impl_->when_lost.add(std::move(callback));
}
void HeapCaptures::assume_graphs_leak() { heap_->impl_->exchange.assume_graphs_leak(); }

Result<Bytes> DeviceHeap::trim(Bytes keep, Trim how) { return impl_->exchange.trim(keep, how); }
void DeviceHeap::set_limit(Bytes limit) { impl_->exchange.set_limit(limit); }
HeapOptions DeviceHeap::options() const {
  HeapOptions options = impl_->pools.options();
  options.limit = impl_->budget.limit();
  return options;
}
void DeviceHeap::on_shortage(Shortage when, ShortageCallback callback) {
  impl_->ladder.callbacks(when).add(std::move(callback));
}

}  // namespace weir
