#include "torch/pools.h"

#include <algorithm>
#include <thread>

#include "torch/errors.h"

namespace weir::pytorch {

Pools::Pool& Pools::open(Id id, std::shared_ptr<CudaAllocator> source) {
  Pool& pool = pools_[id];
  if (pool.graphs != nullptr || pool.source != nullptr) return pool;
  if (source != nullptr) {
    pool.source = std::make_shared<SourcePool>(std::move(source));
    ++open_sources_;
  } else {
    pool.graphs = std::make_unique<GraphPool>(heap_);
    ids_[pool.graphs->id()] = id;
  }
  return pool;
}

const Pools::Pool& Pools::find(Id id, const char* call) const {
  const auto known = pools_.find(id);
  TORCH_CHECK(known != pools_.end(), call, ": there is no memory pool (", id.first, ", ", id.second,
              "): it was released, or never begun");
  return known->second;
}

Pools::Pool& Pools::find(Id id, const char* call) {
  return const_cast<Pool&>(std::as_const(*this).find(id, call));
}

void Pools::retain(Id id, std::shared_ptr<CudaAllocator> source) {
  const std::lock_guard lock(mutex_);
  ++open(id, std::move(source)).uses;
}

void Pools::release(Id id) {
  const std::lock_guard lock(mutex_);
  Pool& pool = find(id, "releasePool");
  if (--pool.uses > 0) return;
  for (; pool.captures > 0; --pool.captures) pool.graphs->release_graph();
  if (pool.source != nullptr) old_sources_.push_back(std::move(pool.source));
  pools_.erase(id);
  std::erase_if(old_sources_, [&](const std::shared_ptr<SourcePool>& source) {
    if (source->live() > 0) return false;
    --open_sources_;
    return true;
  });
}

int Pools::uses(Id id) const {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(id);
  return known == pools_.end() ? 0 : known->second.uses;
}

void Pools::set_use_on_oom(Id id, bool use) {
  const std::lock_guard lock(mutex_);
  open(id, nullptr).use_on_oom = use;
}

// Nothing of Weir's is split: a pool's memory is pages, and those with a source give whole blocks.
void Pools::set_no_split(Id id) {
  const std::lock_guard lock(mutex_);
  open(id, nullptr);
}

void Pools::begin(Id id, Filter filter, Stream current) {
  const auto handle = static_cast<cudaStream_t>(current.handle);
  const CaptureInfo info = check(device_.capture_info(current));
  const bool captures = !filter(handle) || info.status != CaptureInfo::Status::none;
  GraphPool* graphs = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Pool& pool = open(id, nullptr);
    ++pool.uses;
    graphs = pool.graphs.get();
  }
  Route route{.id = id, .captures = captures, .filter = filter};
  if (graphs != nullptr) {
    const StreamFilter takes = [filter = std::move(filter)](Stream stream) {
      return filter(static_cast<cudaStream_t>(stream.handle));
    };
    Result<PoolRoute> opened = captures ? graphs->capture(takes) : graphs->warm_up(takes);
    if (!opened) {
      release(id);
      raise(opened.error());
    }
    route.route = *std::move(opened);
  }
  const std::lock_guard lock(mutex_);
  routes_.push_back(std::move(route));
}

void Pools::end(Id id) {
  Route ended;
  {
    const std::lock_guard lock(mutex_);
    const auto route = std::find_if(routes_.rbegin(), routes_.rend(),
                                    [&](const Route& each) { return each.id == id; });
    TORCH_CHECK(route != routes_.rend(), "endAllocateToPool: nothing is being allocated to pool (",
                id.first, ", ", id.second, ")");
    ended = std::move(*route);
    routes_.erase(std::next(route).base());
    const auto pool = pools_.find(id);
    if (ended.captures && pool != pools_.end() && pool->second.graphs) ++pool->second.captures;
  }
  // Whether the capture made a graph is PyTorch's to know: it releases the pool if not.
  ended.route.close(/*keep=*/true);
}

SourcePool* Pools::source_for(cudaStream_t stream) const {
  if (!has_sources()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto route = std::find_if(routes_.rbegin(), routes_.rend(),
                                  [&](const Route& each) { return each.filter(stream); });
  if (route == routes_.rend()) return nullptr;
  const auto pool = pools_.find(route->id);
  return pool == pools_.end() ? nullptr : pool->second.source.get();
}

SourcePool* Pools::source_of(const void* block) const {
  if (!has_sources()) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pool] : pools_) {
    if (pool.source != nullptr && pool.source->holds(block)) return pool.source.get();
  }
  for (const std::shared_ptr<SourcePool>& source : old_sources_) {
    if (source->holds(block)) return source.get();
  }
  return nullptr;
}

void* Pools::allocate_from_reserve(Bytes bytes, Stream stream) {
  std::vector<Pool*> reserves;
  const std::lock_guard lock(mutex_);
  for (auto& [id, pool] : pools_) {
    if (pool.use_on_oom) reserves.push_back(&pool);
  }
  const std::thread::id me = std::this_thread::get_id();
  for (Pool* pool : reserves) {
    if (pool->source != nullptr) {
      return pool->source->allocate(bytes, static_cast<cudaStream_t>(stream.handle));
    }
    Result<PoolRoute> route =
        pool->graphs->warm_up([me](Stream) { return std::this_thread::get_id() == me; });
    if (!route) continue;
    if (Result<void*> block = heap_.allocate(bytes, stream)) return *block;
  }
  return nullptr;
}

void Pools::empty(Id id) {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(id);
  if (known == pools_.end()) return;
  if (known->second.source != nullptr) return known->second.source->empty();
  (void)known->second.graphs->give_back_pages();
}

void Pools::empty_all_sources() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pool] : pools_) {
    if (pool.source != nullptr) pool.source->empty();
  }
}

Pools::Id Pools::id_of(std::uint64_t graph_pool) const {
  const std::lock_guard lock(mutex_);
  const auto known = ids_.find(graph_pool);
  return known == ids_.end() ? Id{0, 0} : known->second;
}

std::optional<std::uint64_t> Pools::graph_pool_of(Id id) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [graph_pool, known] : ids_) {
    if (known == id) return graph_pool;
  }
  return std::nullopt;
}

std::vector<std::pair<Pools::Id, const SourcePool*>> Pools::sources() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<Id, const SourcePool*>> all;
  for (const auto& [id, pool] : pools_) {
    if (pool.source != nullptr) all.emplace_back(id, pool.source.get());
  }
  return all;
}

std::vector<PlacedBlock> Pools::blocks(Id id) const {
  const std::lock_guard lock(mutex_);
  const Pool& pool = find(id, "getCheckpointState");
  return pool.graphs == nullptr ? std::vector<PlacedBlock>{} : pool.graphs->blocks();
}

void Pools::restore(Id id, std::span<const PlacedBlock> blocks) {
  const std::lock_guard lock(mutex_);
  Pool& pool = find(id, "setCheckpointPoolState");
  if (pool.graphs != nullptr) check(pool.graphs->restore(blocks));
}

}  // namespace weir::pytorch
