// SPDX-License-Identifier: Apache-2.0
// The policy: where a request goes. Reads the tables and returns plans. It changes no table, so it
// can be asked again when a plan could not be carried out.
//
// The ways to serve a request stand in one list, kSteps (for plain memory: kPlainSteps) at the end
// of this file, and are tried in that order. docs/decisions.md, 022, gives the reason for each
// constant.
//
// Guarded by the page heap's lock.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "core/memory/budget.h"
#include "core/memory/page_tables.h"
#include "core/memory/remap_budget.h"
#include "core/memory/request.h"
#include "core/memory/reuse.h"
#include "core/placement/placement_cache.h"

namespace weir {

class Placer {
 public:
  Placer(const PageTables& tables, const PageRules& rules, Reuse& reuse, const Budget& budget)
      : tables_(tables), rules_(rules), reuse_(reuse), budget_(budget) {}

  using Step = Plan (Placer::*)(Request&);
  std::span<const Step> steps() const;

  // How much new memory the limits allow; and the device too, as far as the request knows.
  Bytes room() const;
  Bytes room(const Request& request) const {
    return std::min(room(), request.device_room.value_or(Bytes{~std::uint64_t{0}}));
  }
  // The sizes of new pages of at least `size` bytes together, for a request of `request` bytes.
  std::vector<Bytes> page_sizes(Bytes size, Bytes request) const;
  // Vacant addresses of the home row for `room` bytes; none: a new region is needed.
  std::optional<Address> vacancy(Bytes room) const;
  // A plan to take the bytes at exactly these addresses, of the home row or of an idle row; none:
  // they are not free.
  Plan place_at(Range run) const;

  // Notes that the request was placed there; not for a place that remembered() found.
  void remember(RequestKeys keys, Address at) { placements_.remember(keys, at); }
  void forget_places() { placements_.clear(); }
  RemapBudget& remaps() { return remaps_; }
  Bytes limit() const { return limit_; }
  void set_limit(Bytes limit) { limit_ = limit; }

 private:
  // --- The steps.

  // The first free place remembered for the request, of those that Reuse::wait_needed() passes.
  // Where it passes none, and the policy is balanced, the first that was freed lately
  // (Wait::recent): a repeating program waits where it waited the last time, since otherwise all
  // that follows would have to be placed anew.
  Plan remembered(Request& request);
  // The first run that fits, of a few, of those that Reuse::wait_needed() passes; in a graph pool
  // the lowest.
  Plan free_run(Request& request);
  // New pages behind the free bytes at the end of the row, or before a hole in it, as far as they
  // cost next to nothing; or somewhat more, where other streams still use the stream's own free
  // bytes. Then pieces that nobody uses are put side by side instead, if that creates less memory.
  Plan grow(Request& request);
  // Maps pages that exist and are not mapped; then the list begins anew.
  Plan map_held(Request& request);
  // Of the first few runs that fit, the bytes whose last use is the longest past.
  Plan longest_free(Request& request);
  // A stitched row whose bytes are free.
  Plan idle_row(Request& request);
  // New pages, where the budget allows no mappings of existing ones.
  Plan grow_unaffordably(Request& request);
  // A new stitched row of free pieces, with new pages for the rest.
  Plan stitch(Request& request);
  // Plain memory: a new segment, as far as it costs next to nothing; and in any case.
  Plan segment_little(Request& request);
  Plan segment(Request& request);

  // Where the home row would grow with the least new memory, free bytes before that place included.
  Plan growth(Request& request);
  bool may_hold(const Request& request, Bytes more, Bytes beside) const;
  bool grows_little(const Request& request, Bytes more) const;
  bool grows_beside_used(const Request& request, Bytes more) const;
  template <class Skip>
  Plan stitched(Request& request, Skip&& skip);
  bool affords_row(Bytes size);
  // Of new pages for a request of `request` bytes; how many of them hold `size` bytes.
  Bytes page_size(Bytes request) const;
  std::uint64_t page_count(Bytes size, Bytes page) const;

  static const std::array<Step, 11> kSteps;  // below: the order
  static const std::array<Step, 6> kPlainSteps;

  const PageTables& tables_;
  const PageRules& rules_;
  Reuse& reuse_;
  const Budget& budget_;
  PlacementCache placements_;
  RemapBudget remaps_;
  StitchPlan stitch_;  // of the last plan for a new row
  Bytes limit_;        // of this page heap alone; zero: none
};

// The first step whose plan can be carried out serves the request. The last is tried again: the
// device may refuse to create as much as its plan wants, how much room it has is known then, and
// the next plan keeps to that.
inline const std::array<Placer::Step, 11> Placer::kSteps = {&Placer::remembered,
                                                            &Placer::free_run,
                                                            &Placer::grow,
                                                            &Placer::map_held,
                                                            &Placer::longest_free,
                                                            &Placer::idle_row,
                                                            &Placer::grow_unaffordably,
                                                            &Placer::stitch,
                                                            &Placer::stitch,
                                                            &Placer::stitch,
                                                            &Placer::stitch};
inline const std::array<Placer::Step, 6> Placer::kPlainSteps = {
    &Placer::remembered,     &Placer::map_held,     &Placer::free_run,
    &Placer::segment_little, &Placer::longest_free, &Placer::segment};

}  // namespace weir
