// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_heap.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace weir {
namespace {

// How often a request is placed anew because a capture is in the way of a wait.
constexpr int kAttempts = 3;

}  // namespace

PageHeap::PageHeap(MemoryCalls& device, Timelines& timelines, RemoteWork& remote_work,
                   Observer& observer, TileIndex& index, Budget& budget, const HeapOptions& options,
                   Source source, bool of_graph_pool)
    : device_(device),
      timelines_(timelines),
      observer_(observer),
      index_(index),
      budget_(budget),
      source_(std::move(source)),
      rules_{.granularity = std::max(device.granularity(), TileIndex::kGranule),
             .reuse = options.reuse,
             .most_mappings = options.most_mappings,
             .trusts_context = timelines.trust() == Trust::context,
             .plain = options.memory == MemoryKind::plain,
             .of_graph_pool = of_graph_pool},
      tables_(index, timelines.context(), rules_.granularity),
      reuse_(tables_, rules_, timelines, remote_work),
      placer_(tables_, rules_, reuse_, budget),
      driver_(device, timelines, observer, index, budget, tables_, rules_, placer_) {
  placer_.set_limit(options.limit);
}

void PageHeap::count(Served served) {
  tables_.requests += served.runs;
  placer_.remaps().earn(served.requests, served.bytes);
}

Tile* PageHeap::allocate(Request& request, Served served) {
  if (is_asleep()) [[unlikely]]
    return request.fail(asleep_error());
  const Bytes size = request.size;
  count({served.requests + 1, served.bytes + size, served.runs});
  if (!tables_.first) tables_.first = request.owner.timeline;
  tables_.single_timeline = tables_.single_timeline && *tables_.first == request.owner.timeline;
  // What is about to be in use counts: growing up to it is no waste.
  const Bytes peak_before = tables_.peak_used;
  tables_.peak_used = std::max(peak_before, tables_.tiles.used() + size);

  reuse_.begin(request);
  Tile* const tile = serve(request);
  short_of_mappings_ = request.short_of_mappings;
  if (tile == nullptr) [[unlikely]] {
    tables_.peak_used = peak_before;
    return nullptr;
  }
  peak_total_ = std::max(peak_total_, tables_.total());
  if (tables_.requests >= retire_next_) retire_next_ = driver_.retire_rows();
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
      reuse_.avoid_waits(request);
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
  const auto steps = placer_.steps();
  for (std::size_t step = 0; step < steps.size();) {
    const Plan plan = (placer_.*steps[step++])(request);
    if (!plan) continue;
    if (plan.way == Plan::Way::held || plan.creates > 0_B) [[unlikely]] {
      if (const Next next = prepare(request, plan); next != Next::commit) {
        if (next == Next::fail) return nullptr;
        if (next == Next::anew) step = 0;
        continue;
      }
    }
    Tile* const tile = commit(request, plan);
    if (tile != nullptr && step > 1) placer_.remember(request.keys, tile->begin);
    if (tile != nullptr || !request.failed_with(ErrorCode::out_of_memory)) return tile;
    request.status = {};
  }
  // (Where the limit has no room for new pages no plan creates any.)
  if (ask_source(request)) return place(request);
  return request.fail({ErrorCode::out_of_memory, "no free memory fits"});
}

PageHeap::Next PageHeap::prepare(Request& request, const Plan& plan) {
  if (plan.way == Plan::Way::held) {
    request.status = driver_.map_held(request);
    return request.status ? Next::anew : Next::fail;
  }
  if (request.create == Create::never) return Next::pass_over;
  if (request.create == Create::not_yet) {
    (void)request.fail({ErrorCode::out_of_memory, "new memory may not be had yet"});
    return Next::fail;
  }
  return ask_source(request) ? Next::anew : Next::commit;
}

bool PageHeap::ask_source(Request& request) {
  if (request.create != Create::may || !budget_.shared() || !source_) return false;
  const Bytes limit = placer_.limit(), total = tables_.total();
  const std::vector<UnmappedPage> pages =
      source_(request.size, limit == 0_B ? kUnlimited : limit - std::min(limit, total));
  for (const UnmappedPage page : pages) {
    driver_.hold(page);
    tables_.peak_used += page.size;
  }
  request.create = pages.empty() ? Create::device : Create::rather_not;
  return !pages.empty();
}

Tile* PageHeap::commit(Request& request, const Plan& plan) {
  switch (plan.way) {
    case Plan::Way::row:
      return claim_row(request, *plan.row);
    case Plan::Way::grow: {
      Address begin = plan.home.begin;
      if (begin == Address{}) {
        Result<Address> room = driver_.room_for(plan.home.size + tables_.held_bytes);
        if (!room) return request.fail(std::move(room).error());
        begin = *room;
      }
      Result<std::vector<Page*>> pages = driver_.extend(request, begin, plan.home.size);
      if (!pages) return request.fail(std::move(pages).error());
      const Range home{begin - plan.behind, request.size};
      return claim(request, tables_.tiles.run_around(home), home);
    }
    case Plan::Way::stitch: {
      Result<StitchedRow*> row = driver_.build(request, *plan.stitch);
      return row ? claim_row(request, **row) : request.fail(std::move(row).error());
    }
    case Plan::Way::segment:
      return commit_segment(request);
    default:
      return claim(request, plan.head, plan.home);
  }
}

Tile* PageHeap::commit_segment(Request& request) {
  Result<Range> segment = driver_.add_segment(request);
  if (!segment && segment.error().code() == ErrorCode::out_of_memory) {
    // Idle segments, of which each is too small, go for one that is large enough: unless even all
    // of them would not do.
    if (const Result<MemoryInfo> info = device_.memory_info()) request.device_room = info->free;
    const Bytes idle = tables_.total() - tables_.leased;
    const bool would_do =
        round_up(request.size, rules_.granularity) <= placer_.room(request) + idle;
    const Result<Bytes> gone = would_do ? driver_.trim(0_B) : Result<Bytes>(0_B);
    if (gone && *gone > 0_B) {
      request.device_room.reset();
      // Which went down with what has gone.
      tables_.peak_used = std::max(tables_.peak_used, tables_.tiles.used() + request.size);
      segment = driver_.add_segment(request);
    }
  }
  if (!segment) return request.fail(std::move(segment).error());
  const Range home{segment->begin, request.size};
  return claim(request, tables_.tiles.run_around(home), home);
}

void PageHeap::collect_needed(Request& request, const Tile* head, Range home, FenceSet& fences) {
  if (tables_.single_timeline) return;
  (void)Tiles::visit_notes(head, home, [&](const Tile& tile) WEIR_REQUIRES(mutex_) {
    reuse_.collect_needed(request, tile, fences);
    return true;
  });
}

Tile* PageHeap::claim(Request& request, Tile* head, Range home) {
  FenceSet fences;
  collect_needed(request, head, home, fences);
  if (!fences.empty()) request.status = reuse_.wait_for(request, fences);
  if (!request.status) return nullptr;
  Tile* const tile = take(request.owner, head, home, Tile::Kind::used);
  tile->heap.store(request.owner.heap, std::memory_order_relaxed);
  return tile;
}

Tile* PageHeap::claim_row(Request& request, StitchedRow& row) {
  FenceSet fences;
  (void)row.visit_parts(request.size, [&](Range home) WEIR_REQUIRES(mutex_) {
    collect_needed(request, tables_.tiles.run_around(home), home, fences);
    return true;
  });
  if (!fences.empty()) request.status = reuse_.wait_for(request, fences);
  if (!request.status) return nullptr;
  (void)row.visit_parts(request.size, [&](Range home) WEIR_REQUIRES(mutex_) {
    Tile* const part = take(request.owner, tables_.tiles.run_around(home), home, Tile::Kind::part);
    part->row = &row;
    row.parts.push_back(part);
    return true;
  });
  tables_.rows.use(row, tables_.requests);
  Tile* const tile = tables_.tiles.take_record();
  tile->begin = row.run();
  tile->size = request.size;
  tile->kind = Tile::Kind::used;
  tile->row = &row;
  row.tile = tile;
  index_.enter(tile);
  tile->heap.store(request.owner.heap, std::memory_order_relaxed);
  return tile;
}

Range PageHeap::idle_around(const Tile& head, Range home) const {
  if (head.run < rules_.granularity) return {};
  const Range idle = tables_.pages.whole_in(head.run_range());
  if (idle.size == 0_B || home.end() <= idle.begin || idle.end() <= home.begin) return {};
  const Address begin = std::max(idle.begin, tables_.pages.at(home.begin).home);
  const Address end = std::min(idle.end(), tables_.pages.at(home.end() - kGrain).end());
  return {begin, end - begin};
}

void PageHeap::note_lease(const Owner& owner, Range pages, bool leased) {
  if (pages.size == 0_B) return;
  tables_.leased = leased ? tables_.leased + pages.size : tables_.leased - pages.size;
  Bytes counted;
  const bool recording = observer_.recording();
  tables_.pages.walk(pages, [&](Page& page, Bytes, Bytes) {
    page.lease = leased ? std::optional(owner.id) : std::nullopt;
    if (page.sleeps()) return;  // it counts as leased no more
    counted += page.size;
    if (!recording) return;
    observer_.record(owner.fold, Event{.kind = leased ? EventKind::lease : EventKind::unlease,
                                       .plain = rules_.plain,
                                       .page = page.id,
                                       .bytes = page.size});
  });
  observer_.fold().count_lease(counted, leased, rules_.plain);
}

Tile* PageHeap::take(const Owner& owner, Tile* head, Range home, Tile::Kind kind) {
  note_lease(owner, idle_around(*head, home), true);
  if (tables_.keeps_used) {
    tables_.keeps_any = true;
    tables_.pages.walk(home, [](Page& page, Bytes, Bytes) {
      if (page.kept == Page::Kept::no) page.kept = Page::Kept::for_now;
    });
  }
  return tables_.tiles.take(head, home, kind);
}

void PageHeap::release(const Owner& owner, Tile* tile) {
  const Range home = tile->range();
  const Tile* const head =
      tables_.tiles.release(tile, {.by = owner.timeline,
                                   .released = timelines_.release_point(owner.timeline).sequence,
                                   .freed_at = tables_.requests});
  note_lease(owner, idle_around(*head, home), false);
}

void PageHeap::free(const Owner& owner, Tile* tile) {
  tables_.single_timeline =
      tables_.single_timeline && !tile->uses && owner.timeline == tables_.first;
  StitchedRow* const row = tile->row;
  if (row == nullptr) {
    release(owner, tile);
  } else {
    FenceSet users = tile->uses.fences();
    for (Tile* const part : row->parts) {
      part->uses = tile->uses.copy();
      release(owner, part);
    }
    index_.leave(tile);
    tables_.tiles.give_back_record(tile);
    users.join(timelines_.release_point(owner.timeline));
    tables_.rows.free(*row, std::move(users), tables_.requests);
  }
  keep_to_limit_locked();
}

Tile* PageHeap::allocate_at(Request& request, Address at) {
  const QueuedLock lock(mutex_);
  const Range run{at, request.size};
  if (is_asleep()) return request.fail(asleep_error());
  for (const Range vacant : vacant_in(run)) {
    request.status = driver_.fill(request, vacant);
    if (!request.status) return nullptr;
  }
  const Plan plan = placer_.place_at(run);
  if (!plan) {
    return request.fail(
        {ErrorCode::invalid_argument, "the memory there is in use, or is not the heap's any more"});
  }
  if (!tables_.first) tables_.first = request.owner.timeline;
  tables_.single_timeline = tables_.single_timeline && *tables_.first == request.owner.timeline;
  count({1, run.size, 1});
  tables_.peak_used = std::max(tables_.peak_used, tables_.tiles.used() + run.size);
  reuse_.begin(request);
  // What lies there is not written by whoever has it again, and where uses need not be told it is
  // the program that orders them.
  request.waits = !rules_.trusts_context;
  return commit(request, plan);
}

std::vector<Range> PageHeap::vacant_in(Range run) const {
  std::vector<Range> vacant;
  if (rules_.plain) return vacant;  // the driver chooses where a segment lies
  for (const Tile* tile = tables_.tiles.at(run.begin); tile != nullptr && tile->begin < run.end();
       tile = tile->after) {
    if (tile->is_free()) continue;
    if (tile->kind != Tile::Kind::vacant) return {};  // then the rest won't do
    const Address begin{round_down(Bytes{run.begin.value}, rules_.granularity).count};
    const Address end{round_up(Bytes{run.end().value}, rules_.granularity).count};
    const Address from = std::max(begin, tile->begin);
    vacant.push_back({from, std::min(end, tile->end()) - from});
  }
  return vacant;
}

Error PageHeap::asleep_error() {
  return {ErrorCode::asleep, "the memory sleeps: wake it first, or ask for memory of another tag"};
}

}  // namespace weir
