// Graph pools of a device heap: which requests go to which, and what of the eager epoch has to wait
// for captures to end.
#include <algorithm>
#include <mutex>
#include <utility>

#include "core/device_heap/device_heap_impl.h"

namespace weir {
std::shared_ptr<CapturePool> DeviceHeap::Impl::open_pool(Bytes limit) {
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
  HeapOptions options = options_;
  options.limit = limit;
  pools_.push_back(std::make_shared<CapturePool>(
      ++last_pool_, device_, Pool::Shared{observer_, registry_, budget_, captures_}, eager_,
      options));
  return pools_.back();
}

std::vector<std::shared_ptr<CapturePool>> DeviceHeap::Impl::pools() const {
  const std::shared_lock lock(routes_mutex_);
  return pools_;
}

Result<std::uint64_t> DeviceHeap::Impl::open_route(std::shared_ptr<CapturePool> pool, Takes takes,
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

Status DeviceHeap::Impl::begin_capture(CapturePool& pool, bool watches) {
  // Work of a stream that will be captured can't be recorded then, and others may wait for it.
  // (What is cached goes back first: it is freed at that moment, for the pages.)
  registry_.give_back_cached();
  timelines_.settle();
  for (const std::shared_ptr<CapturePool>& each : pools()) each->settle();
  return pool.begin_capture(watches);
}

void DeviceHeap::Impl::count_route() {
  const std::unique_lock lock(routes_mutex_);
  if (routes_open_.fetch_add(1, std::memory_order_release) == 0) registry_.allow_fast_paths(false);
}

void DeviceHeap::Impl::discount_route() {
  if (routes_open_.fetch_sub(1, std::memory_order_release) == 1) registry_.allow_fast_paths(true);
}

void DeviceHeap::Impl::close_route(std::uint64_t id, bool keep) {
  std::shared_ptr<CapturePool> pool;
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

// The device heap's page lock may be held, so no lock is waited for: pools take theirs before it.
std::vector<PageHeap::UnmappedPage> DeviceHeap::Impl::spare_of_pools(Bytes wanted) const {
  const std::shared_lock lock(routes_mutex_, std::try_to_lock);
  std::vector<PageHeap::UnmappedPage> pages;
  if (!lock.owns_lock()) return pages;
  Bytes size;
  for (const std::shared_ptr<CapturePool>& pool : pools_) {
    if (size >= wanted) break;
    for (const PageHeap::UnmappedPage page : pool->try_spare(wanted - size)) {
      size += page.size;
      pages.push_back(page);
    }
  }
  return pages;
}

bool DeviceHeap::Impl::call_in_pools() const {
  bool any = false;
  for (const std::shared_ptr<CapturePool>& pool : pools()) any = pool->give_back_pages() || any;
  return any;
}

Result<bool> DeviceHeap::Impl::record_stream_in_its_epoch(StreamHeap& heap, Address block,
                                                          Stream user) {
  CapturePool* const pool = heap.capture_pool();
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
  CapturePool* const pool = heap.capture_pool();
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
  if (heap.capture_pool() != nullptr) return false;  // the pool has rules of its own
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
    registry_.allow_fast_paths(false);
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
  for (const std::shared_ptr<CapturePool>& pool : pools()) pool->free_deferred();
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
