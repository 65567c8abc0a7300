// Where a request goes: which free addresses, or which pages to put side by side for it.
//
// Sees sizes, pages and addresses only, and changes nothing, so it is tested without a device.
// docs/decisions/001-placement.md says what was tried and what each rule gave.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "core/arena.h"
#include "core/page_table.h"
#include "weir/types.h"

namespace weir {

// What moving pages costs, against the least time that the program can have taken meanwhile. Both
// come from counts, not from a clock, so that the same program is placed the same way every time.
class Effort {
 public:
  void count_requests(std::uint64_t requests, Bytes bytes);
  // Aliases from now on are for a request of `size`; `peak`: the most bytes ever in use.
  void serve(Bytes size, Bytes peak) { small_ = size.count < peak.count / kLargePart; }
  void count_alias() {
    ++aliases_;
    if (small_) ++small_aliases_;
  }

  // `held` bytes are held, `peak` the most ever in use: whenever a page came, went, or was moved.
  void judge(Bytes held, Bytes peak);

  // May pages still be moved to save memory that growing would save too?
  bool may_improve() const {
    return !gave_up_ && moved_ns() < kFreeNs + worked_ns() * kImproveShare;
  }
  // Is moving pages getting dear: prefer a little more memory?
  bool must_save() const { return moved_ns() > kFreeNs + worked_ns() * kSaveShare; }
  // Did moving overspend, and memory grow all the same? The program never asks for the same again
  // while its free memory lies in pieces: only more memory ends the moving.
  bool gave_up() const { return gave_up_; }

 private:
  static constexpr double kFreeNs = 1e6;
  // Moving is given up where it overspends on small requests, which more memory serves as well: of
  // less than a part in so many of the peak. While the peak still rises (by so much) they count
  // anew. Large requests find no room in pieces, however much is free: for them so much is free.
  static constexpr std::uint64_t kLargePart = 100;
  static constexpr double kRise = 1.25;
  static constexpr double kLargeFreeNs = 50e6;
  static constexpr double kImproveShare = 0.005, kSaveShare = 0.008;
  // Work that moved nothing earns no more than this. (A loop that asks for one size a million times
  // a second has not worked for a minute each time.)
  static constexpr double kMostSavedNs = 2e9;
  // A mapping of a page that exists (facts: map 0.4 us + set access 20 us).
  static constexpr double kAliasNs = 20'400;
  // A program's least time: the host's work around a request, and the GPU's on its bytes. Recorded
  // training and serving programs take 1.1 to 5 times this.
  static constexpr double kRequestNs = 60'000;
  static constexpr double kNsPerGiB = 3e6;

  bool has_overspent() const;
  double moved_ns() const { return static_cast<double>(aliases_) * kAliasNs; }
  double worked_ns() const { return worked_ns_; }

  std::uint64_t aliases_ = 0;
  std::uint64_t small_aliases_ = 0;  // since the peak rose
  double worked_ns_ = 0, worked_at_rise_ns_ = 0;
  double risen_peak_ = 0;
  bool small_ = false;
  bool gave_up_ = false;
};

// A row of pages to map side by side, for a request that fits nowhere: the free end of one page in
// use, idle pages, new pages, and the free start of another page in use.
struct Plan {
  std::optional<PageId> tail;
  std::vector<PageId> middle;
  Bytes create;  // in all
  std::optional<PageId> head;
  Bytes tail_bytes;
  Bytes activated;  // sizes of the idle and new pages
};

class Placement {
 public:
  struct Found {
    Address address;
    Bytes activated;  // sizes of the idle pages that the place makes busy
  };

  // `peak_used`: the most bytes ever in use. `room`: how much the limits let pages be created for.
  Placement(const PageTable& table, const Arena& arena, HeapId heap, const Effort& effort,
            Bytes peak_used, Bytes room, Bytes granularity)
      : table_(table),
        arena_(arena),
        heap_(heap),
        effort_(effort),
        peak_(peak_used),
        room_(room),
        granularity_(granularity) {}

  // The best place among usable addresses, if any. Not one of which avoid(range) holds: the request
  // should not get it, for another reason than its size.
  template <class Avoid>
  std::optional<Found> find(Bytes size, Avoid&& avoid) const WEIR_NO_THREAD_ANALYSIS;
  std::optional<Found> find(Bytes size) const {
    return find(size, [](Range) { return false; });
  }

  // Would `found` make so many idle pages busy, with memory short, that it is worth trying plan()?
  bool worth_improving(Bytes size, Bytes activated) const;

  // Without the free parts of pages that `skip` is true of.
  using Skip = std::function<bool(PageId, Bytes offset, Bytes size)>;
  Plan plan(Bytes size, const Skip& skip = {}) const;

  // Is holding `more` bytes still within a hair of the most that was ever in use, and the limits?
  // `beside`: so much more is fine; but not beside the larger slack where moving was given up.
  bool may_grow(Bytes more, Bytes beside = 0_B) const;

  // Sizes of new pages for at least `size` bytes in all.
  std::vector<Bytes> page_sizes(Bytes size) const;

 private:
  // How many of the smallest fitting places are weighed.
  static constexpr int kPlacesWeighed = 24;
  // The same where moving was given up: the program does not repeat itself, so that what is weighed
  // now is not weighed once and for all. The smallest run that fits does as well there.
  static constexpr int kFewPlacesWeighed = 1;
  // An idle page counts so much more where it is not mapped for the first time: pages that stay
  // home keep rows of neighbours whole.
  static constexpr double kAwayFromHome = 1.1;
  // What is left over counts so much a byte, up to this share of the request: much left over is as
  // good as any.
  static constexpr double kLeftoverWeight = 0.3;
  static constexpr double kLeftoverShare = 0.3;
  // Low addresses first, so that a repeating program settles.
  static constexpr double kAddressWeight = 0.3;

  static double as_double(Bytes bytes) {
    return static_cast<double>(static_cast<std::int64_t>(bytes.count));
  }

  // Where the request could go, and what that weighs but for the pages below: what is left over,
  // and the address.
  struct Place {
    double light;
    std::uint64_t at;  // an Address; so that an array of places need not be zeroed
    Address address() const { return {at}; }
  };
  struct Places {
    std::array<Place, std::size_t{2} * kPlacesWeighed> all;  // uninitialised from `count` on
    std::size_t count;
    std::size_t lightest;  // the first such
  };
  // Of at most `runs` runs.
  Places light_places(Bytes size, int runs) const;
  template <class Avoid>
  std::optional<Found> lightest(const Places& places, Bytes size,
                                Avoid&& avoid) const WEIR_NO_THREAD_ANALYSIS;

  struct Cost {
    Bytes activated;
    double weight = 0;
  };
  // Of the first pages alone, if these and `light` weigh more than `least` already.
  Cost cost(Range range, double light, double least) const {
    Cost cost;
    table_.walk_while(range, [&](const Page& page, Address begin) {
      if (page.lease) return true;
      cost.activated += page.size;
      cost.weight += as_double(page.size) * (page.home == begin ? 1 : kAwayFromHome);
      return cost.weight + light <= least;
    });
    return cost;
  }
  // Pages are far apart in memory: each place's first is fetched beside the others, not after them.
  void fetch(const Places& places) const {
    for (std::size_t i = 0; i < places.count; ++i) table_.expect(places.all[i].address());
    for (std::size_t i = 0; i < places.count; ++i) table_.expect_page(places.all[i].address());
  }
  bool has_most_aliases(PageId page) const;
  void fill_middle(Bytes rest, Bytes middle, Plan& plan, const Skip& skip) const;

  const PageTable& table_;
  const Arena& arena_;
  const HeapId heap_;
  const Effort& effort_;
  const Bytes peak_;
  const Bytes room_;
  const Bytes granularity_;
};

template <class Avoid>
std::optional<Placement::Found> Placement::find(Bytes size, Avoid&& avoid) const {
  if (effort_.gave_up()) {
    const Places few = light_places(size, kFewPlacesWeighed);
    if (few.count == 0) return std::nullopt;
    if (const std::optional<Found> found = lightest(few, size, avoid)) return found;
  }
  return lightest(light_places(size, kPlacesWeighed), size, avoid);
}

template <class Avoid>
std::optional<Placement::Found> Placement::lightest(const Places& places, Bytes size,
                                                    Avoid&& avoid) const {
  std::optional<Found> best;
  const Place* best_place = nullptr;
  double least = std::numeric_limits<double>::infinity();
  // The weight is what is light plus the pages below, which are looked at only where the light part
  // leaves a chance. Of equal places the first counts.
  const auto weigh = [&](const Place& place) {
    if (place.light > least) return;
    const Cost here = cost({place.address(), size}, place.light, least);
    const double weight = here.weight + place.light;
    if (weight > least || (weight == least && best_place < &place)) return;
    if (avoid(Range{place.address(), size})) return;
    least = weight;
    best = Found{place.address(), here.activated};
    best_place = &place;
  };
  if (places.count == 0) return best;
  const Place& lightest = places.all[places.lightest];
  weigh(lightest);
  if (least == lightest.light) return best;  // it makes no page busy, so the others are heavier
  if (places.count > std::size_t{2} * kFewPlacesWeighed) fetch(places);
  for (std::size_t i = 0; i < places.count; ++i) {
    if (i != places.lightest) weigh(places.all[i]);
  }
  return best;
}

}  // namespace weir
