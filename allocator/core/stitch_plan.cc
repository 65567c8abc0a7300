#include "core/stitch_plan.h"

#include <algorithm>
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

Stretch stretch_of(Range free, const HomePages& pages) {
  const Page& first = pages.at(free.begin);
  const Page& last = pages.at(free.end() - kGrain);
  const Address head = first.home == free.begin ? free.begin : first.range().end();
  const Address tail = last.range().end() == free.end() ? free.end() : last.home;
  Stretch stretch;
  if (tail > free.begin) stretch.tail = {free.begin, tail - free.begin};
  if (free.end() > head) stretch.head = {head, free.end() - head};
  if (tail > head) stretch.whole = {head, tail - head};
  return stretch;
}

}  // namespace

std::size_t StitchPlan::mappings(const HomePages& pages) const {
  std::size_t count = 0;
  const auto add = [&](Range range) {
    pages.walk(range, [&](const Page&, Bytes, Bytes) { ++count; });
  };
  for (const Range range : front) add(range);
  if (head) add(*head);
  return count;
}

StitchPlan plan_stitch(Bytes size, const std::vector<Range>& stretches, const HomePages& pages,
                       Bytes granularity) {
  std::vector<Stretch> all;
  all.reserve(stretches.size());
  for (const Range range : stretches) all.push_back(stretch_of(range, pages));

  std::vector<Stretch*> tails, heads, wholes;
  for (Stretch& stretch : all) {
    if (stretch.tail.size > 0_B) tails.push_back(&stretch);
    if (stretch.head.size > 0_B) heads.push_back(&stretch);
    if (stretch.whole.size > 0_B) wholes.push_back(&stretch);
  }
  const auto by = [](Range Stretch::*range, bool rising) {
    return [=](const Stretch* a, const Stretch* b) {
      if ((a->*range).size != (b->*range).size) {
        return ((a->*range).size < (b->*range).size) == rising;
      }
      return (a->*range).begin < (b->*range).begin;
    };
  };
  std::sort(tails.begin(), tails.end(), by(&Stretch::tail, true));
  std::sort(heads.begin(), heads.end(), by(&Stretch::head, true));
  std::sort(wholes.begin(), wholes.end(), by(&Stretch::whole, false));
  // A page must not be in a row twice: its end in the first piece, and its start, or what is free
  // before that end, in the last.
  const auto meet = [&](const Stretch* tail, const Stretch* head, Bytes need) {
    if (tail == head) return true;
    const Address first = pages.at(tail->tail.begin).home;
    const Bytes used = std::min(need, head->head.size);
    return first == head->head.begin || first == pages.at(head->head.begin + used - kGrain).home;
  };

  StitchPlan plan;
  // One that has it all alone was passed over for another reason; here it will do.
  for (const Stretch* head : heads) {
    if (head->head.size < size) continue;
    plan.head = Range{head->head.begin, size};
    return plan;
  }
  for (const Stretch* tail : tails) {
    if (tail->tail.size < size) continue;
    plan.front.push_back({tail->tail.end() - size, size});
    return plan;
  }

  // Neither its end nor its start alone does, since pages in use begin and end within it.
  const Range* least = nullptr;
  for (const Range& free : stretches) {
    if (free.size < size) continue;
    if (least == nullptr ||
        std::pair(free.size, free.begin) < std::pair(least->size, least->begin)) {
      least = &free;
    }
  }
  if (least != nullptr) {
    plan.front.push_back({least->begin, size});
    return plan;
  }

  // Tails rise, so the heads that suffice fall.
  const Stretch* best_tail = nullptr;
  const Stretch* best_head = nullptr;
  std::size_t end = heads.size();
  for (const Stretch* tail : tails) {
    while (end > 0 && heads[end - 1]->head.size + tail->tail.size >= size) --end;
    std::size_t at = end;
    while (at < heads.size() && meet(tail, heads[at], size - tail->tail.size)) ++at;
    if (at == heads.size()) continue;
    const Bytes sum = tail->tail.size + heads[at]->head.size;
    if (best_tail == nullptr || sum < best_tail->tail.size + best_head->head.size) {
      best_tail = tail;
      best_head = heads[at];
    }
  }
  if (best_tail != nullptr) {
    plan.front.push_back(best_tail->tail);
    plan.head = Range{best_head->head.begin, size - best_tail->tail.size};
    return plan;
  }

  Bytes need = size;
  Stretch* const tail = tails.empty() ? nullptr : tails.back();
  if (tail != nullptr) {
    plan.front.push_back(tail->tail);
    need -= tail->tail.size;
    tail->taken = true;
  }
  const auto usable = [&](const Stretch* head) {
    return !head->taken && !(tail != nullptr && meet(tail, head, need));
  };
  for (Stretch* whole : wholes) {
    const auto fits = std::find_if(heads.begin(), heads.end(), [&](const Stretch* head) {
      return head->head.size >= need && usable(head);
    });
    if (fits != heads.end()) {
      plan.head = Range{(*fits)->head.begin, need};
      return plan;
    }
    if (whole->taken) continue;
    plan.front.push_back(whole->whole);
    need -= whole->whole.size;
    whole->taken = true;
  }
  const Stretch* most = nullptr;
  for (const Stretch* head : heads) {
    if (usable(head) && head->whole.size == 0_B) most = head;
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
