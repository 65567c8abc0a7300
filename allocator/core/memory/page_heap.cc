// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_heap.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

// How often a request is placed anew because a capture is in the way of a wait.
constexpr int kAttempts = 3;

}  // namespace

PageHeap::PageHeap(Device& device, Timelines& timelines, RemoteWork& remote_work,
                   Observer& observer, AddressMap& addresses, Budget& budget,
                   const HeapOptions& options, Source source)
    : device_(device),
      timelines_(timelines),
      remote_work_(remote_work),
      observer_(observer),
      addresses_(addresses),
      budget_(budget),
      source_(std::move(source)),
      granularity_(std::max(device.granularity(), GranuleMap::kGranule)),
      reuse_(options.reuse),
      most_mappings_(options.most_mappings),
      trusts_context_(timelines.trust() == Trust::context),
      plain_(options.memory == MemoryKind::plain),
      limit_(options.limit) {}

void PageHeap::count(Served served) {
  requests_ += served.runs;
  remap_budget_.earn(served.requests, served.bytes);
}

Status PageHeap::serve(Owner& owner, Bytes size, RequestKeys keys, Address& at, bool& recalled) {
  const std::optional<Address> known = recall(owner, size, keys);
  recalled = known.has_value();
  if (known) {
    at = *known;
  } else {
    const bool has_source = budget_.shared() && source_ && create_ == Create::may;
    Result<Address> placed = has_source ? place_with_source(owner, size) : place(owner, size);
    if (!placed) return std::move(placed).error();
    at = *placed;
  }
  return claim(owner, place_of({at, size}));
}

// A stream that is being captured can neither wait nor be waited for. (Joining neighbours' notes
// can add waits to memory that needed none.)
Status PageHeap::serve_beside_captures(Owner& owner, Bytes size, RequestKeys keys, Create create,
                                       Address& at, bool& recalled) {
  create_ = create;
  Status done = serve(owner, size, keys, at, recalled);
  for (int attempt = 0; attempt < kAttempts && !done && done.error().code() == ErrorCode::capture;
       ++attempt) {
    if (!settled_only_) over_only_ = trusts_context_;
    settled_only_ = checks_each_chunk_ = true;
    create_ = create;
    done = serve(owner, size, keys, at, recalled);
  }
  return done;
}

Result<Address> PageHeap::allocate(Owner& owner, Bytes size, RequestKeys keys, Served served,
                                   Create create) {
  if (is_asleep()) [[unlikely]]
    return asleep_error();
  if (!first_) first_ = owner.timeline;
  single_timeline_ = single_timeline_ && *first_ == owner.timeline;
  requests_ += served.runs;
  remap_budget_.earn(served.requests + 1, served.bytes + size);
  past_count_ = 0;
  device_room_.reset();
  short_of_mappings_ = false;

  // What is about to be in use counts: growing up to it is no waste.
  const Bytes peak_before = std::exchange(peak_used_, std::max(peak_used_, pages_.used() + size));
  idle_only_ = trusts_context_ && is_in_foreign_capture(owner);
  over_only_ = idle_only_;
  settled_only_ = idle_only_ || !makes_waits();
  checks_each_chunk_ = trusts_context_ || settled_only_;
  // (A wait in a capture is an edge of the graph, and no event of the context.)
  const bool may_avoid =
      trusts_context_ && remote_work_.any() && !timelines_.stream(owner.timeline).is_in_capture();
  remote_ = may_avoid ? Remote::not_asked : Remote::takes;
  Address at;
  bool recalled = false;
  Status done = serve_beside_captures(owner, size, keys, create, at, recalled);
  if (!done && done.error().code() == ErrorCode::out_of_memory && remote_ == Remote::avoids &&
      may_wait() && create != Create::not_yet) {
    remote_ = Remote::takes;
    short_of_mappings_ = false;
    done = serve_beside_captures(owner, size, keys, create, at, recalled);
  }
  if (!done) {
    peak_used_ = peak_before;
    return std::move(done).error();
  }
  peak_total_ = std::max(peak_total_, total());
  if (!recalled) placements_.remember(keys, at);
  if (requests_ >= retire_next_) retire_rows();
  return at;
}

Status PageHeap::allocate_at(Owner& owner, Range run) {
  const QueuedLock lock(mutex_);
  if (is_asleep()) return asleep_error();
  for (const Range vacant : vacant_in(run)) {
    if (Status filled = fill(owner, vacant); !filled) return filled;
  }
  const Place place = place_of(run);
  if (!is_free(place)) {
    return Error(ErrorCode::invalid_argument,
                 "the memory there is in use, or is not the heap's any more");
  }
  if (!first_) first_ = owner.timeline;
  single_timeline_ = single_timeline_ && *first_ == owner.timeline;
  ++requests_;
  past_count_ = 0;
  remap_budget_.earn(1, run.size);
  peak_used_ = std::max(peak_used_, pages_.used() + run.size);
  // What lies there is not written by whoever has it again, and where uses need not be told it is
  // the program that orders them.
  return claim(owner, place, /*waits=*/!trusts_context_);
}

std::vector<Range> PageHeap::vacant_in(Range run) const {
  std::vector<Range> vacant;
  if (plain_) return vacant;  // the driver chooses where a segment lies
  for (const Chunk* chunk = chunks_.at(run.begin); chunk != nullptr && chunk->begin < run.end();
       chunk = chunk->after) {
    if (chunk->state == Chunk::State::used) return {};  // then the rest won't do
    if (chunk->state != Chunk::State::vacant) continue;
    const Address begin{round_down(Bytes{run.begin.value}, granularity_).count};
    const Address end{round_up(Bytes{run.end().value}, granularity_).count};
    const Address from = std::max(begin, chunk->begin);
    vacant.push_back({from, std::min(end, chunk->end()) - from});
  }
  return vacant;
}

// Before the device is asked for new pages, the source is.
Result<Address> PageHeap::place_with_source(Owner& owner, Bytes size) {
  create_ = Create::not_yet;
  Result<Address> at = place(owner, size);
  create_ = Create::may;
  if (at || at.error().code() != ErrorCode::out_of_memory) return at;
  const Bytes most = limit_ == 0_B ? kUnlimited : limit_ - std::min(limit_, total());
  const std::vector<UnmappedPage> pages = source_(size, most);
  take_in_locked(pages);
  if (!pages.empty()) create_ = Create::rather_not;
  return place(owner, size);
}

PageHeap::Place PageHeap::place_of(Range run) const {
  if (Chunk* const chunk = chunks_.at(run.begin)) return {run, chunk, nullptr};
  return {run, nullptr, rows_.at(run.begin)};
}

bool PageHeap::is_free(const Place& place) const {
  if (place.row != nullptr &&
      (place.row->state != StitchedRow::State::idle || !place.row->fits(place.run.size))) {
    return false;
  }
  return visit_parts(place, [](const Chunk& chunk, Range home) { return chunk.has_free(home); });
}

// Of the places that it remembers, the first that need not be waited for. Where there is none a
// repeating program waits for what it waited for the last time: else all that follows would have to
// be placed anew. But not for what other streams still use.
std::optional<Address> PageHeap::recall(Owner& owner, Bytes size, RequestKeys keys) {
  std::optional<Address> waits;
  const auto at = placements_.recall(keys, [&](Address begin) WEIR_NO_THREAD_ANALYSIS {
    const Place place = place_of({begin, size});
    if (!is_free(place)) return false;
    if (checks_each_chunk_ &&
        !visit_parts(place, [&](const Chunk& chunk, Range home) WEIR_NO_THREAD_ANALYSIS {
          return !is_barred(owner, chunk, home) && !waits_for_remote_work(owner, chunk, home);
        })) {
      return false;
    }
    const Wait wait = wait_needed(owner, place);
    if (wait == Wait::recent && !waits) waits = begin;
    return wait == Wait::none || wait == Wait::likely_over;
  });
  if (reuse_ != ReusePolicy::balanced || !waits || !may_wait()) return at;
  if (at) placements_.prefer(keys, *at, *waits);
  return at ? at : waits;
}

void PageHeap::free(Owner& owner, Range run, const FenceSet& fences) {
  single_timeline_ = single_timeline_ && fences.empty() && owner.timeline == first_;
  const LastUse use{.by = owner.timeline,
                    .released = timelines_.release_point(owner.timeline),
                    .fences = fences,
                    .freed_at = requests_};
  addresses_.remove_run(run);
  const Place place = place_of(run);
  (void)visit_parts(place, [&](Chunk& chunk, Range home) WEIR_REQUIRES(mutex_) {
    chunks_.release(&chunk, use);
    pages_.free(home, [&](const Page& page, bool idle) WEIR_REQUIRES(mutex_) {
      // Without memory it counts as leased no more.
      if (!idle || page.handle == PhysicalHandle{}) return;
      observer_.emit(
          owner.fold,
          Event{.kind = EventKind::unlease, .plain = plain_, .page = page.id, .bytes = page.size});
    });
    return true;
  });
  if (place.row != nullptr) {
    FenceSet users = fences;
    users.join(use.released);
    rows_.free(*place.row, std::move(users), requests_);
  }
  keep_to_limit_locked();
}

}  // namespace weir
