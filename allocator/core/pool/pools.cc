// SPDX-License-Identifier: Apache-2.0
#include "core/pool/pools.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/base/format.h"
#include "weir/sleep.h"

namespace weir {
namespace {

// How many closed pools are looked at, whether anything is left of them, as one is opened or
// closed.
constexpr std::size_t kLookedAt = 4;

// The limit is the budget's, which pools share.
HeapOptions of_own_pool(HeapOptions options) {
  options.limit = 0_B;
  return options;
}

// Adds scratch of graphs to what the own pool gets for a request of `wanted` bytes, if the device
// heap would otherwise hold more than ever. The own pool's page lock is held.
// (What was spared counts in the budget again once it is taken.)
void add_scratch(const Pool::Shared& shared, Bytes wanted, std::vector<UnmappedPage>& pages) {
  const bool grows = shared.budget.is_most(wanted);
  for (const UnmappedPage page : pages) wanted -= std::min(wanted, page.size);
  if (wanted == 0_B || !grows) return;
  for (const std::shared_ptr<CapturePool>& pool : shared.lending.take()) {
    shared.lending.enter(pool->id(), pool);  // it may have more later
    if (wanted == 0_B) continue;
    for (const UnmappedPage page : pool->scratch().try_lend(wanted)) {
      wanted -= std::min(wanted, page.size);
      pages.push_back(page);
    }
  }
}

}  // namespace

Pools::Pools(const HeapOptions& options, Pool::Shared shared, PoolBindings& bindings)
    : options_(options),
      shared_(shared),
      bindings_(bindings),
      own_(std::make_shared<Pool>(0, kDefaultTag, shared.device, shared, of_own_pool(options),
                                  [this](Bytes wanted, Bytes /*most*/) {
                                    std::vector<PageHeap::UnmappedPage> pages = spare(wanted);
                                    add_scratch(shared_, wanted, pages);
                                    return pages;
                                  })) {}

std::shared_ptr<CapturePool> Pools::open(Bytes limit, std::optional<MemoryKind> memory,
                                         std::string tag, std::optional<GraphScratch> scratch) {
  if (tag.empty()) tag = kDefaultTag;
  HeapOptions options = options_;
  options.limit = limit;
  options.memory = memory.value_or(options_.memory);
  const std::unique_lock lock(mutex_);
  shared_.budget.share();
  drop_gone_locked(kLookedAt);
  const auto sleeps = [&](const auto& each) {
    return each.second->pages().is_asleep() && each.second->tag() == tag;
  };
  const bool asleep =
      options.memory == MemoryKind::pages &&
      (tag == kDefaultTag ? own_->pages().is_asleep()
                          : std::any_of(graph_pools_.begin(), graph_pools_.end(), sleeps));
  const std::uint64_t id = ++last_;
  auto opened = std::make_shared<CapturePool>(id, std::move(tag), shared_, *own_, options, scratch);
  graph_pools_.emplace(id, opened);
  if (asleep) opened->pages().sleep()->set_asleep(true);
  return opened;
}

void Pools::close(const std::shared_ptr<CapturePool>& pool) {
  pool->close();
  const std::unique_lock lock(mutex_);
  closed_.push_front(pool);
  drop_gone_locked(kLookedAt);
}

void Pools::drop_gone(std::size_t most) {
  const std::unique_lock lock(mutex_);
  drop_gone_locked(most);
}

void Pools::drop_gone_locked(std::size_t most) {
  for (std::size_t left = std::min(most, closed_.size()); left > 0; --left) {
    std::shared_ptr<CapturePool> pool = std::move(closed_.front());
    closed_.pop_front();
    if (!bindings_.lead_to(*pool) && pool->end_if_gone()) {
      graph_pools_.erase(pool->id());
    } else {
      closed_.push_back(std::move(pool));
    }
  }
}

std::vector<std::shared_ptr<CapturePool>> Pools::graph_pools() const {
  const std::shared_lock lock(mutex_);
  std::vector<std::shared_ptr<CapturePool>> all;
  all.reserve(graph_pools_.size());
  for (const auto& [id, pool] : graph_pools_) all.push_back(pool);
  return all;
}

std::vector<std::shared_ptr<Pool>> Pools::all() const {
  std::vector<std::shared_ptr<Pool>> all{own_};
  for (std::shared_ptr<CapturePool>& pool : graph_pools()) all.push_back(std::move(pool));
  return all;
}

std::vector<PageHeap::UnmappedPage> Pools::spare(Bytes wanted) {
  std::vector<PageHeap::UnmappedPage> pages;
  Bytes size;
  for (const std::shared_ptr<CapturePool>& pool : shared_.sparing.take()) {
    for (const PageHeap::UnmappedPage page : pool->try_spare(wanted - std::min(wanted, size))) {
      size += page.size;
      pages.push_back(page);
    }
  }
  return pages;
}

void Pools::keep_to_limit() {
  const std::shared_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const auto& [id, pool] : graph_pools_) {
    const Bytes excess = shared_.budget.excess();
    if (excess > 0_B) (void)pool->try_give_to_driver(excess);
  }
}

std::shared_ptr<CapturePool> Pools::graph_pool(std::uint64_t id) const {
  if (id == 0) return nullptr;
  const std::shared_lock lock(mutex_);
  const auto known = graph_pools_.find(id);
  return known == graph_pools_.end() ? nullptr : known->second;
}

Error Pools::unknown(const void* block, const char* call) const {
  const Address at = Address::of(block);
  const std::optional<BlockInfo> around = find(at);
  const bool is_inside = around && around->address != at;
  return {ErrorCode::unknown_pointer,
          std::string(call) + ": " + format(at) + " is not the start of a live block" +
              (is_inside ? ": it lies inside the one that begins at " + format(around->address) +
                               ", which is the address to give"
                         : " of this device heap: it was deallocated already, or never allocated "
                           "here")};
}

Result<StreamHeap*> Pools::heap_of(const void* block, const char* call) const {
  StreamHeap* const heap = shared_.registry.owner_of(Address::of(block));
  if (heap != nullptr && heap->live(Address::of(block))) return heap;
  return unknown(block, call);
}

std::optional<BlockInfo> Pools::find(Address address) const {
  StreamHeap* const heap = shared_.registry.owner_of(address);
  if (heap == nullptr) return std::nullopt;
  const LiveBlock live = heap->live_around(address);
  return live ? std::optional(live.info()) : std::nullopt;
}

std::shared_ptr<Pool> Pools::pool_of(const BlockInfo& block) const {
  const std::shared_ptr<CapturePool> pool = graph_pool(block.pool);
  return pool == nullptr ? own_ : pool;
}

Result<bool> Pools::free(StreamHeap& heap, Address block) {
  const bool told = own_->is_told();
  Result<bool> done =
      free_now(heap, block, told ? StreamHeap::Gone::error : StreamHeap::Gone::behind_all);
  if (done) return done;
  const ErrorCode code = done.error().code();
  if (code != ErrorCode::capture && (told || code != ErrorCode::device)) return done;
  shared_.waiting.add(heap, block, 0);
  return true;
}

Result<bool> Pools::free_now(StreamHeap& heap, Address block, StreamHeap::Gone gone) {
  if (heap.pool() == 0) [[likely]]
    return heap.deallocate(block, gone);
  const std::shared_ptr<CapturePool> pool = graph_pool(heap.pool());
  return pool == nullptr ? heap.deallocate(block, gone) : pool->deallocate(heap, block, gone);
}

void Pools::free_due() {
  (void)bindings_.end_past();
  free_all(shared_.waiting.take_due(bindings_.oldest_capture()), StreamHeap::Gone::behind_all);
}

void Pools::free_all(const WaitingFrees::Blocks& due, StreamHeap::Gone gone) {
  for (const auto& [block, heap] : due) {
    // A fence that record_stream asked for could not be taken now; the program has no block to
    // free again.
    if (!free_now(*heap, block, gone)) shared_.waiting.add(*heap, block, 0);
  }
}

Status Pools::free_after_all_work() {
  if (!shared_.waiting.has_any_to_retry()) return {};
  free_due();
  if (!shared_.waiting.has_any_to_retry()) return {};
  // Those that are freed while the host waits are not waited for.
  const WaitingFrees::Blocks due = shared_.waiting.take_due(bindings_.oldest_capture());
  Status waited = shared_.device.synchronize_context();
  free_all(due, waited ? StreamHeap::Gone::after_all : StreamHeap::Gone::behind_all);
  // Where the device has no memory left even to wait, they stay for the next time.
  if (!waited && waited.error().code() == ErrorCode::out_of_memory) return {};
  return waited;
}

Status Pools::retire(Stream stream, const std::optional<Stream>& beside) {
  for (const std::shared_ptr<CapturePool>& pool : graph_pools()) {
    if (Status status = pool->retire(stream); !status) return status;
    if (!beside) continue;
    if (Status status = pool->retire(*beside); !status) return status;
  }
  if (beside && own_->timelines().has_met(*beside)) {
    if (Status status = own_->retire(*beside); !status) return status;
  }
  return own_->retire(stream);
}

Statistics Pools::statistics(HeapRegistry::Heaps heaps) const {
  std::vector<HeapStatistics> each;
  for (const auto& heap : heaps) each.push_back(heap->fold().statistics());
  return shared_.observer.fold().combine(std::move(each));
}

Statistics Pools::statistics() const {
  Statistics all;
  shared_.registry.at_one_moment([&](HeapRegistry::Heaps heaps) { all = statistics(heaps); });
  return all;
}

}  // namespace weir
