// SPDX-License-Identifier: Apache-2.0
// Where a request goes that no place is remembered for: the policy, in the order of place().
// docs/decisions/022-home-row.md gives the reason for each constant.
#include <algorithm>
#include <limits>

#include "core/memory/page_heap.h"

namespace weir {
namespace {

// How many chunks that fit are weighed; and looked at, where some are avoided.
constexpr int kWeighed = 4, kLookedAt = 6;
// What is left over of a chunk counts so much a byte, up to this share of the request: much left
// over is as good as any.
constexpr double kLeftoverWeight = 0.3, kLeftoverShare = 0.3;
// Low addresses first, so that a repeating program settles.
constexpr double kAddressWeight = 0.3;
// In plain memory nothing joins pieces: the best fit, and of equals low addresses.
constexpr double kSegmentAddressWeight = 0.01;
// Bytes that the stream would have to wait for, though their last use is most likely over.
constexpr double kWaitWeight = 0.3;

// Bytes that were freed this many requests ago or fewer may still be in use: the balanced policy
// rather grows, as far as growing costs little.
constexpr std::uint64_t kRecent = 64;

// More may be held than was ever in use by this share,
constexpr double kSlack = 0.003;
// or by so much where recently freed memory is passed over. Streams that communicate, or copy, have
// a few buffers each that they use again and again; with so much more held other streams can leave
// them theirs. Only while at least nine tenths of the peak is in use; below that, other memory is
// free or soon will be.
constexpr std::uint64_t kRecentShare = 128, kNearlyAllShare = 10;
// Memory that other streams still use is in use indeed: rather than wait for it a heap may grow by
// one in so many bytes of what the device's heaps hold.
constexpr std::uint64_t kElsewhereShare = 10;
// Where mappings are not affordable any more, by this share; but not for requests of more than one
// in so many bytes of the most ever in use, which find no room in pieces, however much is free.
constexpr double kSlackWithoutRemaps = 0.085;
constexpr std::uint64_t kLargeShare = 32;

// Stitched rows that are looked at, and how much larger than the request they may be.
constexpr int kRowsLookedAt = 16;
constexpr std::uint64_t kRowOversize = 4;  // one in so many bytes

// A new page is at most this share of the most ever in use, clamped to these; smaller where less
// is needed. A capture has smaller ones: what its graph keeps of a page keeps the rest of it from
// stitched rows, which take whole pages and parts of two.
constexpr double kPageShare = 0.007, kCapturedPageShare = 0.003;
constexpr Bytes kPageLeast = 4_MiB, kCapturedPageLeast = 2_MiB, kPageMost = 80_MiB;

double as_double(Bytes bytes) {
  return static_cast<double>(static_cast<std::int64_t>(bytes.count));
}

Error may_not_create() { return {ErrorCode::out_of_memory, "new memory may not be had yet"}; }

}  // namespace

PageHeap::Wait PageHeap::wait_needed(const Owner& owner, const Chunk& chunk, Range home) {
  if (checks_each_chunk_) [[unlikely]] {
    if (is_barred(owner, chunk, home)) return Wait::recent;
    if (!may_wait()) return is_settled(owner, chunk, home) ? Wait::none : Wait::recent;
    if (waits_for_remote_work(owner, chunk, home)) return Wait::recent;
  }
  if (single_timeline_ || reuse_ == ReusePolicy::wait) return Wait::none;
  bool recent = reuse_ == ReusePolicy::grow, own = true;
  bool past = true;
  (void)chunk.freed.visit(home, [&](const FreedRange& freed) WEIR_REQUIRES(mutex_) {
    const bool is_own = freed.use.by == owner.timeline;
    if (is_own && freed.use.fences.empty()) return true;
    past = past && is_past(owner, freed);
    own = own && is_own;
    recent = recent || requests_ - freed.use.freed_at <= kRecent || (trusts_context_ && !is_own);
    return true;
  });
  if (past) return Wait::none;
  if (!recent) return Wait::likely_over;
  if (reuse_ == ReusePolicy::balanced) return own ? Wait::in_use_elsewhere : Wait::recent;
  FenceSet fences;
  collect(owner, chunk, home, fences);
  return timelines_.is_seen_complete(fences) ? Wait::none : Wait::recent;
}

PageHeap::Wait PageHeap::wait_needed(const Owner& owner, const Place& place) {
  Wait all = Wait::none;
  (void)visit_parts(place, [&](const Chunk& chunk, Range home) WEIR_REQUIRES(mutex_) {
    const Wait one = wait_needed(owner, chunk, home);
    if (all == Wait::none || all == Wait::likely_over || one == Wait::recent) all = one;
    return all != Wait::recent;
  });
  return all;
}

PageHeap::Ends PageHeap::activated(const Chunk& chunk, Bytes size) const {
  if (chunk.size < granularity_) return {};  // no page is as small
  const Page& first = pages_.at(chunk.begin);
  const Page& last = pages_.at(chunk.end() - kGrain);
  const Address idle = first.home == chunk.begin ? chunk.begin : first.range().end();
  const Address idle_end = last.range().end() == chunk.end() ? chunk.end() : last.home;
  if (idle_end <= idle) return {};
  const Address low_end = chunk.begin + size, high = chunk.end() - size;
  Ends ends;
  if (low_end > idle) {
    ends.low = std::min(pages_.at(low_end - kGrain).range().end(), idle_end) - idle;
  }
  if (high < idle_end) ends.high = idle_end - std::max(pages_.at(high).home, idle);
  return ends;
}

// Bytes of the owner's own in a free chunk that other streams still use.
Bytes PageHeap::bytes_in_use_elsewhere(const Owner& owner, const Chunk& chunk) {
  Bytes bytes;
  (void)chunk.freed.visit(chunk.range(), [&](const FreedRange& freed) WEIR_REQUIRES(mutex_) {
    const bool own = freed.use.by == owner.timeline;
    if (own && !is_past(owner, freed.use.fences)) {
      bytes += freed.range().size;
    }
    return true;
  });
  return bytes;
}

std::optional<Address> PageHeap::find(const Owner& owner, Bytes size) {
  std::optional<Address> best;
  double least = std::numeric_limits<double>::infinity();
  int weighed = 0, looked_at = 0;
  const double mapped = std::max(as_double(pages_.total()), 1.0);
  const auto weigh = [&](const Chunk& chunk, Address at, Bytes activated,
                         double leftover) WEIR_REQUIRES(mutex_) {
    const Bytes position = at < row_begin_ ? row_begin_ - at : at - row_begin_;
    const double distance = std::min(as_double(position) / mapped, 1.0);
    double weight = leftover;
    if (plain_) {
      weight += kSegmentAddressWeight * as_double(size) * distance;
    } else {
      weight += as_double(activated) + kAddressWeight * as_double(size) * distance;
    }
    const Wait wait = weight < least ? wait_needed(owner, chunk, {at, size}) : Wait::none;
    if (wait != Wait::none) weight += kWaitWeight * as_double(size);
    if (weight >= least) {
      ++weighed;
      return;
    }
    switch (wait) {
      case Wait::none:
      case Wait::likely_over:
        ++weighed;
        least = weight;
        best = at;
        break;
      case Wait::recent:
        passed_over_ = true;
        break;
      case Wait::in_use_elsewhere:
        in_use_elsewhere_ += bytes_in_use_elsewhere(owner, chunk);
        break;
    }
  };
  chunks_.free().visit_fitting(size, [&](const Chunk& chunk) WEIR_REQUIRES(mutex_) {
    const double over = as_double(chunk.size - size);
    const double leftover =
        plain_ ? over : kLeftoverWeight * std::min(over, kLeftoverShare * as_double(size));
    if (leftover >= least) {
      ++weighed;
      return weighed < kWeighed && ++looked_at < kLookedAt;
    }
    const Ends ends = activated(chunk, size);
    const Address high = chunk.end() - size;
    if (chunk.size == size) {
      weigh(chunk, chunk.begin, ends.low, leftover);
    } else if (ends.low <= ends.high) {
      weigh(chunk, chunk.begin, ends.low, leftover);
    } else {
      weigh(chunk, high, ends.high, leftover);
    }
    return weighed < kWeighed && ++looked_at < kLookedAt;
  });
  return best;
}

std::optional<Address> PageHeap::find_oldest(const Owner& owner, Bytes size) {
  std::optional<Address> best;
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  int left = kLookedAt;
  chunks_.free().visit_fitting(size, [&](const Chunk& chunk) WEIR_REQUIRES(mutex_) {
    for (const Address at : {chunk.begin, chunk.end() - size}) {
      const Range home{at, size};
      const std::uint64_t freed = freed_at(chunk, home);
      if (freed >= oldest || is_refused(owner, chunk, home)) continue;
      oldest = freed;
      best = at;
    }
    return --left > 0;
  });
  return best;
}

std::optional<Address> PageHeap::find_row(const Owner& owner, Bytes size) {
  std::optional<Address> found;
  int left = kRowsLookedAt;
  const Bytes most = size + size / kRowOversize;
  rows_.visit_fitting(size, most, [&](const StitchedRow& row) WEIR_REQUIRES(mutex_) {
    const bool free = row.visit_parts(size, [&](Range home) WEIR_REQUIRES(mutex_) {
      const Chunk& chunk = *chunks_.at(home.begin);
      return chunk.has_free(home) && !is_refused(owner, chunk, home);
    });
    if (free) found = row.run();
    return !free && --left > 0;
  });
  return found;
}

Bytes PageHeap::room() const {
  const Bytes most = std::min(budget_.room(), device_room_.value_or(Bytes{~std::uint64_t{0}}));
  if (limit_ == 0_B) return most;
  return std::min(most, limit_ - std::min(limit_, total()));
}

// Would holding `more` be within a hair of the most that was ever in use, and the limits?
bool PageHeap::may_hold(Bytes more, Bytes beside) const {
  if (more > room()) return false;
  return as_double(total() + more) <= (1 + kSlack) * as_double(peak_used_) + as_double(beside);
}

// May new pages be had rather than a place that is avoided, or stitched?
PageHeap::Growth PageHeap::growth(Bytes size, Bytes missing) const {
  if (reuse_ == ReusePolicy::grow) return missing <= room() ? Growth::yes : Growth::no;
  const bool full = pages_.used() + size >= peak_used_ - peak_used_ / kNearlyAllShare;
  Bytes beside;
  if (passed_over_ && full) beside = peak_used_ / kRecentShare;
  if (may_hold(missing, beside)) return Growth::yes;
  // (A program that never repeats comes to this again and again.)
  const bool affords = plain_ || affords_row(size);
  if (in_use_elsewhere_ == 0_B || enough_in_use_elsewhere(size) || !affords) {
    return Growth::no;
  }
  return may_hold(missing, std::max(peak_used_, budget_.held()) / kElsewhereShare)
             ? Growth::for_in_use_elsewhere
             : Growth::no;
}

// Where the least is missing, and of equals the lowest address. What the owner had rather not use
// is not counted.
std::optional<PageHeap::Frontier> PageHeap::frontier(const Owner& owner, Bytes size) {
  std::optional<Frontier> best;
  for (const Chunk* hole = chunks_.vacant(); hole != nullptr; hole = hole->next) {
    Bytes have;
    const Chunk* const before = hole->before;
    if (before != nullptr && before->state == Chunk::State::free && before->end() == hole->begin) {
      const Bytes usable = std::min(before->size, size);
      const Wait wait = wait_needed(owner, *before, {hole->begin - usable, usable});
      if (wait == Wait::none || wait == Wait::likely_over) have = usable;
      // (A chunk that fits was counted in find().)
      if (wait == Wait::in_use_elsewhere && before->size < size) in_use_elsewhere_ += usable;
    }
    const Bytes missing = round_up(size - have, granularity_);
    if (hole->size < missing + held_bytes_) continue;
    if (!best || missing < best->missing ||
        (missing == best->missing && hole->begin < best->begin)) {
      best = Frontier{hole->begin, have, missing};
    }
  }
  return best;
}

bool PageHeap::affords_row(Bytes size) const {
  return remap_budget_.affords(page_sizes(size).size() + 2);
}

std::vector<Bytes> PageHeap::page_sizes(Bytes size) const {
  const double of_peak = keeps_used_ ? kCapturedPageShare : kPageShare;
  const Bytes least = keeps_used_ ? kCapturedPageLeast : kPageLeast;
  const Bytes share{static_cast<std::uint64_t>(of_peak * as_double(peak_used_))};
  const Bytes page = round_up(std::clamp(share, least, kPageMost), granularity_);
  size = round_up(size, granularity_);
  std::vector<Bytes> sizes;
  for (std::uint64_t left = (size.count + page.count - 1) / page.count; size > 0_B; --left) {
    sizes.push_back(std::min(size, round_up(size / left, granularity_)));
    size -= sizes.back();
  }
  return sizes;
}

// New pages at the end of the row, or of a part of it, behind what is free there.
Result<Address> PageHeap::grow(Owner& owner, Bytes size) {
  std::optional<Frontier> at = frontier(owner, size);
  if (!at) {
    Status begun = begin_region(round_up(size, granularity_) + held_bytes_);
    if (!begun) return std::move(begun).error();
    at = frontier(owner, size);
  }
  if (at->missing > 0_B) {
    const Result<std::vector<Page*>> pages = extend(owner, at->begin, at->missing);
    if (!pages) return pages.error();
  }
  return at->begin - at->have;
}

Result<Address> PageHeap::place(Owner& owner, Bytes size) {
  passed_over_ = false;
  in_use_elsewhere_ = 0_B;
  if (plain_) return place_in_segments(owner, size);
  if (const std::optional<Address> at = find(owner, size)) return *at;

  const std::optional<Frontier> end = frontier(owner, size);
  const Bytes missing = end ? end->missing : round_up(size, granularity_);
  const Bytes to_create = missing - std::min(missing, held_bytes_);
  if (to_create == 0_B) return grow(owner, size);
  const Growth growth = this->growth(size, to_create);
  if (growth != Growth::yes && in_use_elsewhere_ > 0_B && affords_row(size)) {
    const Bytes most = growth == Growth::for_in_use_elsewhere ? to_create - 1_B : 0_B;
    if (const std::optional<Address> at = place_beside_used(owner, size, most)) return *at;
  }
  if (may_prefer_new() && growth != Growth::no) {
    if (create_ == Create::not_yet) return may_not_create();
    Result<Address> at = grow(owner, size);
    if (at || at.error().code() != ErrorCode::out_of_memory) return at;
  }
  if (held_bytes_ > 0_B) {
    if (Status mapped = map_held(owner); !mapped) return std::move(mapped).error();
    return place(owner, size);
  }
  if (may_wait() && avoids_anything()) {
    if (const std::optional<Address> at = find_oldest(owner, size)) return *at;
  }
  if (const std::optional<Address> at = find_row(owner, size)) return *at;
  const Bytes beside{static_cast<std::uint64_t>(kSlackWithoutRemaps * as_double(peak_used_))};
  if (!affords_row(size) && size <= peak_used_ / kLargeShare && may_hold(to_create, beside) &&
      may_prefer_new()) {
    if (create_ == Create::not_yet) return may_not_create();
    Result<Address> at = grow(owner, size);
    if (at || at.error().code() != ErrorCode::out_of_memory) return at;
  }
  return stitch(owner, size);
}

}  // namespace weir
