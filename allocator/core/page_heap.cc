#include "core/page_heap.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "core/mutation.h"

namespace weir {
namespace {

// How often a request is planned anew because the device had less room than was thought.
constexpr int kAttempts = 4;

Error may_not_create() { return {ErrorCode::out_of_memory, "new memory may not be had yet"}; }

}  // namespace

PageHeap::PageHeap(Device& device, Timelines& timelines, Observer& observer, AddressMap& addresses,
                   Budget& budget, const HeapOptions& options, Source source)
    : device_(device),
      timelines_(timelines),
      observer_(observer),
      addresses_(addresses),
      budget_(budget),
      source_(std::move(source)),
      granularity_(std::max(device.granularity(), Arena::kGap)),
      reuse_(options.reuse),
      most_mappings_(options.most_mappings),
      is_untold_(timelines.trust() == Trust::context),
      table_(*this),
      limit_(options.limit) {}

void PageHeap::usable(HeapId heap, Range addresses) { arena(heap).usable().insert(addresses); }

void PageHeap::unusable(HeapId heap, Range addresses) { arena(heap).usable().erase(addresses); }

void PageHeap::count(Served served) {
  const MutexLock lock(mutex_);
  requests_ += served.runs;
  effort_.count_requests(served.requests, served.bytes);
}

Status PageHeap::claim(Owner& owner, Range run, bool waits) {
  if (waits && !is_quiet(owner, run)) {
    // What a stream has waited for says nothing of what is captured on it.
    if (is_untold_ && may_wait()) {
      if (Status free = timelines_.not_captured(owner.timeline); !free) return free;
    }
    if (Status status = wait_for(owner, run); !status) return status;
  }
  table_.use(run, owner.id, [&](const Page& page, Bytes, Bytes, bool leases) WEIR_REQUIRES(mutex_) {
    if (keeps_used_ && use_of(page).kept == PageUse::Kept::no) {
      use_of(page).kept = PageUse::Kept::for_now;
    }
    if (!leases) return;
    use_of(page).donor.reset();
    observer_.emit(owner.fold,
                   Event{.kind = EventKind::lease, .page = page.id, .bytes = page.size});
  });
  return {};
}

[[gnu::always_inline]] inline Status PageHeap::serve(Owner& owner, Bytes size, RequestKeys keys,
                                                     Address& at, bool& recalled) {
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
  return claim(owner, {at, size});
}

Result<Address> PageHeap::allocate(Owner& owner, Bytes size, RequestKeys keys, Served served,
                                   Create create) {
  const MutexLock lock(mutex_);
  if (owner.id.value >= arenas_.size()) {
    arenas_.resize(owner.id.value + 1);
    rows_.resize(arenas_.size());
  }
  if (!first_) first_ = owner.timeline;
  alone_ = alone_ && *first_ == owner.timeline;
  requests_ += served.runs;
  effort_.count_requests(served.requests + 1, served.bytes + size);
  device_room_.reset();
  short_of_mappings_ = false;
  create_ = create;

  // What is about to be in use counts: growing up to it is no waste.
  const Bytes peak_before = std::exchange(peak_used_, std::max(peak_used_, table_.used() + size));
  idle_only_ = is_untold_ && is_in_foreign_capture(owner);
  over_only_ = idle_only_;
  settled_only_ = idle_only_ || !makes_waits();
  careful_ = is_untold_ || settled_only_;
  Address at;
  bool recalled = false;
  Status done = serve(owner, size, keys, at, recalled);
  // A stream that is being captured can neither wait nor be waited for.
  if (!done && done.error().code() == ErrorCode::capture && !settled_only_) {
    settled_only_ = careful_ = true;
    over_only_ = is_untold_;
    create_ = create;
    done = serve(owner, size, keys, at, recalled);
  }
  if (!done) {
    peak_used_ = peak_before;
    return std::move(done).error();
  }
  if (!recalled) memory_.remember(keys, at);
  if (requests_ >= shed_next_) shed_aliases(owner);
  return at;
}

Status PageHeap::allocate_at(Owner& owner, Range run) {
  const MutexLock lock(mutex_);
  if (owner.id.value >= arenas_.size() || !table_.is_usable(run, owner.id)) {
    return Error(ErrorCode::invalid_argument,
                 "the memory there is in use, or is not the heap's any more");
  }
  if (!first_) first_ = owner.timeline;
  alone_ = alone_ && *first_ == owner.timeline;
  ++requests_;
  effort_.count_requests(1, run.size);
  peak_used_ = std::max(peak_used_, table_.used() + run.size);
  // What lies there is not written by whoever has it again, and where uses need not be told it is
  // the program that orders them.
  return claim(owner, run, /*waits=*/!is_untold_);
}

// Before the device is asked for new pages, the source is.
Result<Address> PageHeap::place_with_source(Owner& owner, Bytes size) {
  create_ = Create::not_yet;
  Result<Address> at = place(owner, size);
  create_ = Create::may;
  if (at || at.error().code() != ErrorCode::out_of_memory) return at;
  const std::vector<LoosePage> pages = source_(size);
  take_in_locked(pages);
  if (!pages.empty()) create_ = Create::rather_not;
  return place(owner, size);
}

Result<Address> PageHeap::place(Owner& owner, Bytes size) {
  effort_.serve(size, peak_used_);
  table_.tell(owner.id);
  const Placement placement = this->placement(owner);
  lent_pages_.clear();
  lent_ = 0_B;
  bool passed_over = false;
  std::optional<Placement::Found> found =
      placement.find(size, [&](Range range) WEIR_NO_THREAD_ANALYSIS {
        const Avoid avoided = avoid(owner, range);
        passed_over = passed_over || avoided == Avoid::yes;
        if (avoided == Avoid::lent && !enough_is_lent(size)) note_lent(range);
        return avoided != Avoid::no;
      });
  if (found && may_wait() && reuse_ != ReusePolicy::grow &&
      placement.worth_improving(size, found->activated)) {
    const Plan plan = placement.plan(size, skip_for(owner));
    if (plan.create == 0_B && plan.activated < found->activated &&
        has_room_for_mappings(plan.middle.size() + 2)) {
      if (Result<Address> at = build(owner, plan)) return at;
    }
  }
  if (found) return found->address;

  const Bytes at_frontier = free_at_frontier(owner);
  if (at_frontier >= size) return arena(owner.id).frontier() - size;  // too large to be weighed
  const Bytes missing = round_up(size - at_frontier, granularity_);
  const Growth growth = this->growth(placement, size, missing, passed_over);
  if (growth != Growth::yes && lent_ > 0_B) {
    const Bytes most_created = growth == Growth::for_lent ? missing - 1_B : 0_B;
    if (const std::optional<Address> at = place_beside_lent(owner, size, most_created)) return *at;
  }
  if (create_ != Create::rather_not && growth != Growth::no) {
    if (create_ == Create::not_yet) return may_not_create();
    const Bytes before = table_.total();
    Result<Address> at = grow(owner, size);
    if (growth == Growth::for_lent) note_grown_for_lent(table_.total() - before);
    if (at || at.error().code() != ErrorCode::out_of_memory) return at;
  }
  if (avoids_anything() && may_wait()) {
    if ((found = find_oldest(owner, placement, size))) return found->address;
  }
  return stitch(owner, size);
}

// Of the places that it remembers, the first that need not be waited for. Where there is none a
// repeating program waits for what it waited for the last time: else all that follows would have to
// be placed anew. But not for what was lent to other streams just now.
std::optional<Address> PageHeap::recall(Owner& owner, Bytes size, RequestKeys keys) {
  std::optional<Address> waits;
  const auto at = memory_.recall(keys, [&](Address place) WEIR_NO_THREAD_ANALYSIS {
    if (!table_.is_usable({place, size}, owner.id)) return false;
    if (is_careful() && is_barred(owner, {place, size})) return false;
    const Avoid avoided = avoid(owner, {place, size});
    if (avoided == Avoid::yes && !waits) waits = place;
    return avoided == Avoid::no;
  });
  if (reuse_ != ReusePolicy::balanced || !waits || !may_wait()) return at;
  if (at) memory_.prefer(keys, *at, *waits);
  return at ? at : waits;
}

Placement PageHeap::placement(const Owner& owner) const {
  return {table_, arena(owner.id), owner.id, effort_, peak_used_, room(), granularity_};
}

Bytes PageHeap::room() const {
  const Bytes most = std::min(budget_.room(), device_room_.value_or(Bytes{~std::uint64_t{0}}));
  if (limit_ == 0_B) return most;
  return std::min(most, limit_ - std::min(limit_, table_.total()));
}

// What new pages would continue: the free bytes where the current row ends, unless the policy had
// rather not use them.
Bytes PageHeap::free_at_frontier(Owner& owner) {
  const Arena& arena = this->arena(owner.id);
  const std::optional<Range> run = arena.usable().ending_at(arena.frontier());
  if (!run) return 0_B;
  const Avoid avoided = avoid(owner, *run);
  if (avoided == Avoid::lent) note_lent(*run);
  return avoided == Avoid::no ? run->size : 0_B;
}

// New pages at the end of the arena, behind what is free there.
Result<Address> PageHeap::grow(Owner& owner, Bytes size) {
  const std::size_t pages = placement(owner).page_sizes(size).size();
  if (Status status = make_room_for_mappings(pages); !status) return std::move(status).error();
  Arena& arena = this->arena(owner.id);
  const Bytes have = std::min(size, free_at_frontier(owner));
  Bytes missing = round_up(size - have, granularity_);
  Address at = arena.frontier() - have;
  if (!arena.has_room(missing)) {
    missing = round_up(size, granularity_);
    if (missing > room()) return Error(ErrorCode::out_of_memory, "the limit leaves no room");
    if (Status status = begin_row(owner, missing); !status) return std::move(status).error();
    at = arena.frontier();
  }
  if (Status status = create_and_append(owner, placement(owner).page_sizes(missing)); !status) {
    return std::move(status).error();
  }
  return at;
}

Placement::Skip PageHeap::skip_for(const Owner& owner) {
  if (!may_wait()) {
    return [&](PageId page, Bytes offset, Bytes bytes)
               WEIR_REQUIRES(mutex_) { return !is_settled(owner, page, offset, bytes); };
  }
  if (!is_untold_) return {};
  return [&](PageId page, Bytes, Bytes)
             WEIR_REQUIRES(mutex_) { return is_barred(owner, table_.page(page)); };
}

Result<Address> PageHeap::stitch(Owner& owner, Bytes size) {
  // When the device turns out to be full, what it has left is known, and the next plan keeps to it.
  const Placement::Skip skip = skip_for(owner);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Plan plan = placement(owner).plan(size, skip);
    if (plan.create > room()) break;
    if (plan.create > 0_B && create_ == Create::not_yet) return may_not_create();
    Result<Address> at = build(owner, plan);
    if (at || at.error().code() != ErrorCode::out_of_memory || plan.create == 0_B) return at;
  }
  return Error(ErrorCode::out_of_memory, "no free memory fits");
}

// May the plan go on where the current row ends, which then is in its tail's page?
bool PageHeap::extends_row(Owner& owner, const Plan& plan, Bytes more) const {
  const Arena& arena = this->arena(owner.id);
  if (!plan.tail || !arena.has_room(more)) return false;
  const Page& tail = table_.page(*plan.tail);
  const bool at_frontier =
      std::any_of(tail.mappings.begin(), tail.mappings.end(), [&](const Mapping& mapping) {
        return mapping.heap == owner.id && mapping.at + tail.size == arena.frontier() &&
               !mapping.retired();
      });
  if (!at_frontier) return false;
  const RowId row = *rows_[owner.id.value];
  const auto in_row = [&](PageId page) WEIR_REQUIRES(mutex_) { return table_.row_has(row, page); };
  return std::none_of(plan.middle.begin(), plan.middle.end(), in_row) &&
         !(plan.head && in_row(*plan.head));
}

Result<Address> PageHeap::build(Owner& owner, const Plan& plan) {
  const std::size_t pages =
      plan.middle.size() + placement(owner).page_sizes(plan.create).size() + 2;
  if (Status status = make_room_for_mappings(pages); !status) return std::move(status).error();
  Bytes more = plan.create;
  for (const PageId page : plan.middle) more += table_.page(page).size;
  if (plan.head) more += table_.page(*plan.head).size;

  Arena& arena = this->arena(owner.id);
  if (!extends_row(owner, plan, more)) {
    if (plan.tail) more += table_.page(*plan.tail).size;
    if (Status status = begin_row(owner, more); !status) return std::move(status).error();
    if (plan.tail) {
      if (Status status = append(owner, *plan.tail); !status) return std::move(status).error();
    }
  }
  const Address at = arena.frontier() - plan.tail_bytes;
  for (const PageId page : plan.middle) {
    if (Status status = append(owner, page); !status) return std::move(status).error();
  }
  if (plan.create > 0_B) {
    const std::vector<Bytes> sizes = placement(owner).page_sizes(plan.create);
    if (Status status = create_and_append(owner, sizes); !status) {
      return std::move(status).error();
    }
  }
  if (plan.head) {
    if (Status status = append(owner, *plan.head); !status) return std::move(status).error();
  }
  return at;
}

bool PageHeap::is_owners(const Owner& owner, const Page& page) const {
  if (page.lease) return true;  // an other heap's pages are not usable
  const std::optional<PageUse::Donor>& donor = use_of(page).donor;
  return !donor || donor->holder == owner.timeline;
}

// Is there nobody to wait for?
bool PageHeap::is_quiet(const Owner& owner, Range run) const {
  if (alone_) return true;
  bool quiet = true;
  table_.walk(run, [&](const Page& page, Bytes, Bytes) WEIR_NO_THREAD_ANALYSIS {
    quiet = quiet && use_of(page).fenced.empty() && is_owners(owner, page);
  });
  return quiet;
}

FenceSet PageHeap::fences_on(const Owner& owner, Range run) const {
  FenceSet fences;
  table_.walk(run, [&](const Page& page, Bytes offset, Bytes size) WEIR_REQUIRES(mutex_) {
    collect_fences(owner, page, offset, size, fences);
  });
  return fences;
}

void PageHeap::collect_fences(const Owner& owner, const Page& page, Bytes offset, Bytes size,
                              FenceSet& fences) const {
  const PageUse& use = use_of(page);
  if (is_owners(owner, page)) {
    if (mutation::left_out(mutation::Site::wait_for_bytes_of_same_heap)) return;
    use.fenced.collect(offset.count, (offset + size).count, fences);
    return;
  }
  // A page that changes heap is waited for whole: from then on, to be past the new holder is to be
  // past everybody before.
  if (!mutation::left_out(mutation::Site::wait_for_donor))
    fences.join(timelines_.release_point(use.donor->holder, use.donor->released));
  if (!mutation::left_out(mutation::Site::wait_for_fences_of_donated)) {
    use.fenced.collect(0, page.size.count, fences);
  }
}

Status PageHeap::wait_for(Owner& owner, Range run) {
  const FenceSet fences = fences_on(owner, run);
  for (const Fence fence : fences) {
    FenceSet one;
    one.join(fence);
    Result<std::uint32_t> waits = timelines_.wait(owner.timeline, one);
    if (!waits) return std::move(waits).error();
    if (*waits == 0) continue;
    owner.waited.join(fence);
    observer_.emit(owner.fold, Event{.kind = EventKind::stream_wait,
                                     .stream = timelines_.stream(owner.timeline).id,
                                     .other = timelines_.stream(fence.timeline).id,
                                     .sequence = fence.sequence});
  }
  table_.walk(run, [&](const Page& page, Bytes, Bytes) WEIR_REQUIRES(mutex_) {
    FencedRanges& fenced = use_of(page).fenced;
    if (is_owners(owner, page)) {
      fenced.forget_if([&](Fence fence) { return timelines_.satisfied(fence, owner.timeline); });
    } else {
      fenced.clear();
    }
  });
  return {};
}

void PageHeap::free(Owner& owner, Range run, const FenceSet& fences) {
  const MutexLock lock(mutex_);
  alone_ = alone_ && fences.empty() && owner.timeline == first_;
  table_.free(run, owner.id,
              [&](const Page& page, Bytes offset, Bytes size, bool idle) WEIR_REQUIRES(mutex_) {
                PageUse& use = use_of(page);
                use.freed_at = requests_;
                if (!fences.empty()) use.fenced.add(offset.count, (offset + size).count, fences);
                if (!idle) return;
                use.donor = {owner.timeline, timelines_.release_point(owner.timeline).sequence};
                observer_.emit(
                    owner.fold,
                    Event{.kind = EventKind::unlease, .page = page.id, .bytes = page.size});
              });
  keep_to_limit_locked();
}

}  // namespace weir
