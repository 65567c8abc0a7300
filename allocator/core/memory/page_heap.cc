// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_heap.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

// How often a request is placed anew because a capture is in the way of a wait.
constexpr int kAttempts = 3;

}  // namespace

PageHeap::PageHeap(MemoryCalls& device, Timelines& timelines, RemoteWork& remote_work,
                   Observer& observer, TileIndex& index, Budget& budget, AddressSpace& addresses,
                   const HeapOptions& options, Source source, bool of_graph_pool)
    : timelines_(timelines),
      index_(index),
      budget_(budget),
      source_(std::move(source)),
      heap_{device,
            timelines,
            remote_work,
            observer,
            index,
            budget,
            addresses,
            {.granularity = std::max(device.granularity(), TileIndex::kGranule),
             .reuse = options.reuse,
             .most_mappings = options.most_mappings,
             .trusts_context = timelines.trust() == Trust::context,
             .plain = options.memory == MemoryKind::plain,
             .of_graph_pool = of_graph_pool}},
      supply_(heap_, mappings_),
      mappings_(heap_),
      commit_(heap_, supply_, mappings_),
      loans_(heap_, supply_),
      sleep_(heap_, supply_, mappings_),
      listing_(heap_, mappings_) {
  heap_.placer.set_limit(options.limit);
}

void PageHeap::count(Served served) {
  heap_.tables.requests += served.runs;
  heap_.placer.remaps().earn(served.requests, served.bytes);
}

Tile* PageHeap::allocate(Request& request, Served served) {
  if (is_asleep()) [[unlikely]]
    return request.fail(asleep_error());
  const Bytes size = request.size;
  count(served);
  note_timeline(request.owner.timeline);
  // What is about to be in use counts: growing up to it is no waste.
  const Bytes peak_before = heap_.tables.peak_used;
  heap_.tables.peak_used = std::max(peak_before, heap_.tables.tiles.used() + size);

  heap_.reuse.begin(request);
  Tile* const tile = serve(request);
  heap_.tables.short_of_mappings = request.short_of_mappings;
  if (tile == nullptr) [[unlikely]] {
    heap_.tables.peak_used = peak_before;
    return nullptr;
  }
  heap_.tables.peak_total = std::max(heap_.tables.peak_total, heap_.tables.total());
  if (heap_.tables.requests >= retire_next_) retire_next_ = mappings_.retire_rows();
  return tile;
}

Tile* PageHeap::serve(Request& request) {
  const Create create = request.create;
  for (int attempt = 0;; ++attempt) {
    Tile* const tile = place(request);
    if (tile != nullptr) [[likely]]
      return tile;
    request.create = create;
    if (request.failed_with(ErrorCode::capture) && attempt < kAttempts) {
      heap_.reuse.avoid_waits(request);
    } else if (request.failed_with(ErrorCode::out_of_memory) && request.may_wait() &&
               request.remote == Request::Remote::avoids && create != Create::not_yet) {
      request.remote = Request::Remote::takes;  // memory that must be waited for with others' work
      request.short_of_mappings = false;
    } else {
      return nullptr;
    }
    request.status = {};
  }
}

Tile* PageHeap::place(Request& request) {
  request.passed_over = false;
  request.in_use_elsewhere = 0_B;
  const auto steps = heap_.placer.steps();
  for (std::size_t step = 0; step < steps.size();) {
    const Plan plan = (heap_.placer.*steps[step++])(request);
    if (!plan) continue;
    if (plan.creates > 0_B) [[unlikely]] {
      if (request.create == Create::never) continue;
      if (request.create == Create::not_yet) {
        return request.fail({ErrorCode::out_of_memory, "new memory may not be had yet"});
      }
      if (ask_source(request)) {
        step = 0;
        continue;
      }
    }
    Tile* const tile = commit_.carry_out(request, plan);
    if (tile != nullptr) {
      if (step > 1) heap_.placer.remember(request.keys, tile->begin);
      return tile;
    }
    if (plan.way == Plan::Way::held && request.status) {
      step = 0;  // with what is mapped now
    } else if (plan.way == Plan::Way::held || !request.failed_with(ErrorCode::out_of_memory)) {
      return nullptr;
    }
    request.status = {};
  }
  // (Where the limit has no room for new pages no plan creates any.)
  if (ask_source(request)) return place(request);
  return request.fail({ErrorCode::out_of_memory, "no free memory fits"});
}

bool PageHeap::ask_source(Request& request) {
  if (request.create != Create::may || !budget_.shared() || !source_) return false;
  const Bytes limit = heap_.placer.limit(), total = heap_.tables.total();
  const std::vector<UnmappedPage> pages =
      source_(request.size, limit == 0_B ? kUnlimited : limit - std::min(limit, total));
  supply_.hold_from_pool(pages);
  request.create = pages.empty() ? Create::device : Create::rather_not;
  return !pages.empty();
}

Tile* PageHeap::allocate_at(Request& request, Address at) {
  const QueuedLock lock(mutex_);
  const Range run{at, request.size};
  if (is_asleep()) return request.fail(asleep_error());
  request.status = commit_.fill(request, run);
  if (!request.status) return nullptr;
  const Plan plan = heap_.placer.place_at(run);
  if (!plan) {
    return request.fail(
        {ErrorCode::invalid_argument, "the memory there is in use, or is not the heap's any more"});
  }
  note_timeline(request.owner.timeline);
  count({1, run.size, 1});
  heap_.tables.peak_used = std::max(heap_.tables.peak_used, heap_.tables.tiles.used() + run.size);
  heap_.reuse.begin(request);
  request.waits = request.waits || !rules().trusts_context;
  return commit_.carry_out(request, plan);
}

Status PageHeap::wait_for_idle_pages() {
  const FenceSet users = idle()->users();
  for (const Fence fence : users) {
    FenceSet one;
    one.join(fence);
    // What is captured just now can't be waited for, nor anything that takes memory of the device
    // where there is none: those pages stay as they are.
    Status waited = timelines_.host_wait(one);
    const bool stays = !waited && (waited.error().code() == ErrorCode::capture ||
                                   waited.error().code() == ErrorCode::out_of_memory);
    if (!waited && !stays) return waited;
  }
  return {};
}

Status PageHeap::renew_access() {
  const QueuedLock lock(mutex_);
  return mappings_.renew_access();
}

Error PageHeap::asleep_error() {
  return {ErrorCode::asleep, "the memory sleeps: wake it first, or ask for memory of another tag"};
}

}  // namespace weir
