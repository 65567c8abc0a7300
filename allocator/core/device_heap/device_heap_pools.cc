// Graph pools of a device heap: which requests go to which, and what of the eager epoch has to wait
// for captures to end.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/format.h"
#include "core/device_heap/device_heap_impl.h"

namespace weir {
namespace {

// After a launch is done: on an H200 0.03 to 0.2 ms.
constexpr std::chrono::milliseconds kUntilTheDriverSaysSo{100};

}  // namespace

std::shared_ptr<PoolHeap> DeviceHeap::Impl::open_pool(Bytes limit) {
  const std::unique_lock lock(routes_mutex_);
  budget_.share();
  // One that is gone serves again: its heaps, and what they know of streams, stay where they are.
  const auto gone = std::find_if(pools_.begin(), pools_.end(), [&](const auto& pool) {
    const auto leads_there = [&](const Route& route) { return route.pool == pool; };
    if (std::any_of(routes_.begin(), routes_.end(), leads_there)) return false;
    (void)pool->give_back_pages();  // what could not go when it was closed
    return pool->is_gone();
  });
  if (gone != pools_.end()) {
    (*gone)->reopen(++last_pool_, limit);
    return *gone;
  }
  const PageHeap::Source source = [this](Bytes wanted) {
    StreamHeap::give_back_all(caching_heaps_);
    return pages_.give_up(wanted);
  };
  const auto new_heap = [this](PoolHeap& pool, Stream stream) {
    return new_pool_heap(pool, stream);
  };
  HeapOptions options = options_;
  options.limit = limit;
  pools_.push_back(
      std::make_shared<PoolHeap>(++last_pool_,
                                 PoolHeap::Home{device_, observer_, addresses_, budget_, captures_,
                                                timelines_, pages_, source, new_heap},
                                 options));
  return pools_.back();
}

std::vector<std::shared_ptr<PoolHeap>> DeviceHeap::Impl::pools() const {
  const std::shared_lock lock(routes_mutex_);
  return pools_;
}

std::vector<StreamHeap*> DeviceHeap::Impl::heaps_in_order() const {
  std::vector<StreamHeap*> heaps;
  for (const bool of_pool : {true, false}) {
    for (const auto& heap : heaps_) {
      if ((heap->pool() != nullptr) == of_pool) heaps.push_back(heap.get());
    }
  }
  return heaps;
}

Result<StreamHeap*> DeviceHeap::Impl::new_pool_heap(PoolHeap& pool, Stream stream) {
  const std::unique_lock lock(heaps_mutex_);
  if (heaps_.size() >= kMostHeaps) {
    return Error(ErrorCode::out_of_memory, std::to_string(kMostHeaps) +
                                               " streams have memory of their own in the device's "
                                               "heap and its graph pools: retire() those no longer "
                                               "used, and open fewer pools");
  }
  const HeapId id{static_cast<std::uint32_t>(heaps_.size())};
  heaps_.push_back(std::make_unique<StreamHeap>(id, stream, pool.pages(), pool.timelines(),
                                                observer_, pool.caching_heaps(), &pool));
  StreamHeap* const heap = heaps_.back().get();
  heap->announce(pool.id());
  owners_[AddressMap::owner_of(id)] = heap;
  return heap;
}

Result<std::uint64_t> DeviceHeap::Impl::open_route(std::shared_ptr<PoolHeap> pool, Takes takes,
                                                   RouteKind kind, std::optional<Stream> origin) {
  std::uint64_t announced = 0;
  if (kind != RouteKind::eager) {
    count_route();
    if (origin) captures_.meet(*origin);
    if (Status begun = begin_capture(*pool, kind == RouteKind::captured); !begun) {
      const std::unique_lock lock(routes_mutex_);
      discount_route();
      return std::move(begun).error();
    }
    announced = captures_.announce(origin);
  } else if (pool->capturing()) {
    return Error(ErrorCode::invalid_argument,
                 "graph pool " + std::to_string(pool->id()) +
                     ": a capture into it is going on; warm up before it begins, or after its end");
  } else {
    count_route();
  }
  const std::unique_lock lock(routes_mutex_);
  routes_.push_back({++last_route_, std::move(pool), std::move(takes), kind, {}, announced});
  return last_route_;
}

Status DeviceHeap::Impl::begin_capture(PoolHeap& pool, bool watches) {
  // Work of a stream that will be captured can't be recorded then, and others may wait for it.
  // (What is cached goes back first: it is freed at that moment, for the pages.)
  give_back_cached();
  timelines_.settle();
  for (const std::shared_ptr<PoolHeap>& each : pools()) each->settle();
  return pool.begin_capture(watches);
}

void DeviceHeap::Impl::count_route() {
  const std::unique_lock lock(routes_mutex_);
  if (routes_open_.fetch_add(1, std::memory_order_release) == 0) allow_fast_paths(false);
}

void DeviceHeap::Impl::discount_route() {
  if (routes_open_.fetch_sub(1, std::memory_order_release) == 1) allow_fast_paths(true);
}

void DeviceHeap::Impl::allow_fast_paths(bool allowed) const {
  const std::shared_lock lock(heaps_mutex_);
  for (const auto& heap : heaps_) {
    if (heap->pool() == nullptr) heap->allow_fast_paths(allowed);
  }
}

void DeviceHeap::Impl::close_route(std::uint64_t id, bool keep) {
  std::shared_ptr<PoolHeap> pool;
  bool captures = false;
  {
    const std::unique_lock lock(routes_mutex_);
    const auto route = std::find_if(routes_.begin(), routes_.end(),
                                    [&](const Route& each) { return each.id == id; });
    if (route == routes_.end()) return;
    captures = route->captures();
    if (captures) captures_.ended(route->announced);
    pool = std::move(route->pool);
    routes_.erase(route);
    discount_route();
  }
  if (captures) pool->end_capture(keep);
  free_deferred();
}

Error DeviceHeap::Impl::not_served(Stream stream) {
  return {ErrorCode::capture,
          "stream " + std::to_string(stream.id) +
              " is being captured, and no graph pool serves its capture: begin it with "
              "CaptureScope, or open a route with GraphPool::capture() before it begins"};
}

Result<DeviceHeap::Impl::Routed> DeviceHeap::Impl::route_of(Stream stream) {
  Result<CaptureInfo> info = device_.capture_info(stream);
  if (!info) return std::move(info).error();
  const bool captured = info->status != CaptureInfo::Status::none;
  const std::uint64_t capture = captured ? info->id : 0;
  const std::shared_lock lock(routes_mutex_);
  const auto route = std::find_if(routes_.rbegin(), routes_.rend(),
                                  [&](const Route& each) { return each.takes(stream, *info); });
  if (route != routes_.rend()) {
    if (captured && route->captures()) captures_.note_begun(route->announced);
    return Routed{route->pool, capture};
  }
  if (!captured || is_untold()) return Routed{};
  return not_served(stream);
}

Result<void*> DeviceHeap::Impl::allocate_in_pool(Bytes bytes, Stream stream, const Routed& routed) {
  Status status;
  Address at;
  const auto try_again = [&] {
    status = {};
    at = routed.pool->allocate(bytes, stream, routed.capture, status);
  };
  const auto settled = [&] {
    return at != Address{} || status.error().code() != ErrorCode::out_of_memory;
  };
  try_again();
  if (!settled()) free_deferred();
  if (!settled() && give_back_cached()) try_again();
  if (!settled() && call_in_pools()) try_again();
  if (!settled()) {
    if (Status waited = wait_for_other_heaps(); !waited) return std::move(waited).error();
    try_again();
  }
  if (!settled() && call_back(bytes)) {
    give_back_cached();
    try_again();
  }
  if (at != Address{}) return at.pointer();
  if (!settled()) {
    const GraphPoolStatistics pool = routed.pool->statistics();
    const Error all = out_of_memory(bytes, stream);
    return Error(ErrorCode::out_of_memory, "graph pool " + std::to_string(routed.pool->id()) +
                                               " (" + format(pool.reserved_bytes) + " held, " +
                                               format(pool.live_bytes) +
                                               " live): " + all.message());
  }
  return std::move(status).error();
}

// The device heap's page lock may be held, so no lock is waited for: pools take theirs before it.
std::vector<PageHeap::UnmappedPage> DeviceHeap::Impl::spare_of_pools(Bytes wanted) const {
  const std::shared_lock lock(routes_mutex_, std::try_to_lock);
  std::vector<PageHeap::UnmappedPage> pages;
  if (!lock.owns_lock()) return pages;
  Bytes size;
  for (const std::shared_ptr<PoolHeap>& pool : pools_) {
    if (size >= wanted) break;
    for (const PageHeap::UnmappedPage page : pool->try_spare(wanted - size)) {
      size += page.size;
      pages.push_back(page);
    }
  }
  return pages;
}

// Graphs are gone, and their launches run on streams that nobody named: all work so far is waited
// for, of all streams that are known. What can't be waited for stays as it is.
void DeviceHeap::Impl::wait_for_lingering_pools() {
  (void)call_in_pools();
  const std::vector<std::shared_ptr<PoolHeap>> all = pools();
  std::vector<std::shared_ptr<PoolHeap>> lingering;  // that are, before anything is waited for
  std::copy_if(all.begin(), all.end(), std::back_inserter(lingering),
               [](const auto& pool) { return pool->lingers(); });
  if (lingering.empty()) return;
  wait_for_streams(timelines_);
  for (const std::shared_ptr<PoolHeap>& pool : all) wait_for_streams(pool->timelines());
  (void)call_in_pools();
  // The driver says that a graph is gone in a thread of its own. One that is there still after so
  // long was not destroyed, or leaks.
  const auto patience = std::chrono::steady_clock::now() + kUntilTheDriverSaysSo;
  const auto hopes = [](const auto& pool) { return pool->may_end_lingering(); };
  while (!graphs_leak_ && std::any_of(lingering.begin(), lingering.end(), hopes) &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    (void)call_in_pools();
  }
  for (const std::shared_ptr<PoolHeap>& pool : lingering) pool->note_lingers_on(graphs_leak_);
  if (graphs_leak_) (void)call_in_pools();
}

void DeviceHeap::Impl::wait_for_streams(Timelines& timelines) {
  if (timelines.trust() == Trust::context) {
    FenceSet all;
    all.join(timelines.release_point(TimelineId{}));
    (void)timelines.host_wait(all);
    return;
  }
  const auto eager = [](Stream stream) { return !stream.is_in_capture() && !stream.is_all(); };
  for (const Fence fence : timelines.all(eager)) {
    FenceSet one;
    one.join(fence);
    (void)timelines.host_wait(one);
  }
}

// Pages change heap only when the host knows their work to be done: rather than be out of memory,
// it waits.
Status DeviceHeap::Impl::wait_for_other_heaps() {
  if (Status freed = free_deferred_after_all_work(); !freed) return freed;
  wait_for_lingering_pools();
  if (Status waited = pages_.wait_for_idle_pages(); !waited) return waited;
  for (const std::shared_ptr<PoolHeap>& pool : pools()) {
    if (Status waited = pool->pages().wait_for_idle_pages(); !waited) return waited;
  }
  (void)call_in_pools();
  return {};
}

bool DeviceHeap::Impl::call_in_pools() const {
  bool any = false;
  for (const std::shared_ptr<PoolHeap>& pool : pools()) any = pool->give_back_pages() || any;
  return any;
}

Result<bool> DeviceHeap::Impl::record_stream_in_its_epoch(StreamHeap& heap, Address block,
                                                          Stream user) {
  PoolHeap* const pool = heap.pool();
  if (!routed() && pool == nullptr) return heap.record_stream(block, timelines_.of(user));
  Result<bool> captured = routed() ? is_captured(user) : Result<bool>(false);
  if (!captured) return std::move(captured).error();
  if (pool != nullptr) return pool->record_stream(heap, block, user, *captured);
  if (*captured) {
    // It may be used there after the capture too.
    Result<bool> fenced = fence_in_its_epoch(heap, block, user);
    if (!fenced || !*fenced) return fenced;
  }
  return heap.record_stream(block, timelines_.of(user));
}

Result<bool> DeviceHeap::Impl::deallocate_in_its_epoch(StreamHeap& heap, Address block) {
  if (routed()) {
    Result<bool> deferred = defer(heap, block);
    if (!deferred) return std::move(deferred).error();
    if (*deferred) return true;
  }
  Result<bool> done = deallocate_now(
      heap, block, is_untold() ? StreamHeap::Gone::behind_all : StreamHeap::Gone::error);
  if (done || !may_be_freed_later(done.error())) return done;
  const std::unique_lock lock(routes_mutex_);
  defer_locked(block, {&heap, 0});
  return true;
}

Result<bool> DeviceHeap::Impl::deallocate_now(StreamHeap& heap, Address block,
                                              StreamHeap::Gone gone) {
  PoolHeap* const pool = heap.pool();
  return pool == nullptr ? heap.deallocate(block, gone) : pool->deallocate(heap, block, gone);
}

bool DeviceHeap::Impl::may_be_freed_later(const Error& error) const {
  return error.code() == ErrorCode::capture || (error.code() == ErrorCode::device && is_untold());
}

// An error: the block is not live, or waits to be freed already.
Result<bool> DeviceHeap::Impl::defer(StreamHeap& heap, Address block) {
  {
    const std::shared_lock lock(routes_mutex_);
    if (deferred_.contains(block.value)) return unknown(block.pointer(), "deallocate");
  }
  if (heap.pool() != nullptr) return false;  // the pool has rules of its own
  const std::optional<Stream> stream = heap.stream_of(block);
  if (!stream) return false;  // the heap will say so
  // A stream that may be gone is not asked; nor does PyTorch's own allocator care whether the
  // stream of a block is captured when it is freed.
  Result<bool> captured = stream->may_end ? Result<bool>(false) : is_captured(*stream);
  if (!captured) return std::move(captured).error();
  const std::unique_lock lock(routes_mutex_);
  if (!*captured && !captured_uses_.contains(block.value)) return false;
  defer_locked(block, {&heap, last_route_});
  return true;
}

// Blocks that wait count as a route: while there are any, every free asks for them.
void DeviceHeap::Impl::defer_locked(Address block, Deferred deferred) {
  if (deferred_.empty() && routes_open_.fetch_add(1, std::memory_order_release) == 0) {
    allow_fast_paths(false);
  }
  deferred_[block.value] = deferred;
  if (deferred.last_route == 0) tries_deferred_.store(true, std::memory_order_relaxed);
}

// Those whose captures have ended: captures may overlap without an end.
std::vector<std::pair<Address, DeviceHeap::Impl::Deferred>> DeviceHeap::Impl::take_due() {
  const std::unique_lock lock(routes_mutex_);
  std::uint64_t oldest = ~std::uint64_t{0};
  for (const Route& route : routes_) {
    if (route.captures()) oldest = std::min(oldest, route.id);
  }
  std::erase_if(captured_uses_, [&](const auto& use) { return use.second < oldest; });
  std::vector<std::pair<Address, Deferred>> due;
  std::erase_if(deferred_, [&](const auto& waiting) {
    if (waiting.second.last_route >= oldest) return false;
    due.emplace_back(Address{waiting.first}, waiting.second);
    return true;
  });
  tries_deferred_.store(false, std::memory_order_relaxed);
  if (!due.empty() && deferred_.empty()) discount_route();
  return due;
}

void DeviceHeap::Impl::free_deferred() { free_due(take_due(), StreamHeap::Gone::behind_all); }

void DeviceHeap::Impl::free_due(const std::vector<std::pair<Address, Deferred>>& due,
                                StreamHeap::Gone gone) {
  for (const auto& [block, deferred] : due) {
    if (deallocate_now(*deferred.heap, block, gone)) continue;
    // A fence that record_stream asked for could not be taken now; the program has no block to
    // free again.
    const std::unique_lock lock(routes_mutex_);
    defer_locked(block, {deferred.heap, 0});
  }
  for (const std::shared_ptr<PoolHeap>& pool : pools()) pool->free_deferred();
}

// The last resort for those whose users are gone, where no event can stand for them.
Status DeviceHeap::Impl::free_deferred_after_all_work() {
  if (!tries_deferred_.load(std::memory_order_relaxed)) return {};
  free_deferred();
  if (!tries_deferred_.load(std::memory_order_relaxed)) return {};
  // Those that are freed while the host waits are not waited for.
  const std::vector<std::pair<Address, Deferred>> due = take_due();
  Status waited = device_.synchronize_context();
  free_due(due, waited ? StreamHeap::Gone::after_all : StreamHeap::Gone::behind_all);
  return waited;
}

void DeviceHeap::Impl::forget_deferred(std::span<const PlacedBlock> live) {
  const std::unique_lock lock(routes_mutex_);
  if (deferred_.empty()) return;
  for (const PlacedBlock& block : live) deferred_.erase(block.address.value);
  if (deferred_.empty()) discount_route();
}

GraphPool::GraphPool(DeviceHeap& heap, GraphPoolOptions options)
    : heap_(&heap), pool_(heap.impl_->open_pool(options.limit)) {}

GraphPool::~GraphPool() { pool_->close(); }

std::uint64_t GraphPool::id() const { return pool_->id(); }

Result<PoolRoute> GraphPool::warm_up(Stream stream) {
  return warm_up([stream](Stream asking) { return asking == stream; });
}

Result<PoolRoute> GraphPool::warm_up(StreamFilter filter) {
  return open_route(std::move(filter), false);
}

Result<PoolRoute> GraphPool::capture(StreamFilter filter, std::optional<Stream> origin) {
  return open_route(std::move(filter), true, origin);
}

Result<PoolRoute> GraphPool::open_route(StreamFilter filter, bool captures,
                                        std::optional<Stream> origin) {
  if (!filter) return Error(ErrorCode::invalid_argument, "GraphPool: an empty filter");
  const auto takes = [filter = std::move(filter)](Stream stream, const CaptureInfo&) {
    return filter(stream);
  };
  Result<std::uint64_t> id = heap_->impl_->open_route(
      pool_, takes,
      captures ? DeviceHeap::Impl::RouteKind::captured : DeviceHeap::Impl::RouteKind::eager,
      origin);
  if (!id) return std::move(id).error();
  return PoolRoute(heap_, *id);
}

void GraphPool::release_graph() { pool_->release_graph(); }
GraphPoolStatistics GraphPool::statistics() const { return pool_->statistics(); }
std::vector<PlacedBlock> GraphPool::blocks() const { return pool_->blocks(); }
Status GraphPool::restore(std::span<const PlacedBlock> blocks) {
  heap_->impl_->free_deferred();
  Status restored = pool_->restore(blocks);
  // What still waited to be freed, and is live again, is freed no more.
  if (restored) heap_->impl_->forget_deferred(blocks);
  return restored;
}
bool GraphPool::give_back_pages() { return pool_->give_back_pages(); }

PoolRoute::PoolRoute(PoolRoute&& other) noexcept
    : heap_(std::exchange(other.heap_, nullptr)), id_(other.id_) {}
PoolRoute& PoolRoute::operator=(PoolRoute&& other) noexcept {
  if (this != &other) {
    close();
    heap_ = std::exchange(other.heap_, nullptr);
    id_ = other.id_;
  }
  return *this;
}
PoolRoute::~PoolRoute() { close(); }
std::vector<CaptureAttachment> PoolRoute::attached() const { return heap_->impl_->attached(id_); }
void PoolRoute::close(bool keep) {
  if (heap_ != nullptr) std::exchange(heap_, nullptr)->impl_->close_route(id_, keep);
}

}  // namespace weir
