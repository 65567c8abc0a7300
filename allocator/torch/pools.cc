// SPDX-License-Identifier: Apache-2.0
#include "torch/pools.h"

#include <algorithm>
#include <set>

namespace weir::pytorch {
namespace {

std::string text_of(PoolId id) {
  return "(" + std::to_string(id.first) + ", " + std::to_string(id.second) + ")";
}

thread_local bool tells_of_launches = false;

bool lends_scratch(const DeviceHeap& heap) {
  return heap.options().graph_scratch == GraphScratch::lend;
}

}  // namespace

Error Pools::none(PoolId id, const char* call) {
  return {ErrorCode::invalid_argument, std::string(call) + ": there is no memory pool " +
                                           text_of(id) + ": it was released, or never begun"};
}

// With mutex_ held.
Pools::Pool& Pools::open(PoolId id) {
  Pool& pool = pools_[id];
  if (pool.graphs == nullptr && pool.segments == nullptr) {
    GraphPoolOptions options{.tag = new_pools_tag_};
    if (lends_scratch(heap_)) options.scratch = GraphScratch::lend;
    if (pool.plain) options.memory = MemoryKind::plain;
    pool.graphs = std::make_shared<GraphPool>(heap_, std::move(options));
    const std::lock_guard lock(ids_mutex_);
    ids_[pool.graphs->id()] = id;
  }
  return pool;
}

Pools::Pool Pools::pool(PoolId id) const {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(id);
  return known == pools_.end() ? Pool() : known->second;
}

// Of a pool that is new. With mutex_ held.
Pools::Pool& Pools::open(PoolId id, SegmentPool::Source source) {
  Pool& pool = pools_[id];
  pool.segments = std::make_shared<SegmentPool>(
      std::move(source), device_,
      [this, id](const SegmentPool::Segment& segment, SegmentPool::Change change) {
        listener_(id, segment, change);
      });
  sources_.emplace_back(id, pool.segments);
  has_sources_.store(true, std::memory_order_relaxed);
  return pool;
}

void Pools::retain(PoolId id, SegmentPool::Source source) {
  const std::lock_guard lock(mutex_);
  const bool is_new = source.allocate != nullptr && !pools_.contains(id);
  ++(is_new ? open(id, std::move(source)) : open(id)).uses;
}

std::shared_ptr<SegmentPool> Pools::uncached(const SegmentPool::Source& source) {
  const std::lock_guard lock(mutex_);
  return (pools_.contains({0, 0}) ? pools_[{0, 0}] : open({0, 0}, source)).segments;
}

Status Pools::release(PoolId id) {
  Pool gone;
  {
    const std::lock_guard lock(mutex_);
    const auto known = pools_.find(id);
    if (known == pools_.end()) return none(id, "releasePool");
    Pool& pool = known->second;
    if (pool.uses > 0) --pool.uses;
    if (pool.uses > 0) return {};
    if (pool.graphs != nullptr) {
      gone = std::move(pool);
      pools_.erase(known);
    }
  }
  if (gone.graphs == nullptr) {
    empty(id);
    return {};
  }
  // (The pool itself knows how many graphs it has: it lets go of no more.)
  for (; gone.captures > 0; --gone.captures) gone.graphs->release_graph();
  gone.graphs.reset();
  forget_gone_pools();
  return {};
}

// Seldom: to know what is left of all pools takes a snapshot. No pool is opened meanwhile.
void Pools::forget_gone_pools() {
  const std::lock_guard lock(mutex_);
  {
    const std::lock_guard ids(ids_mutex_);
    if (ids_.size() < forgets_at_) return;
  }
  std::set<std::uint64_t> left;
  for (const HeapInfo& heap : heap_.snapshot().heaps) left.insert(heap.pool);
  for (const auto& [id, pool] : pools_) {
    if (pool.graphs != nullptr) left.insert(pool.graphs->id());
  }
  const std::lock_guard ids(ids_mutex_);
  std::erase_if(ids_, [&](const auto& each) { return !left.contains(each.first); });
  forgets_at_ = 64 + 2 * ids_.size();
}

Status Pools::make_plain(PoolId id) {
  const std::lock_guard lock(mutex_);
  Pool& pool = open(id);
  if (pool.segments != nullptr) {
    return Error(
        ErrorCode::invalid_argument,
        "the memory of pool " + text_of(id) + " is another allocator's: it can't be made plain");
  }
  if (pool.plain) return {};
  if (latest_of(id) != bindings_.end() || pool.graphs->statistics().reserved_bytes != 0_B) {
    return Error(ErrorCode::invalid_argument,
                 "memory pool " + text_of(id) +
                     " has been used already: make it plain before anything is allocated in it");
  }
  {
    const std::lock_guard ids(ids_mutex_);
    ids_.erase(pool.graphs->id());
  }
  pool.graphs.reset();
  pool.plain = true;
  (void)open(id);
  return {};
}

void Pools::set_use_on_oom(PoolId id, bool use) {
  const std::lock_guard lock(mutex_);
  open(id).use_on_oom = use;
}

void Pools::set_no_split(PoolId id) {
  const Pool known = pool(id);
  if (known.segments != nullptr) known.segments->set_no_split();
}

Status Pools::begin(PoolId id, Filter filter, Stream current) {
  Result<CaptureInfo> info = device_.capture_info(current);
  if (!info) return std::move(info).error();
  if (graphs_leak_) heap_.captures().assume_graphs_leak();
  const auto takes = [filter](Stream stream) {
    return filter(static_cast<CUstream_st*>(stream.handle));
  };
  const bool captures = !takes(current) || info->status != CaptureInfo::Status::none;
  Binding begun{.id = id,
                .filter = std::move(filter),
                .binding = {},
                .captures = captures,
                .stream = current.id};
  std::shared_ptr<GraphPool> graphs;
  {
    const std::lock_guard lock(mutex_);
    // (A capture takes the place of one that failed and left its binding.)
    if (captures && std::any_of(bindings_.begin(), bindings_.end(), [id](const Binding& each) {
          return each.id == id && !each.captures;
        })) {
      return Error(ErrorCode::invalid_argument,
                   "beginAllocateToPool: no capture may use memory pool " + text_of(id) +
                       " within use_mem_pool(): end that first");
    }
    Pool& pool = open(id);
    ++pool.uses;
    graphs = pool.graphs;
  }
  if (graphs != nullptr) {
    // No capture begins on the default stream: it stands for one that is not known.
    const std::optional<Stream> origin =
        current.handle == nullptr ? std::nullopt : std::optional(current);
    if (captures && lends_scratch(heap_) && !tells_of_launches) {
      if (Status kept = graphs->keep_scratch(); !kept) {
        (void)release(id);
        return kept;
      }
    }
    Result<PoolBinding> binding =
        captures ? graphs->capture(takes, origin) : graphs->warm_up(takes);
    if (!binding) {
      (void)release(id);
      return std::move(binding).error();
    }
    begun.binding = *std::move(binding);
  }
  const std::lock_guard lock(mutex_);
  bindings_.push_back(std::move(begun));
  return {};
}

// With mutex_ held. end(): there is none.
Pools::Bindings::iterator Pools::latest_of(PoolId id) {
  const auto me = std::this_thread::get_id();
  auto latest = bindings_.end();
  for (auto each = bindings_.begin(); each != bindings_.end(); ++each) {
    if (each->id != id) continue;
    const bool have_own = latest != bindings_.end() && latest->begun_by == me;
    if (!have_own || each->begun_by == me) latest = each;
  }
  return latest;
}

Status Pools::end(PoolId id, std::optional<Stream> current) {
  Binding ended;
  {
    const std::lock_guard lock(mutex_);
    const auto latest = latest_of(id);
    if (latest == bindings_.end()) return none(id, "endAllocateToPool");
    ended = std::move(*latest);
    bindings_.erase(latest);
    const auto pool = pools_.find(id);
    if (ended.captures && pool != pools_.end()) ++pool->second.captures;
  }
  // Whether the capture made a graph is PyTorch's to know: it releases the pool if not.
  ended.binding.close(/*keep=*/true, current && current->id == ended.stream);
  return {};
}

void Pools::close_failed(Stream current) {
  const Result<CaptureInfo::Status> status = device_.capture_status(current);
  if (!status || *status != CaptureInfo::Status::none) return;
  Bindings failed;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(bindings_, [&, me = std::this_thread::get_id()](Binding& each) {
      if (!each.captures || each.stream != current.id || each.begun_by != me) return false;
      if (each.binding.outlives_capture()) return false;  // a MemPool's: it is left later
      failed.push_back(std::move(each));
      return true;
    });
  }
  for (Binding& each : failed) {
    each.binding.close(/*keep=*/false);
    (void)release(each.id);
  }
}

std::shared_ptr<SegmentPool> Pools::source_for(Stream stream) const {
  if (!has_sources()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto serves = std::find_if(bindings_.rbegin(), bindings_.rend(), [&](const Binding& each) {
    return each.filter(static_cast<CUstream_st*>(stream.handle));
  });
  if (serves == bindings_.rend()) return nullptr;
  const auto pool = pools_.find(serves->id);
  return pool == pools_.end() ? nullptr : pool->second.segments;
}

std::vector<Pools::Source> Pools::sources() const {
  const std::lock_guard lock(mutex_);
  return sources_;
}

std::optional<std::pair<SegmentPool::Found, Pools::Source>> Pools::find(const void* pointer) const {
  if (!has_sources()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  for (const Source& each : sources_) {
    if (const auto found = each.second->find(pointer)) return std::pair(*found, each);
  }
  return std::nullopt;
}

void* Pools::take_from_reserve(Bytes bytes, Stream stream) {
  std::vector<Pool> reserves;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, pool] : pools_) {
      if (pool.use_on_oom) reserves.push_back(pool);
    }
  }
  for (const Pool& reserve : reserves) {
    const Result<void*> block = reserve.segments != nullptr
                                    ? reserve.segments->take_free(bytes, stream)
                                    : reserve.graphs->take_free(bytes, stream);
    if (block && *block != nullptr) return *block;
  }
  return nullptr;
}

void Pools::empty(PoolId id) {
  const Pool pool = this->pool(id);
  if (pool.graphs != nullptr) (void)pool.graphs->give_back_pages();
  if (pool.segments == nullptr || pool.uses > 0) return;
  pool.segments->empty();
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(id);
  if (known == pools_.end() || known->second.uses > 0 || pool.segments->has_segments()) return;
  // Three have it, unless a request is under way, which may bring a segment yet.
  if (pool.segments.use_count() > 3) return;
  pools_.erase(known);
  std::erase_if(sources_, [id](const Source& each) { return each.first == id; });
  has_sources_.store(!sources_.empty(), std::memory_order_relaxed);
}

void Pools::empty_sources() {
  std::vector<PoolId> ids;
  for (const auto& [id, pool] : sources()) ids.push_back(id);  // and hold none of them
  for (const PoolId& id : ids) empty(id);
}

PoolId Pools::id_of(std::uint64_t graph_pool) const {
  const std::lock_guard lock(ids_mutex_);
  const auto known = ids_.find(graph_pool);
  return known == ids_.end() ? PoolId{0, 0} : known->second;
}

Pools::Held Pools::held() const {
  const std::lock_guard lock(mutex_);
  Held held;
  for (const auto& [id, pool] : pools_) {
    if (pool.graphs == nullptr) continue;
    const GraphPoolStatistics now = pool.graphs->statistics();
    held[id] = {now.reserved_bytes, now.peak_reserved_bytes};
  }
  return held;
}

Result<std::vector<PlacedBlock>> Pools::blocks(PoolId id) const {
  const Pool known = pool(id);
  if (known.graphs != nullptr) return known.graphs->blocks();
  if (known.segments == nullptr) return none(id, "getCheckpointState");
  return std::vector<PlacedBlock>{};
}

void tell_of_launches(bool told) { tells_of_launches = told; }

Result<std::unique_ptr<GraphLaunch>> begin_launch(Pools& pools, PoolId id, Stream stream) {
  const std::shared_ptr<GraphPool> graphs = pools.graphs(id);
  if (graphs == nullptr || !lends_scratch(pools.heap())) return std::unique_ptr<GraphLaunch>();
  Result<GraphLaunch> launch = graphs->begin_launch(stream);
  if (!launch && launch.error().code() == ErrorCode::capture) {
    // The graph becomes part of another, whose launches are not told of.
    if (Status kept = graphs->keep_scratch(); !kept) return std::move(kept).error();
    return std::unique_ptr<GraphLaunch>();
  }
  if (!launch) return std::move(launch).error();
  return std::make_unique<GraphLaunch>(*std::move(launch));
}

Status keep_scratch(Pools& pools, PoolId id, bool keep) {
  const std::shared_ptr<GraphPool> graphs = pools.graphs(id);
  return graphs == nullptr ? Status() : graphs->keep_scratch(keep);
}

Result<IdleMemory> begin_idle_memory(DeviceHeap& heap) {
  auto pool = std::make_unique<GraphPool>(heap);
  Result<PoolBinding> binding = pool->serve([thread = std::this_thread::get_id()](Stream) {
    return std::this_thread::get_id() == thread;
  });
  if (!binding) return std::move(binding).error();
  return IdleMemory(std::move(pool), *std::move(binding));
}

}  // namespace weir::pytorch
