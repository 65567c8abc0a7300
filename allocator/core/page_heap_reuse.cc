// The reuse policy: which free memory a request had rather not have, and how far new memory is
// preferred to it.
#include <algorithm>

#include "core/page_heap.h"

namespace weir {
namespace {

// A page whose bytes were freed this many requests ago or fewer may still be in use: the balanced
// policy rather grows, as far as growing costs nothing.
constexpr std::uint64_t kYoung = 64;

// ... or as it costs little: one in so many bytes of the most ever in use. Streams that
// communicate, or copy, have a few buffers each that they use again and again; with so much more
// held other streams can leave them theirs. But only with nearly all of that in use, all but one in
// so many bytes: before, there is other memory, or will be soon.
constexpr std::uint64_t kYoungShare = 128, kNearlyAllShare = 10;

// Memory that was lent to other streams is in use indeed, while they use it: rather than wait for
// it a heap may grow by one in so many bytes of what the device's heaps hold.
constexpr std::uint64_t kLentShare = 10;

}  // namespace

// Beside the most in use, more may be held where other streams may still use memory that is free.
PageHeap::Growth PageHeap::growth(const Placement& placement, Bytes size, Bytes missing,
                                  bool passed_over) const {
  if (reuse_ == ReusePolicy::grow) return missing <= room() ? Growth::yes : Growth::no;
  const bool full = table_.used() + size >= peak_used_ - peak_used_ / kNearlyAllShare;
  const Bytes for_young = passed_over && full ? peak_used_ / kYoungShare : 0_B;
  if (placement.may_grow(missing, for_young)) return Growth::yes;
  if (lent_ == 0_B || enough_is_lent(size)) return Growth::no;
  const Bytes lent = std::max(peak_used_, budget_.held()) / kLentShare;
  return placement.may_grow(missing, lent) ? Growth::for_lent : Growth::no;
}

// In the place of what is lent: memory that nobody uses, and new pages only for what that leaves.
std::optional<Address> PageHeap::place_beside_lent(Owner& owner, Bytes size, Bytes most_created) {
  const Plan plan = placement(owner).plan(
      size, [&](PageId page, Bytes offset, Bytes bytes)
                WEIR_REQUIRES(mutex_) { return is_used(owner, page, offset, bytes); });
  if (plan.create > most_created) return std::nullopt;
  if (plan.create > 0_B && create_ != Create::may) return std::nullopt;
  if (!has_room_for_mappings(plan.middle.size() + 2)) return std::nullopt;
  const Result<Address> at = build(owner, plan);
  if (!at) return std::nullopt;
  note_grown_for_lent(plan.create);
  return *at;
}

// Would the owner have to wait for this free part of a page?
bool PageHeap::is_used(const Owner& owner, PageId page, Bytes offset, Bytes size) const {
  if (is_untold_ && is_barred(owner, table_.page(page))) return true;
  FenceSet fences;
  collect_fences(owner, table_.page(page), offset, size, fences);
  return !timelines_.satisfied(fences, owner.timeline);
}

void PageHeap::note_grown_for_lent(Bytes bytes) {
  grown_for_lent_ += bytes;
  judge_effort();
}

// What is held in the place of memory that was lent says nothing of what moving pages is worth.
void PageHeap::judge_effort() {
  const Bytes beyond = table_.total() - std::min(table_.total(), peak_used_);
  grown_for_lent_ = std::min(grown_for_lent_, beyond);
  effort_.judge(table_.total() - grown_for_lent_, peak_used_);
}

// Of places that must be waited for: one whose last use is the longest past, and so most likely
// over.
std::optional<Placement::Found> PageHeap::find_oldest(const Owner& owner,
                                                      const Placement& placement, Bytes size) {
  std::uint64_t oldest = ~std::uint64_t{0};
  (void)placement.find(size, [&](Range range) WEIR_NO_THREAD_ANALYSIS {
    if (!is_barred(owner, range)) oldest = std::min(oldest, freed_at(range));
    return true;
  });
  return placement.find(size, [&](Range range) WEIR_NO_THREAD_ANALYSIS {
    return freed_at(range) > oldest || is_barred(owner, range);
  });
}

// The latest time, in requests, at which bytes of these pages were freed.
std::uint64_t PageHeap::freed_at(Range range) const {
  std::uint64_t latest = 0;
  table_.walk(range, [&](const Page& page, Bytes, Bytes) WEIR_REQUIRES(mutex_) {
    latest = std::max(latest, use_of(page).freed_at);
  });
  return latest;
}

bool PageHeap::is_barred(const Owner& owner, const Page& page) const {
  const PageUse& use = use_of(page);
  if (use.kept == PageUse::Kept::no || !use.donor) return false;
  const auto stream = [&](TimelineId timeline) {
    return timelines_.stream(timeline).outside_capture().id;
  };
  return stream(use.donor->holder) != stream(owner.timeline);
}

bool PageHeap::is_barred(const Owner& owner, Range range) const {
  if (!is_untold_) return false;
  bool barred = false;
  table_.walk(range, [&](const Page& page, Bytes, Bytes)
                         WEIR_REQUIRES(mutex_) { barred = barred || is_barred(owner, page); });
  return barred;
}

bool PageHeap::is_in_foreign_capture(const Owner& owner) {
  return !alone_ && !timelines_.not_captured(owner.timeline);
}

bool PageHeap::is_over(const Page& page) {
  if (page.lease) return false;
  const Result<bool> complete = timelines_.complete(held_by(page.id));
  return complete && *complete;
}

bool PageHeap::is_settled(const Owner& owner, Range range) {
  if (idle_only_) {
    bool over = true;
    table_.walk(range, [&](const Page& page, Bytes, Bytes)
                           WEIR_REQUIRES(mutex_) { over = over && is_over(page); });
    return over;
  }
  if (is_quiet(owner, range)) return true;
  const FenceSet fences = fences_on(owner, range);
  if (!over_only_ && timelines_.satisfied(fences, owner.timeline)) return true;
  const Result<bool> complete = timelines_.complete(fences);
  return complete && *complete;
}

bool PageHeap::is_settled(const Owner& owner, PageId page, Bytes offset, Bytes size) {
  if (is_untold_ && is_barred(owner, table_.page(page))) return false;
  if (idle_only_) return is_over(table_.page(page));
  FenceSet fences;
  collect_fences(owner, table_.page(page), offset, size, fences);
  if (!over_only_ && timelines_.satisfied(fences, owner.timeline)) return true;
  const Result<bool> complete = timelines_.complete(fences);
  return complete && *complete;
}

PageHeap::Avoid PageHeap::avoid(const Owner& owner, Range range) {
  if (is_careful()) [[unlikely]] {
    if (is_barred(owner, range)) return Avoid::yes;
    if (!may_wait()) return is_settled(owner, range) ? Avoid::no : Avoid::yes;
  }
  if (reuse_ == ReusePolicy::wait || is_quiet(owner, range)) return Avoid::no;
  bool young = reuse_ == ReusePolicy::grow;
  table_.walk(range, [&](const Page& page, Bytes, Bytes) WEIR_REQUIRES(mutex_) {
    young = young || requests_ - use_of(page).freed_at <= kYoung ||
            (is_untold_ && !is_owners(owner, page));
  });
  if (!young) return Avoid::no;
  const FenceSet fences = fences_on(owner, range);
  if (timelines_.satisfied(fences, owner.timeline)) return Avoid::no;
  if (reuse_ == ReusePolicy::balanced) return is_lent(owner, range) ? Avoid::lent : Avoid::yes;
  const Result<bool> complete = timelines_.complete(fences);
  return complete && *complete ? Avoid::no : Avoid::yes;
}

// A page counts once: places overlap, and aliases are of the same bytes.
void PageHeap::note_lent(Range range) {
  table_.walk(range, [&](const Page& page, Bytes, Bytes size) WEIR_REQUIRES(mutex_) {
    if (std::find(lent_pages_.begin(), lent_pages_.end(), page.id) != lent_pages_.end()) return;
    lent_pages_.push_back(page.id);
    lent_ += size;
  });
}

bool PageHeap::is_lent(const Owner& owner, Range range) const {
  bool own = true;
  FenceSet fences;
  table_.walk(range, [&](const Page& page, Bytes offset, Bytes size) WEIR_REQUIRES(mutex_) {
    own = own && is_owners(owner, page);
    use_of(page).fenced.collect(offset.count, (offset + size).count, fences);
  });
  return own && !timelines_.satisfied(fences, owner.timeline);
}

}  // namespace weir
