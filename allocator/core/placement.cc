#include "core/placement.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace weir {
namespace {

// Pages are created while no more is held than this times the most ever in use.
constexpr double kSlack = 1.003;
constexpr double kSlackWhenSaving = 1.01;
// With more than this held, in spite of moving beyond its budget, moving is given up ...
constexpr double kLost = 1.04;
// ... and pages are created up to here. (Where blocks of 512 B to 16 MiB are replaced at random,
// that much is free in pieces.)
constexpr double kSlackWhenGivenUp = 1.15;
// A new page is at most this share of the most ever in use, and between these.
constexpr double kPageShare = 0.007;
constexpr Bytes kPageLeast = 8_MiB;
constexpr Bytes kPageMost = 80_MiB;
// An idle page larger than the rest is taken if it is at most so much larger; else the exact rest
// is created.
constexpr double kOversize = 1.2;
constexpr double kOversizeWhenSaving = 3;
// The free start of a page is worth a mapping from here on.
constexpr Bytes kLeastHead = 64_KiB;
// A page in use with so many mappings gets no more: each costs a little whenever its bytes are
// used.
constexpr std::size_t kMostAliases = 128;

// With this share of the slack's memory busy, places are worth improving.
constexpr double kPressure = 0.8;
// ... that make so much more busy than was asked for.
constexpr Bytes kWasteLeast = 4_MiB;
constexpr double kWasteShare = 0.1;

constexpr PageId kLastPage{std::numeric_limits<std::uint32_t>::max()};

}  // namespace

void Effort::count_requests(std::uint64_t requests, Bytes bytes) {
  worked_ns_ += static_cast<double>(requests) * kRequestNs +
                static_cast<double>(bytes.count) / static_cast<double>((1_GiB).count) * kNsPerGiB;
  worked_ns_ = std::min(worked_ns_, moved_ns() / kImproveShare + kMostSavedNs);
}

void Effort::judge(Bytes held, Bytes peak) {
  if (static_cast<double>(peak.count) > kRise * risen_peak_) {
    risen_peak_ = static_cast<double>(peak.count);
    worked_at_rise_ns_ = worked_ns();
    small_aliases_ = 0;
  }
  if (static_cast<double>(held.count) <= kLost * static_cast<double>(peak.count)) {
    gave_up_ = false;
  } else if (has_overspent()) {
    gave_up_ = true;
  }
}

bool Effort::has_overspent() const {
  const double small_ns = static_cast<double>(small_aliases_) * kAliasNs;
  return small_ns > kFreeNs + (worked_ns() - worked_at_rise_ns_) * kSaveShare ||
         moved_ns() > kLargeFreeNs + worked_ns() * kSaveShare;
}

Placement::Places Placement::light_places(Bytes size, int runs) const {
  Places places;
  places.count = 0;
  places.lightest = 0;
  double least = std::numeric_limits<double>::infinity();
  const double most_leftover = kLeftoverShare * as_double(size);
  const double per_position = kAddressWeight * as_double(size) / std::max(as_double(peak_), 1.0);
  const auto add = [&](Address at, double leftover) {
    const double light = leftover + per_position * as_double(arena_.position(at));
    if (light < least) {
      least = light;
      places.lightest = places.count;
    }
    places.all[places.count++] = {light, at.value};
  };
  // Bytes in use lie only at the ends of a free run, so either of its ends makes the most of them.
  arena_.usable().visit_fitting(size, [&](Range run) {
    const Bytes over = run.size - size;
    const double leftover = kLeftoverWeight * std::min(as_double(over), most_leftover);
    add(run.begin, leftover);
    if (over > 0_B) add(run.end() - size, leftover);
    return --runs > 0;
  });
  return places;
}

bool Placement::may_grow(Bytes more, Bytes beside) const {
  if (more > room_) return false;
  const double slack = effort_.must_save() ? kSlackWhenSaving : kSlack;
  double most = slack * as_double(peak_) + as_double(beside);
  if (effort_.gave_up()) most = std::max(most, kSlackWhenGivenUp * as_double(peak_));
  return as_double(table_.total() + more) <= most;
}

bool Placement::worth_improving(Bytes size, Bytes activated) const {
  if (!effort_.may_improve()) return false;
  const double busy = as_double(table_.leased() + activated);
  const double waste = std::max(as_double(kWasteLeast), kWasteShare * as_double(size));
  return busy > kPressure * kSlack * as_double(peak_) &&
         as_double(activated) > as_double(size) + waste;
}

bool Placement::has_most_aliases(PageId page) const {
  return table_.page(page).mappings.size() >= kMostAliases;
}

Plan Placement::plan(Bytes size, const Skip& skip) const {
  Plan plan;
  const PageTable::BySize& tails = table_.tails(heap_);
  for (auto tail = tails.rbegin(); tail != tails.rend(); ++tail) {
    if (has_most_aliases(tail->second)) continue;
    const Bytes begin = table_.page(tail->second).size - tail->first;
    if (skip && skip(tail->second, begin, tail->first)) continue;
    plan.tail = tail->second;
    plan.tail_bytes = tail->first;
    break;
  }
  if (plan.tail_bytes >= size) return plan;

  // The head is chosen before the middle, which is then exactly the whole pages between.
  const Bytes rest = size - plan.tail_bytes;
  const PageTable::BySize& heads = table_.heads(heap_);
  auto head = heads.upper_bound({rest, kLastPage});
  Bytes head_bytes;
  while (head != heads.begin()) {
    --head;
    if (head->second == plan.tail || has_most_aliases(head->second)) continue;
    if (skip && skip(head->second, 0_B, head->first)) continue;
    plan.head = head->second;
    head_bytes = head->first;
    break;
  }
  Bytes middle = round_up(rest - head_bytes, granularity_);
  if (head_bytes < kLeastHead || middle >= rest) {
    plan.head.reset();
    middle = round_up(rest, granularity_);
  }
  fill_middle(rest, middle, plan, skip);
  return plan;
}

// `middle`: what is needed where the head follows; `rest`: where it does not.
void Placement::fill_middle(Bytes rest, Bytes middle, Plan& plan, const Skip& skip) const {
  const PageTable::BySize& idle = table_.idle();
  const auto take = [&](PageTable::BySize::const_iterator page) {
    plan.middle.push_back(page->second);
    plan.activated += page->first;
    rest = page->first < rest ? rest - page->first : 0_B;
    middle = page->first < middle ? middle - page->first : 0_B;
  };
  // The largest idle pages that fit, the newest first.
  std::unordered_set<std::uint32_t> taken;
  auto page = idle.upper_bound({middle, kLastPage});
  while (middle > 0_B && page != idle.begin()) {
    --page;
    if (skip && skip(page->second, 0_B, page->first)) continue;
    taken.insert(page->second.value);
    take(page);
    if (page->first > middle) page = idle.upper_bound({middle, kLastPage});
  }
  if (middle == 0_B) return;

  // What is left is smaller than every page that was not taken, nor skipped.
  auto larger = idle.lower_bound({middle, PageId{}});
  const auto is_out = [&](Bytes size, PageId id) {
    return taken.contains(id.value) || (skip && skip(id, 0_B, size));
  };
  while (larger != idle.end() && is_out(larger->first, larger->second)) ++larger;
  const double oversize = effort_.must_save() ? kOversizeWhenSaving : kOversize;
  if (larger != idle.end() &&
      (as_double(larger->first) <= oversize * as_double(middle) || !may_grow(middle))) {
    if (larger->first >= rest) plan.head.reset();
    take(larger);
    return;
  }
  plan.create = middle;
  plan.activated += middle;
}

std::vector<Bytes> Placement::page_sizes(Bytes size) const {
  const Bytes share{static_cast<std::uint64_t>(kPageShare * as_double(peak_))};
  const Bytes most = round_up(std::clamp(share, kPageLeast, kPageMost), granularity_);
  size = round_up(size, granularity_);
  std::vector<Bytes> sizes;
  for (std::uint64_t left = (size.count + most.count - 1) / most.count; size > 0_B; --left) {
    const Bytes next = std::min(size, round_up(size / left, granularity_));
    sizes.push_back(next);
    size -= next;
  }
  return sizes;
}

}  // namespace weir
