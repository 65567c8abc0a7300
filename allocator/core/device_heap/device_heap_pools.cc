// SPDX-License-Identifier: Apache-2.0
// Graph pools of a device heap: which requests go to which, and what of the eager epoch has to wait
// for captures to end.
#include <algorithm>
#include <mutex>
#include <utility>

#include "core/device_heap/device_heap_impl.h"
#include "weir/graph_pool.h"

namespace weir {
namespace {

// How many closed pools are looked at, whether anything is left of them, as one is opened or
// closed.
constexpr std::size_t kLookedAt = 4;

}  // namespace

std::shared_ptr<CapturePool> DeviceHeap::Impl::open_pool(Bytes limit,
                                                         std::optional<MemoryKind> memory,
                                                         std::string tag) {
  if (tag.empty()) tag = kDefaultTag;
  HeapOptions options = options_;
  options.limit = limit;
  options.memory = memory.value_or(options_.memory);
  const std::unique_lock lock(pools_mutex_);
  budget_.share();
  drop_gone_pools(kLookedAt);
  // Of a tag that sleeps, it sleeps from the start.
  const bool asleep = options.memory == MemoryKind::pages && is_asleep_locked(tag);
  const std::uint64_t id = ++last_pool_;
  auto opened = std::make_shared<CapturePool>(
      id, device_, Pool::Shared{observer_, registry_, budget_, captures_, remote_work_, sparing_},
      device_pool_, options, std::move(tag));
  pools_.emplace(id, opened);
  if (asleep) PageSleep(opened->pages()).set_asleep(true);
  return opened;
}

void DeviceHeap::Impl::close_pool(const std::shared_ptr<CapturePool>& pool) {
  pool->close();
  const std::unique_lock lock(pools_mutex_);
  closed_.push_front(pool);
  drop_gone_pools(kLookedAt);
}

void DeviceHeap::Impl::drop_gone_pools(std::size_t most) {
  for (std::size_t left = std::min(most, closed_.size()); left > 0; --left) {
    std::shared_ptr<CapturePool> pool = std::move(closed_.front());
    closed_.pop_front();
    if (!bindings_.lead_to(*pool) && pool->end_if_gone()) {
      pools_.erase(pool->id());
    } else {
      closed_.push_back(std::move(pool));
    }
  }
}

std::vector<std::shared_ptr<CapturePool>> DeviceHeap::Impl::pools() const {
  const std::shared_lock lock(pools_mutex_);
  std::vector<std::shared_ptr<CapturePool>> all;
  all.reserve(pools_.size());
  for (const auto& [id, pool] : pools_) all.push_back(pool);
  return all;
}

Result<std::uint64_t> DeviceHeap::Impl::bind(std::shared_ptr<CapturePool> pool,
                                             PoolBindings::Takes takes, PoolBindings::Kind kind,
                                             std::optional<Stream> origin) {
  bindings_.hold();
  // Also where the filter throws.
  struct LetGo {
    PoolBindings* bindings;
    ~LetGo() {
      if (bindings != nullptr) bindings->let_go();
    }
  } let_go{&bindings_};
  Result<std::uint64_t> id = [&]() -> Result<std::uint64_t> {
    if (kind != PoolBindings::Kind::eager) {
      return bind_capture(std::move(pool), std::move(takes), kind, origin);
    }
    bindings_.end_past();
    if (pool->refuses_warm_ups()) {
      return Error(
          ErrorCode::invalid_argument,
          "graph pool " + std::to_string(pool->id()) +
              ": a capture into it is going on; warm up before it begins, or after its end");
    }
    const std::uint64_t eager = bindings_.next_id();
    bindings_.open(eager, std::move(pool), std::move(takes), kind, {});
    return eager;
  }();
  if (id) let_go.bindings = nullptr;
  return id;
}

Result<std::uint64_t> DeviceHeap::Impl::bind_capture(std::shared_ptr<CapturePool> pool,
                                                     PoolBindings::Takes takes,
                                                     PoolBindings::Kind kind,
                                                     std::optional<Stream> origin) {
  PoolBindings::Capture capture{
      .announced = 0, .origin = origin, .id = 0, .within = false, .goes_on = false};
  if (origin && kind == PoolBindings::Kind::captured) {
    const Result<CaptureInfo> info = device_.capture_info(*origin);
    if (!info) return info.error();
    if (info->status != CaptureInfo::Status::none) {
      capture.id = info->id;
      capture.within = takes(*origin, *info);
    }
  }
  const bool goes_on = capture.id != 0;
  bindings_.end_past(capture.id, origin);
  if (origin) {
    captures_.meet(*origin);
    // Other threads ask for its name by the handle, once it is captured.
    if (!origin->is_of_captured()) (void)names_.of(*origin);
  }
  const std::uint64_t paused = goes_on ? bindings_.paused(*pool, capture.id) : 0;
  if (paused != 0) {
    if (Status begun = pool->begin_capture(paused, /*watches=*/true); !begun) {
      return std::move(begun).error();
    }
    bindings_.resume(paused, std::move(takes));
    return paused;
  }
  settle(goes_on);
  const std::uint64_t id = bindings_.next_id();
  const bool watches = kind == PoolBindings::Kind::captured;
  if (Status begun = pool->begin_capture(id, watches); !begun) return std::move(begun).error();
  capture.announced = captures_.announce(origin, goes_on);
  bindings_.open(id, std::move(pool), std::move(takes), kind, capture);
  return id;
}

// What is cached goes back: it is freed at this moment, for the pages. Work of a stream that will
// be captured can't be recorded then, and others may wait for it. (Of one that is captured already
// it is too late.)
void DeviceHeap::Impl::settle(bool goes_on) {
  registry_.give_back_cached();
  if (goes_on) return;
  timelines_.settle();
  for (const std::shared_ptr<CapturePool>& each : pools()) each->settle();
}

// The thread that closes it is the capture's own, or the capture has ended: so its number may be
// asked for.
void DeviceHeap::Impl::unbind(std::uint64_t binding, bool keep, bool origin_lives) {
  if (const auto origin = bindings_.origin_to_ask(binding, origin_lives)) {
    const Result<CaptureInfo> info = device_.capture_info(*origin);
    if (info && info->status != CaptureInfo::Status::none) {
      bindings_.note_goes_on(binding, info->id);
    }
  }
  if (const auto counts_too_many = bindings_.close(binding, keep)) counts_too_many->release_graph();
  free_deferred();
}

Error DeviceHeap::Impl::not_served(Stream stream) {
  return {ErrorCode::capture,
          "stream " + std::to_string(stream.id) +
              " is being captured, and no graph pool serves its capture: begin it with "
              "CaptureScope, or open a binding with GraphPool::capture() before it begins"};
}

Result<DeviceHeap::Impl::Server> DeviceHeap::Impl::server_of(Stream stream) {
  Result<CaptureInfo> info = device_.capture_info(stream);
  if (!info) return std::move(info).error();
  const bool captured = info->status != CaptureInfo::Status::none;
  if (bindings_.end_past(captured ? info->id : 0)) free_deferred();
  std::shared_ptr<CapturePool> pool = bindings_.find(stream, *info);
  if (pool != nullptr) return Server{std::move(pool), captured ? info->id : 0};
  if (!captured || is_untold()) return Server{};
  return not_served(stream);
}

Result<std::uint64_t> DeviceHeap::Impl::pool_serving(Stream stream) {
  if (!bound()) return 0;
  const Result<Server> server = server_of(stream);
  if (!server) return server.error();
  return server->pool == nullptr ? 0 : server->pool->id();
}

// The device heap's page lock may be held, so no lock of a pool is waited for: pools take theirs
// before it.
std::vector<PageHeap::UnmappedPage> DeviceHeap::Impl::spare_of_pools(Bytes wanted) {
  std::vector<PageHeap::UnmappedPage> pages;
  Bytes size;
  for (const std::shared_ptr<CapturePool>& pool : sparing_.take()) {
    for (const PageHeap::UnmappedPage page : pool->try_spare(wanted - std::min(wanted, size))) {
      size += page.size;
      pages.push_back(page);
    }
  }
  return pages;
}

bool DeviceHeap::Impl::call_in_pools() const {
  bool any = false;
  for (const std::shared_ptr<CapturePool>& pool : pools()) any = pool->call_in() || any;
  return any;
}

void DeviceHeap::Impl::have_pools_keep_to_limit() {
  const std::shared_lock lock(pools_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const auto& [id, pool] : pools_) {
    if (budget_.excess() > 0_B) (void)pool->try_give_to_device(budget_.excess());
  }
}

Result<Bytes> DeviceHeap::Impl::give_to_device(Bytes wanted, const CapturePool* requester) {
  const bool requester_shares = requester == nullptr || requester->shares_pages();
  Result<Bytes> gone = requester_shares ? 0_B : pages_.give_to_device(wanted);
  for (const std::shared_ptr<CapturePool>& pool : pools()) {
    const Bytes so_far = gone ? *gone : 0_B;
    if (so_far >= wanted) break;
    if (pool.get() == requester) continue;
    gone = together(std::move(gone), pool->give_to_device(wanted - so_far));
  }
  return gone;
}

Result<Bytes> DeviceHeap::Impl::together(Result<Bytes> one, Result<Bytes> other) {
  if (one && other) return *one + *other;
  if (one && *one > 0_B) return one;
  if (other && *other > 0_B) return other;
  return one ? other : one;
}

Result<bool> DeviceHeap::Impl::record_stream_in_its_epoch(StreamHeap& heap, Address block,
                                                          Stream user) {
  const std::shared_ptr<CapturePool> pool = heap.capture_pool();
  if (!bound() && pool == nullptr)
    return heap.record_stream(block, timelines_, timelines_.of(user));
  if (pool != nullptr) {
    Result<bool> captured = bound() ? is_captured_into(*pool, user) : Result<bool>(false);
    if (!captured) return std::move(captured).error();
    return pool->record_stream(heap, block, user, *captured);
  }
  Result<bool> captured = is_captured(user);
  if (!captured) return std::move(captured).error();
  if (*captured) {
    // It may be used there after the capture too.
    Result<bool> fenced = fence_in_its_epoch(heap, block, user);
    if (!fenced || !*fenced) return fenced;
  }
  return heap.record_stream(block, timelines_, timelines_.of(user));
}

Result<bool> DeviceHeap::Impl::deallocate_in_its_epoch(StreamHeap& heap, Address block) {
  if (bound()) {
    Result<bool> deferred = defer(heap, block);
    if (!deferred) return std::move(deferred).error();
    if (*deferred) return true;
  }
  Result<bool> done = deallocate_now(
      heap, block, is_untold() ? StreamHeap::Gone::behind_all : StreamHeap::Gone::error);
  if (done || !may_be_freed_later(done.error())) return done;
  deferred_.add_to_retry(block, heap);
  return true;
}

Result<bool> DeviceHeap::Impl::deallocate_now(StreamHeap& heap, Address block,
                                              StreamHeap::Gone gone) {
  const std::shared_ptr<CapturePool> pool = heap.capture_pool();
  return pool == nullptr ? heap.deallocate(block, gone) : pool->deallocate(heap, block, gone);
}

bool DeviceHeap::Impl::may_be_freed_later(const Error& error) const {
  return error.code() == ErrorCode::capture || (error.code() == ErrorCode::device && is_untold());
}

// An error: the block is not live, or waits to be freed already.
Result<bool> DeviceHeap::Impl::defer(StreamHeap& heap, Address block) {
  if (deferred_.contains(block)) return unknown(block.pointer(), "deallocate");
  if (heap.pool() != 0) return false;  // the pool has rules of its own
  const std::optional<Stream> stream = heap.stream_of(block);
  if (!stream) return false;  // the heap will say so
  // A stream that may be gone is not asked; nor does PyTorch's own allocator care whether the
  // stream of a block is captured when it is freed.
  Result<bool> captured = stream->may_end ? Result<bool>(false) : is_captured(*stream);
  if (!captured) return std::move(captured).error();
  return deferred_.add_if_captured(block, heap, *captured);
}

void DeviceHeap::Impl::free_deferred() {
  (void)bindings_.end_past();
  free_due(deferred_.take_due(), StreamHeap::Gone::behind_all);
}

void DeviceHeap::Impl::free_due(const DeferredFrees::Due& due, StreamHeap::Gone gone) {
  for (const auto& [block, deferred] : due) {
    // A fence that record_stream asked for could not be taken now; the program has no block to
    // free again.
    if (!deallocate_now(*deferred.heap, block, gone)) deferred_.add_to_retry(block, *deferred.heap);
  }
  for (const std::shared_ptr<CapturePool>& pool : pools()) pool->free_deferred();
}

// The last resort for those whose users are gone, where no event can stand for them.
Status DeviceHeap::Impl::free_deferred_after_all_work() {
  if (!deferred_.retries()) return {};
  free_deferred();
  if (!deferred_.retries()) return {};
  // Those that are freed while the host waits are not waited for.
  const DeferredFrees::Due due = deferred_.take_due();
  Status waited = device_.synchronize_context();
  free_due(due, waited ? StreamHeap::Gone::after_all : StreamHeap::Gone::behind_all);
  // Where the device has no memory left even to wait, they stay for the next time.
  if (!waited && waited.error().code() == ErrorCode::out_of_memory) return {};
  return waited;
}

GraphPool::GraphPool(DeviceHeap& heap, GraphPoolOptions options)
    : heap_(&heap),
      pool_(heap.impl_->open_pool(options.limit, options.memory, std::move(options.tag))) {}

GraphPool::~GraphPool() { heap_->impl_->close_pool(pool_); }

std::uint64_t GraphPool::id() const { return pool_->id(); }

Result<void*> GraphPool::allocate(Bytes bytes, Stream stream) {
  return heap_->impl_->allocate_in(pool_, bytes, stream);
}

Result<void*> GraphPool::take_free(Bytes bytes, Stream stream) {
  return heap_->impl_->take_free_in(pool_, bytes, stream);
}

Result<PoolBinding> GraphPool::warm_up(Stream stream) {
  return warm_up([stream](Stream asking) { return asking == stream; });
}

Result<PoolBinding> GraphPool::warm_up(StreamFilter filter) {
  return bind(std::move(filter), Takes::eager);
}

Result<PoolBinding> GraphPool::serve(StreamFilter filter) {
  return bind(std::move(filter), Takes::eager_alone);
}

Result<PoolBinding> GraphPool::capture(StreamFilter filter, std::optional<Stream> origin) {
  return bind(std::move(filter), Takes::captured, origin);
}

Result<PoolBinding> GraphPool::bind(StreamFilter filter, Takes what, std::optional<Stream> origin) {
  if (!filter) return Error(ErrorCode::invalid_argument, "GraphPool: an empty filter");
  const bool not_captured = what == Takes::eager_alone;
  const auto takes = [filter = std::move(filter), not_captured](Stream stream,
                                                                const CaptureInfo& info) {
    if (not_captured && info.status != CaptureInfo::Status::none) return false;
    return filter(stream);
  };
  const auto kind =
      what == Takes::captured ? PoolBindings::Kind::captured : PoolBindings::Kind::eager;
  Result<std::uint64_t> id = heap_->impl_->bind(pool_, takes, kind, origin);
  if (!id) return std::move(id).error();
  return PoolBinding(heap_, *id);
}

void GraphPool::release_graph() { pool_->release_graph(); }
GraphPoolStatistics GraphPool::statistics() const { return pool_->statistics(); }
std::vector<PlacedBlock> GraphPool::blocks() const { return pool_->blocks(); }
Status GraphPool::restore(std::span<const PlacedBlock> blocks) {
  heap_->impl_->free_deferred();
  Status restored = pool_->restore(blocks);
  // Memory for blocks whose own is gone: what idles elsewhere goes first.
  if (!restored && restored.error().code() == ErrorCode::out_of_memory &&
      heap_->impl_->trim(0_B, Trim::waits)) {
    restored = pool_->restore(blocks);
  }
  // What still waited to be freed, and is live again, is freed no more.
  if (restored) heap_->impl_->forget_deferred(blocks);
  return restored;
}
bool GraphPool::give_back_pages() {
  heap_->impl_->free_deferred();
  return pool_->give_back_pages();
}

PoolBinding::PoolBinding(PoolBinding&& other) noexcept
    : heap_(std::exchange(other.heap_, nullptr)), id_(other.id_) {}
PoolBinding& PoolBinding::operator=(PoolBinding&& other) noexcept {
  if (this != &other) {
    close();
    heap_ = std::exchange(other.heap_, nullptr);
    id_ = other.id_;
  }
  return *this;
}
PoolBinding::~PoolBinding() { close(); }
std::vector<CaptureAttachment> PoolBinding::attached() const { return heap_->impl_->attached(id_); }
bool PoolBinding::outlives_capture() const {
  return heap_ != nullptr && heap_->impl_->outlives_capture(id_);
}
void PoolBinding::close(bool keep, bool origin_lives) {
  if (heap_ != nullptr) std::exchange(heap_, nullptr)->impl_->unbind(id_, keep, origin_lives);
}

}  // namespace weir
