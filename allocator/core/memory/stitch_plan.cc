// SPDX-License-Identifier: Apache-2.0
#include "core/memory/stitch_plan.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace weir {
namespace {

// A stretch by what a row can have of it.
struct Stretch {
  Range tail;   // up to the end of its last page that is free to the end
  Range head;   // from the start of its first page that is free from the start
  Range whole;  // the whole pages
  bool taken = false;
};

// Some of these parts, in an order of their own.
struct Part {
  Bytes size;
  Address begin;
  Stretch* of;
};
using Parts = std::vector<Part>;

Parts parts(std::vector<Stretch>& all, Range Stretch::*part) {
  Parts found;
  found.reserve(all.size());
  for (Stretch& stretch : all) {
    const Range range = stretch.*part;
    if (range.size > 0_B) found.push_back({range.size, range.begin, &stretch});
  }
  return found;
}
void sort_rising(Parts& parts) {
  std::ranges::sort(parts, {}, [](const Part& part) { return std::pair(part.size, part.begin); });
}

Stretch stretch_of(Range free, const HomePages& pages) {
  const Page& first = pages.at(free.begin);
  const Page& last = pages.at(free.end() - kGrain);
  const Address head = first.home == free.begin ? free.begin : first.end();
  const Address tail = last.end() == free.end() ? free.end() : last.home;
  Stretch stretch;
  if (tail > free.begin) stretch.tail = {free.begin, tail - free.begin};
  if (free.end() > head) stretch.head = {head, free.end() - head};
  if (tail > head) stretch.whole = {head, tail - head};
  return stretch;
}

}  // namespace

StitchPlan plan_stitch(Bytes size, const std::vector<Range>& stretches, const HomePages& pages,
                       Bytes granularity) {
  std::vector<Stretch> all;
  all.reserve(stretches.size());
  for (const Range range : stretches) all.push_back(stretch_of(range, pages));

  StitchPlan plan;
  // One that has it all alone was passed over for another reason; here it will do: the smallest,
  // and of equals the lowest.
  const auto smallest = [&](auto&& range_of) {
    std::optional<Range> least;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Range range = range_of(i);
      if (range.size < size) continue;
      if (!least || std::pair(range.size, range.begin) < std::pair(least->size, least->begin)) {
        least = range;
      }
    }
    return least;
  };
  if (const auto head = smallest([&](std::size_t i) { return all[i].head; })) {
    plan.head = Range{head->begin, size};
    return plan;
  }
  if (const auto tail = smallest([&](std::size_t i) { return all[i].tail; })) {
    plan.front.push_back({tail->end() - size, size});
    return plan;
  }
  // Neither its end nor its start alone does, since pages in use begin and end within it.
  if (const auto free = smallest([&](std::size_t i) { return stretches[i]; })) {
    plan.front.push_back({free->begin, size});
    return plan;
  }

  Parts tails = parts(all, &Stretch::tail), heads = parts(all, &Stretch::head);
  sort_rising(tails);
  sort_rising(heads);
  // The row's first and last pages must differ.
  const auto meet = [&](const Stretch* tail, const Stretch* head, Bytes need) {
    if (tail == head) return true;
    const Address first = pages.at(tail->tail.begin).home;
    const Bytes used = std::min(need, head->head.size);
    return first == head->head.begin || first == pages.at(head->head.begin + used - kGrain).home;
  };

  // Tails rise, so the heads that suffice fall.
  const Part* best_tail = nullptr;
  const Part* best_head = nullptr;
  Bytes least{~std::uint64_t{0}};
  std::size_t end = heads.size();
  for (const Part& tail : tails) {
    while (end > 0 && heads[end - 1].size + tail.size >= size) --end;
    for (std::size_t at = end; at < heads.size() && tail.size + heads[at].size < least; ++at) {
      if (meet(tail.of, heads[at].of, size - tail.size)) continue;
      best_tail = &tail;
      best_head = &heads[at];
      least = tail.size + heads[at].size;
    }
  }
  if (best_tail != nullptr) {
    plan.front.push_back(best_tail->of->tail);
    plan.head = Range{best_head->begin, size - best_tail->size};
    return plan;
  }

  Parts wholes = parts(all, &Stretch::whole);
  std::ranges::sort(wholes, {}, [](const Part& part) {
    return std::pair(~part.size.count, part.begin);  // the largest first
  });
  Bytes need = size;
  Stretch* const tail = tails.empty() ? nullptr : tails.back().of;
  if (tail != nullptr) {
    plan.front.push_back(tail->tail);
    need -= tail->tail.size;
    tail->taken = true;
  }
  const auto usable = [&](const Stretch* head) {
    return !head->taken && !(tail != nullptr && meet(tail, head, need));
  };
  for (const Part& whole : wholes) {
    const auto fits = std::find_if(heads.begin(), heads.end(), [&](const Part& head) {
      return head.size >= need && usable(head.of);
    });
    if (fits != heads.end()) {
      plan.head = Range{fits->begin, need};
      return plan;
    }
    if (whole.of->taken) continue;
    plan.front.push_back(whole.of->whole);
    need -= whole.size;
    whole.of->taken = true;
  }
  const Stretch* most = nullptr;
  for (const Part& head : heads) {
    if (usable(head.of) && head.of->whole.size == 0_B) most = head.of;
  }
  if (most != nullptr && most->head.size >= need) {
    plan.head = Range{most->head.begin, need};
    return plan;
  }
  const Bytes rest = most == nullptr ? need : need - most->head.size;
  plan.create = round_up(rest, granularity);
  if (most != nullptr && plan.create < need) {
    plan.head = Range{most->head.begin, need - plan.create};
  }
  return plan;
}

}  // namespace weir
