// SPDX-License-Identifier: Apache-2.0
#include "core/heap/heap_memory.h"

#include <thread>
#include <utility>

#include "core/base/mechanism.h"
#include "weir/heap_types.h"

namespace weir {
namespace {

// After so many heaps with cached blocks, other threads may use the page heap.
constexpr int kHeapsAtATime = 64;

}  // namespace

void HeapMemory::join_pool(CachingHeaps<HeapMemory>* caching_heaps) {
  caching_heaps_ = caching_heaps;
  if (caching_heaps != nullptr) return;
  caching_link_.listed = false;  // the list goes with the pool
  history_ = {};
  asked_ = {served_.fold.blocks_in_all(), Bytes{served_.fold.bytes_in_all()}, 0};
  blocks_.leave_pool();
}

Status HeapMemory::wait_and_take(BlockRef block) {
  if (Status status = served_.wait_for(block.uses()); !status) {
    // (It stays cached.) It is held no more; that it was asked for stays noted, which only
    // matters as a hint.
    if (!block.is_small() || block.tile()->slab->live == 0_B) {
      history_.subtract(block.is_small() ? Slab::kSize : block.size());
    }
    return status;
  }
  cache_.take(block);
  return {};
}

// In a program of one thread the pages are seen as if every freed block had gone back at once. A
// heap that another thread is busy with keeps its blocks, as that thread wants them the next
// moment, until there is need of new memory: threads that took each other's blocks would all miss
// for ever.
Tile* HeapMemory::find_run(Bytes bytes, RequestHistory::Name name, Status& status) {
  const QueuedLock lock(served_.pages->mutex());
  give_back_cached_under_page_lock();
  const auto create = have_others_give_back(Others::at_rest) ? create_ : PageHeap::Create::not_yet;
  const Owner owner = this->owner();
  Request request{.owner = owner, .size = bytes, .keys = history_.keys(name), .create = create};
  Tile* run = served_.pages->allocate(request, served_since_asked());
  if (create != create_ && request.failed_with(ErrorCode::out_of_memory)) {
    have_others_give_back(Others::all);
    request.create = create_;
    request.status = {};
    run = served_.pages->allocate(request, {});
  }
  served_.note_waits(request.waited);
  if (run == nullptr) status = std::move(request.status);
  return run;
}

// Slabs are noted as of one size, whichever they have.
Tile* HeapMemory::allocate_run(Bytes bytes, bool for_slab, Status& status) {
  const Bytes noted = for_slab ? Slab::kSize : bytes;
  const RequestHistory::Name name = history_.note(noted);
  Tile* const run = find_run(bytes, name, status);
  if (run == nullptr) [[unlikely]] {
    history_.subtract(noted);
    return nullptr;
  }
  return add_run(run, name, for_slab);
}

Tile* HeapMemory::add_run(Tile* run, RequestHistory::Name name, bool for_slab) {
  // The page heap has counted this one; a slab is no request of the program's.
  if (!for_slab) {
    ++asked_.requests;
    asked_.bytes += run->size;
  }
  run->name = name;
  blocks_.add(run);
  return run;
}

PageHeap::Served HeapMemory::served_since_asked() {
  const HeapFold& fold = served_.fold;
  const PageHeap::Served all{fold.blocks_in_all(), Bytes{fold.bytes_in_all()}, history_.noted()};
  const PageHeap::Served before = std::exchange(asked_, all);
  return {all.requests - before.requests, all.bytes - before.bytes, all.runs - before.runs};
}

SmallTile* HeapMemory::allocate_small(Bytes bytes, Status& status) {
  SmallTile* stretch = blocks_.slabs().find(bytes);
  if (stretch == nullptr) [[unlikely]]
    stretch = add_slab(status);
  if (stretch == nullptr) return nullptr;
  status = served_.wait_for(stretch->uses);
  if (ServedStream::is_in_the_way(status)) {
    status = {};
    stretch = find_settled(bytes, status);
  }
  return status ? blocks_.slabs().take(stretch, bytes) : nullptr;
}

SmallTile* HeapMemory::add_slab(Status& status) {
  Tile* run = allocate_run(Slab::kSize, /*for_slab=*/true, status);
  // Free memory may lie in pieces that are all too small.
  if (run == nullptr && create_ != PageHeap::Create::not_yet &&
      status.error().code() == ErrorCode::out_of_memory) {
    Status smaller;
    run = allocate_run(Slab::kLeast, /*for_slab=*/true, smaller);
    if (run != nullptr) status = {};
  }
  return run == nullptr ? nullptr : &blocks_.make_slab(*run);
}

// One that carries nothing any more; of a new slab, if there is none.
SmallTile* HeapMemory::find_settled(Bytes bytes, Status& status) {
  const auto settled = [&](const SmallTile& stretch) {
    return !stretch.uses || served_.is_settled(stretch.uses->fences);
  };
  SmallTile* const stretch = blocks_.slabs().find_if(bytes, settled);
  if (stretch == nullptr) return add_slab(status);
  stretch->uses.reset();
  return stretch;
}

Tile* HeapMemory::claim_run(Range run, bool for_slab, bool waits, Status& status) {
  const Owner owner = this->owner();
  Request request{.owner = owner,
                  .size = run.size,
                  .keys = {},
                  .create = PageHeap::Create::may,
                  .waits = waits};
  Tile* const claimed = served_.pages->allocate_at(request, run.begin);
  if (claimed == nullptr) {
    status = std::move(request.status);
    return nullptr;
  }
  return add_run(claimed, history_.note(for_slab ? Slab::kSize : run.size), for_slab);
}

BlockRef HeapMemory::allocate_at(const PlacedBlock& wanted, bool waits, Status& status) {
  const Range range{wanted.address, wanted.bytes};
  if (wanted.bytes > Slabs::kLargest) {
    return BlockRef(claim_run(range, /*for_slab=*/false, waits, status));
  }
  Tile* slab = blocks_.run_near(wanted.address);
  if (slab == nullptr || slab->slab == nullptr || !slab->range().contains(range)) {
    slab = claim_run({wanted.run, wanted.run_bytes}, /*for_slab=*/true, waits, status);
    if (slab == nullptr) return {};
    blocks_.make_slab(*slab);
  }
  return BlockRef(blocks_.slabs().take_at(*slab->slab, range));
}

void HeapMemory::free(BlockRef block, bool may_cache) {
  block.visit([&](auto& record) { take_back(record); });
  // Whether a large block may be used again while its fences still run is the page heap's policy.
  if (!may_cache || without(Mechanism::cached_blocks) ||
      (block.uses() && !block.is_small() && !served_.pages->reuses_at_once())) {
    return give_back(block);
  }
  if (cache_.full()) {
    const BlockRef oldest = cache_.oldest();
    cache_.take(oldest);
    give_back(oldest);
  }
  block.state() = BlockState::cached;
  cache_.put({block.size(), block});
  if (caching_link_.listed) return;
  caching_link_.listed = true;
  caching_link_.by = std::this_thread::get_id();
  caching_heaps_->push(*this, caching_link_);
}

void HeapMemory::give_back(BlockRef block) {
  if (Tile* const run = blocks_.release(block)) {
    const QueuedLock lock(served_.pages->mutex());
    give_back_run(run);
  }
}

void HeapMemory::give_back_run(Tile* run) {
  blocks_.remove(run);
  served_.pages->free(owner(), run);
}

void HeapMemory::give_back_cached_under_page_lock() {
  while (!cache_.empty()) {
    if (Tile* const run = blocks_.release(cache_.take_newest())) give_back_run(run);
  }
}

// A heap whose lock is taken is at work on just these blocks: it is left alone, and stays listed.
bool HeapMemory::have_others_give_back(Others whose) WEIR_NO_THREAD_ANALYSIS {
  const auto at_rest = [](HeapMemory& heap) WEIR_NO_THREAD_ANALYSIS {
    const std::uint64_t served = heap.served_.fold.blocks_in_all();
    return heap.caching_link_.by == std::this_thread::get_id() ||
           std::exchange(heap.caching_link_.served, served) == served;
  };
  bool all = true;
  int looked_at = 0;
  for (HeapMemory* heap = without(Mechanism::others_cached) ? nullptr : caching_heaps_->take();
       heap != nullptr;) {
    HeapMemory* const next = heap->caching_link_.next;
    if (++looked_at % kHeapsAtATime == 0) {
      served_.pages->mutex().unlock();
      served_.pages->mutex().lock();
    }
    const bool locked = heap != this && heap->lock_.looks_free() && heap->lock_.try_lock();
    if (locked && (whose == Others::all || at_rest(*heap))) {
      served_.pages->count(heap->served_since_asked());
      heap->give_back_cached_under_page_lock();
      heap->caching_link_.listed = false;
    } else {
      all = all && heap == this;
      caching_heaps_->push(*heap, heap->caching_link_);
    }
    if (locked) heap->lock_.unlock();
    heap = next;
  }
  return all;
}

void HeapMemory::give_back_all(CachingHeaps<HeapMemory>& caching_heaps) WEIR_NO_THREAD_ANALYSIS {
  for (HeapMemory* heap = caching_heaps.take(); heap != nullptr;) {
    HeapMemory* const next = heap->caching_link_.next;
    if (heap->lock_.try_lock()) {
      heap->give_back_cached();
      heap->caching_link_.listed = false;
      heap->lock_.unlock();
    } else {
      caching_heaps.push(*heap, heap->caching_link_);
    }
    heap = next;
  }
}

}  // namespace weir
