// SPDX-License-Identifier: Apache-2.0
#include "core/memory/placer.h"

#include <algorithm>
#include <limits>

#include "core/base/mechanism.h"

namespace weir {
namespace {

using Wait = Reuse::Wait;

// Runs that fit which are looked at, where some are avoided.
constexpr int kRunsLookedAt = 4;
// Of so many that fit the lowest serves, in a graph pool.
constexpr int kRunsPacked = 3;

// More may be held than was ever in use by this share,
constexpr double kSlack = 0.003;
// or by so much where recently freed memory is passed over. Streams that communicate, or copy, have
// a few buffers each that they use again and again; with so much more held other streams can leave
// them theirs. Only while at least nine tenths of the peak is in use; below that, other memory is
// free or soon will be. And not for requests smaller than a page, which would create a whole one.
constexpr std::uint64_t kRecentShare = 64, kNearlyAllShare = 10;
// Memory that other streams still use is in use indeed: rather than wait for it a heap may grow by
// one in so many bytes of what the device's heaps hold. (A program that has much of it comes to
// this again and again.)
constexpr std::uint64_t kElsewhereShare = 10, kEnoughElsewhere = 3;
// Where mappings are not affordable any more, by this share (bench/results has memory over driver
// time). Requests of more than one in so many bytes of the most ever in use find no room in pieces,
// however much is free: for them only once the budget is far overdrawn.
constexpr double kSlackWithoutRemaps = 0.095;
constexpr std::uint64_t kLargeShare = 32;

// Stitched rows that are looked at, and how much larger than the request they may be.
constexpr int kRowsLookedAt = 16;
constexpr std::uint64_t kRowOversize = 4;  // one in so many bytes
// Runs that are looked at for a stitched row, the largest first; and none that are smaller.
constexpr int kRunsStitched = 64;
constexpr Bytes kLeastPiece = 64_KiB;
// Vacant tiles that are looked at for the row to grow.
constexpr int kVacantLookedAt = 8;

// A new page is at most this share of the most ever in use, clamped to these; smaller where less
// is needed. A capture has smaller ones: what its graph keeps of a page keeps the rest of it from
// stitched rows, which take whole pages and parts of two.
constexpr double kPageShare = 0.007, kCapturedPageShare = 0.003;
constexpr Bytes kPageLeast = 4_MiB, kCapturedPageLeast = 2_MiB;
// For a large request, which takes pages whole, they may be larger; a huge one has few of them,
// but in graph pools: each is a call of the driver now, and whenever a stitched row takes it.
constexpr Bytes kPageMost = 16_MiB, kLargePageMost = 30_MiB;
constexpr std::uint64_t kPagesOfRequest = 24;

double as_double(Bytes bytes) {
  return static_cast<double>(static_cast<std::int64_t>(bytes.count));
}

}  // namespace

std::span<const Placer::Step> Placer::steps() const {
  return rules_.plain ? std::span<const Step>(kPlainSteps) : std::span<const Step>(kSteps);
}

Plan Placer::place_at(Range run) const {
  if (Tile* const head = tables_.tiles.run_around(run)) return Plan::in_run(head, run);
  StitchedRow* const row = tables_.rows.at(run.begin);
  if (row == nullptr || row->state != StitchedRow::State::idle || !row->fits(run.size)) return {};
  const bool free = row->visit_parts(
      run.size, [&](Range home) { return tables_.tiles.run_around(home) != nullptr; });
  return free ? Plan::in_row(row) : Plan{};
}

Plan Placer::remembered(Request& request) {
  if (without(Mechanism::remembered_places)) return {};
  Plan found, waits;
  (void)placements_.recall(request.keys, [&](Address begin) {
    const Plan plan = place_at({begin, request.size});
    if (!plan) return false;
    const auto in_reach = [&](Range home) {
      const Tile* const head = plan.row == nullptr ? plan.head : tables_.tiles.run_around(home);
      return !reuse_.is_out_of_reach(request, head, home);
    };
    if (request.asks_each &&
        !(plan.row == nullptr ? in_reach(plan.home)
                              : plan.row->visit_parts(request.size, in_reach))) {
      return false;
    }
    const Wait wait = plan.row == nullptr ? reuse_.wait_needed(request, plan.head, plan.home)
                                          : reuse_.wait_needed(request, *plan.row);
    if (wait == Wait::recent && !waits) waits = plan;
    if (wait != Wait::none) return false;
    found = plan;
    return true;
  });
  const bool may_wait = rules_.reuse == ReusePolicy::balanced && request.may_wait();
  return found || !may_wait ? found : waits;
}

// Requests of up to kPageMost go to a run's end, larger ones to its start, so that they come to lie
// apart, and the pages between them stay whole. A graph pool, whose pages are small, is packed from
// its low end: what its graphs keep of it never moves.
Plan Placer::free_run(Request& request) {
  Plan found;
  const bool packs = rules_.of_graph_pool;
  const bool at_end =
      request.size <= (packs ? kPageLeast : kPageMost) && !without(Mechanism::two_ends);
  int left = kRunsLookedAt, fits = packs ? kRunsPacked : 1;
  tables_.tiles.runs().visit_fitting(request.size, [&](Tile& head) {
    const Range home{at_end ? head.run_end() - request.size : head.begin, request.size};
    const bool lower = !found || home.begin < found.home.begin;
    const Wait wait = lower ? reuse_.wait_needed(request, &head, home) : Wait::none;
    if (wait == Wait::none) {
      if (lower) found = Plan::in_run(&head, home);
      return --fits > 0 && --left > 0;
    }
    request.passed_over = true;
    if (wait == Wait::elsewhere) {
      request.in_use_elsewhere += reuse_.in_use_elsewhere(request, head);
    }
    return --left > 0;
  });
  return found;
}

Plan Placer::longest_free(Request& request) {
  if (without(Mechanism::longest_free)) return {};
  if (!request.may_wait() || rules_.reuse == ReusePolicy::wait) return {};
  Plan best;
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  int left = kRunsLookedAt;
  tables_.tiles.runs().visit_fitting(request.size, [&](Tile& head) {
    for (const Address at : {head.begin, head.run_end() - request.size}) {
      const Range home{at, request.size};
      std::uint64_t latest = 0;
      (void)Tiles::visit_notes(&head, home, [&](const Tile& tile) {
        latest = std::max(latest, tile.freed_at);
        return true;
      });
      if (latest >= oldest || reuse_.is_refused(request, &head, home)) continue;
      oldest = latest;
      best = Plan::in_run(&head, home);
    }
    return --left > 0;
  });
  return best;
}

Plan Placer::idle_row(Request& request) {
  Plan found;
  int left = kRowsLookedAt;
  const Bytes size = request.size, most = size + size / kRowOversize;
  tables_.rows.idle().visit_fitting(size, [&](StitchedRow& row) {
    if (row.size > most || without(Mechanism::rows_by_size)) return false;
    if (!row.fits(size)) return true;
    const bool free = row.visit_parts(size, [&](Range home) {
      const Tile* const head = tables_.tiles.run_around(home);
      return head != nullptr && !reuse_.is_refused(request, head, home);
    });
    if (free) found = Plan::in_row(&row);
    return !free && --left > 0;
  });
  return found;
}

Bytes Placer::room() const {
  const Bytes most = budget_.room();
  return limit_ == 0_B ? most : std::min(most, limit_ - std::min(limit_, tables_.total()));
}

// Would holding `more` be within a hair of the most that was ever in use, and the limits?
bool Placer::may_hold(const Request& request, Bytes more, Bytes beside) const {
  return more <= room(request) &&
         as_double(tables_.total() + more) <=
             (without(Mechanism::slack) ? 1 : 1 + kSlack) * as_double(tables_.peak_used) +
                 as_double(beside);
}

bool Placer::grows_little(const Request& request, Bytes more) const {
  const Bytes peak = tables_.peak_used;
  const bool full = tables_.tiles.used() + request.size >= peak - peak / kNearlyAllShare;
  const bool past_recent = request.passed_over && full && request.size >= kPageLeast &&
                           !without(Mechanism::growth_past_recent);
  return may_hold(request, more, past_recent ? peak / kRecentShare : 0_B);
}

bool Placer::grows_beside_used(const Request& request, Bytes more) const {
  const Bytes peak = tables_.peak_used, elsewhere = request.in_use_elsewhere;
  return elsewhere > 0_B && elsewhere < request.size * kEnoughElsewhere &&
         request.may_prefer_new() && !without(Mechanism::growth_beside_used) &&
         may_hold(request, more, std::max(peak, budget_.held()) / kElsewhereShare);
}

std::optional<Address> Placer::vacancy(Bytes room) const {
  std::optional<Address> lowest;
  int left = kVacantLookedAt;
  tables_.tiles.vacant().visit_fitting(room, [&](const Tile& hole) {
    if (!lowest || hole.begin < *lowest) lowest = hole.begin;
    return --left > 0;
  });
  return lowest;
}

// New memory where the fewest bytes are missing, and of equals at the lowest address. Free bytes in
// front of it serve the request too, unless it had rather not wait for them.
Plan Placer::growth(Request& request) {
  const Bytes size = request.size, held = tables_.held_bytes;
  Plan best;
  const auto consider = [&](const Tile& hole) {
    Bytes have;
    if (const Tile* const edge = hole.before; edge != nullptr && edge->is_free()) {
      const Bytes usable = std::min(edge->edge->run, size);
      const Wait wait = reuse_.wait_needed(request, edge->edge, {hole.begin - usable, usable});
      if (wait == Wait::none) have = usable;
    }
    const Bytes missing = round_up(size - have, rules_.granularity);
    if (hole.run < missing + held) return;
    if (!best || missing < best.home.size ||
        (missing == best.home.size && hole.begin < best.home.begin)) {
      best = {.way = Plan::Way::grow, .home = {hole.begin, missing}, .behind = have};
    }
  };
  int left = kVacantLookedAt;
  tables_.tiles.vacant().visit_down([&](const Tile& hole) {
    consider(hole);
    return --left > 0;
  });
  if (!best) {  // in a new region
    best = {.way = Plan::Way::grow, .home = {Address{}, round_up(size, rules_.granularity)}};
  }
  best.creates = best.home.size - std::min(best.home.size, held);
  return best;
}

Plan Placer::grow(Request& request) {
  Plan grown = growth(request);
  if (grown.creates == 0_B) return grown;
  if (request.may_prefer_new() && grows_little(request, grown.creates)) return grown;
  if (request.in_use_elsewhere == 0_B || !affords_row(request.size)) return {};
  Plan unused = stitched(request, [&](const Tile& head, Range home) {
    return reuse_.is_in_use(request, &head, home);
  });
  if (unused && unused.creates == 0_B) return unused;
  if (!grows_beside_used(request, grown.creates)) return {};
  return unused && unused.creates < grown.creates ? unused : grown;
}

Plan Placer::grow_unaffordably(Request& request) {
  if (!request.may_prefer_new() || affords_row(request.size)) return {};
  if (request.size > tables_.peak_used / kLargeShare && !remaps_.is_far_overdrawn()) return {};
  Plan plan = growth(request);
  const Bytes beside{
      static_cast<std::uint64_t>(kSlackWithoutRemaps * as_double(tables_.peak_used))};
  return may_hold(request, plan.creates, beside) ? plan : Plan{};
}

Plan Placer::map_held(Request& /*request*/) {
  return tables_.held.empty() ? Plan{} : Plan{.way = Plan::Way::held};
}

// Free bytes in pieces, but for those that `skip` is true of.
template <class Skip>
Plan Placer::stitched(Request& request, Skip&& skip) {
  std::vector<Range> free;
  const auto add = [&](Address begin, Address end) {
    if (begin + kLeastPiece <= end && !without(Mechanism::stitched_rows)) {
      free.push_back({begin, end - begin});
    }
  };
  int left = kRunsStitched;
  tables_.tiles.runs().visit_down([&](const Tile& head) {
    if (head.run < kLeastPiece) return false;
    Address begin = head.begin;
    if (skip(head, head.run_range())) {
      (void)Tiles::visit_notes(&head, head.run_range(), [&](const Tile& tile) {
        if (!skip(head, tile.range())) return true;
        add(begin, tile.begin);
        begin = tile.end();
        return true;
      });
    }
    add(begin, head.run_end());
    return --left > 0;
  });
  stitch_ = plan_stitch(request.size, free, tables_.pages, rules_.granularity);
  if (stitch_.create > room(request)) return {};
  if (!stitch_.is_one_piece()) {
    return {.way = Plan::Way::stitch, .stitch = &stitch_, .creates = stitch_.create};
  }
  const Range home = stitch_.head ? *stitch_.head : stitch_.front.front();
  return Plan::in_run(tables_.tiles.run_around(home), home);
}

Plan Placer::stitch(Request& request) {
  Plan plan = stitched(request, [&](const Tile& head, Range home) {
    return request.asks_each && reuse_.is_refused(request, &head, home);
  });
  if (plan.creates == 0_B) return plan;
  Plan grown = growth(request);
  return plan.creates >= grown.home.size ? grown : plan;
}

Plan Placer::segment_little(Request& request) {
  const Bytes size = round_up(request.size, rules_.granularity);
  const bool grows = grows_little(request, size) || grows_beside_used(request, size);
  if (request.create == Create::not_yet || !grows) return {};
  return {.way = Plan::Way::segment, .creates = size};
}

Plan Placer::segment(Request& request) {
  return {.way = Plan::Way::segment, .creates = round_up(request.size, rules_.granularity)};
}

bool Placer::affords_row(Bytes size) {
  return without(Mechanism::remap_budget) || remaps_.affords(page_count(size, page_size(size)) + 2);
}

Bytes Placer::page_size(Bytes request) const {
  const bool captured = tables_.keeps_used && !without(Mechanism::captured_pages);
  const Bytes peak = tables_.peak_used;
  const Bytes share{
      static_cast<std::uint64_t>((captured ? kCapturedPageShare : kPageShare) * as_double(peak))};
  return round_up(
      std::clamp(rules_.of_graph_pool ? share : std::max(share, request / kPagesOfRequest),
                 captured ? kCapturedPageLeast : kPageLeast,
                 request <= peak / kLargeShare || without(Mechanism::large_pages) ? kPageMost
                                                                                  : kLargePageMost),
      rules_.granularity);
}

std::uint64_t Placer::page_count(Bytes size, Bytes page) const {
  return (round_up(size, rules_.granularity).count + page.count - 1) / page.count;
}

std::vector<Bytes> Placer::page_sizes(Bytes size, Bytes request) const {
  std::vector<Bytes> sizes;
  std::uint64_t left = page_count(size, page_size(request));
  for (size = round_up(size, rules_.granularity); size > 0_B; --left) {
    sizes.push_back(std::min(size, round_up(size / left, rules_.granularity)));
    size -= sizes.back();
  }
  return sizes;
}

}  // namespace weir
