// SPDX-License-Identifier: Apache-2.0
// plan_stitch() over random free maps: every plan is one that a row can be built of, and wastes no
// memory that a search over all pieces finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/memory/home_pages.h"
#include "core/memory/stitch_plan.h"

namespace weir {
namespace {

constexpr Address kRow{(1_TiB).count};
constexpr Bytes kCell = 128_KiB;

struct Terrain {
  const char* name;
  std::uint64_t pages;
  std::uint64_t most_granules;  // of a page
  std::uint64_t free_cells;     // that lie side by side, on average
  std::uint64_t used_cells;
  Bytes granularity;
};

class StitchPlanModel : public testing::TestWithParam<Terrain> {
 protected:
  enum Kind { kOnePiece, kPair, kMany, kCreate, kCreateAndHead, kKinds };

  void SetUp() override { index_.add_region({kRow, 4_GiB}); }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  void make_pages() {
    pages_.clear();
    Address at = kRow;
    for (std::uint32_t i = 0; i < terrain_.pages; ++i) {
      const Bytes size = 2_MiB * (1 + below(terrain_.most_granules));
      if (below(12) == 0) at = at + 2_MiB * (1 + below(3));  // a hole
      pages_.add(PageId{i}, PhysicalHandle{i}, {at, size}, HeapId{0});
      at = at + size;
    }
    end_ = at;
  }
  // Stretches of free cells, none across a hole; some pass over cells that are free as well, as if
  // another stream's work on them were still to be waited for.
  void make_free() {
    free_.clear();
    std::optional<Range> current;
    bool is_free = below(2) == 0;
    for (Address at = kRow; at < end_; at = at + kCell) {
      if (below(is_free ? terrain_.free_cells : terrain_.used_cells) == 0) is_free = !is_free;
      const bool usable = is_free && pages_.is_mapped({at, kCell});
      if (usable && current && below(20) != 0) {
        current->size += kCell;
        continue;
      }
      if (current) free_.push_back(*current);
      current = std::nullopt;
      // (A gap of a cell between two stretches.)
      if (usable && (free_.empty() || free_.back().end() != at)) current = Range{at, kCell};
    }
    if (current) free_.push_back(*current);
    // In any order.
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  bool begins_page(Address at) const { return pages_.at(at).home == at; }
  bool ends_page(Address at) const { return pages_.at(at - kGrain).range().end() == at; }
  std::set<const Page*> pages_of(Range range) const {
    std::set<const Page*> found;
    for (const auto& [id, page] : pages_.all()) {
      if (page.home < range.end() && range.begin < page.range().end()) found.insert(&page);
    }
    return found;
  }
  // The end of the stretch that a row may begin with: up to the end of a page.
  std::optional<Range> tail_of(Range free) const {
    std::optional<Range> tail;
    for (const auto& [id, page] : pages_.all()) {
      const Address end = page.range().end();
      if (free.begin < end && end <= free.end() && (!tail || tail->end() < end)) {
        tail = Range{free.begin, end - free.begin};
      }
    }
    return tail;
  }
  // The start of the stretch that a row may end with: from the start of a page.
  std::optional<Range> head_of(Range free) const {
    std::optional<Range> head;
    for (const auto& [id, page] : pages_.all()) {
      if (free.begin <= page.home && page.home < free.end() && (!head || page.home < head->begin)) {
        head = Range{page.home, free.end() - page.home};
      }
    }
    return head;
  }
  Bytes whole_of(Range free) const {
    Bytes whole;
    for (const auto& [id, page] : pages_.all()) {
      if (free.contains(page.range())) whole += page.size;
    }
    return whole;
  }

  // All that a row needs.
  void expect_legal(const StitchPlan& plan, Bytes size) {
    std::vector<Range> pieces = plan.front;
    if (plan.head) pieces.push_back(*plan.head);
    ASSERT_TRUE(!pieces.empty() || plan.create > 0_B);
    Bytes sum = plan.create;
    std::set<const Page*> seen;
    std::size_t mappings = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Range piece = pieces[i];
      ASSERT_GT(piece.size, 0_B);
      ASSERT_EQ(piece.size % kGrain, 0_B);
      ASSERT_TRUE(std::any_of(free_.begin(), free_.end(),
                              [&](Range free) { return free.contains(piece); }));
      for (std::size_t j = 0; j < i; ++j) {
        ASSERT_TRUE(piece.end() <= pieces[j].begin || pieces[j].end() <= piece.begin);
      }
      const bool is_head = plan.head && i + 1 == pieces.size();
      const bool first = i == 0 && !(is_head && plan.create > 0_B);
      const bool last = i + 1 == pieces.size() && (is_head || plan.create == 0_B);
      if (!first) {
        ASSERT_TRUE(begins_page(piece.begin)) << "piece " << i;
      }
      if (!last) {
        ASSERT_TRUE(ends_page(piece.end())) << "piece " << i;
      }
      for (const Page* const page : pages_of(piece)) {
        ASSERT_TRUE(seen.insert(page).second) << "page " << page->id.value << " is in it twice";
      }
      mappings += pages_of(piece).size();
      sum += piece.size;
    }
    ASSERT_EQ(plan.mappings(pages_), mappings);
    ASSERT_EQ(plan.create % terrain_.granularity, 0_B);
    ASSERT_GE(sum, size);
    if (plan.head || plan.create == 0_B) {
      ASSERT_EQ(sum, size);
    }
    ASSERT_LT(sum - size, terrain_.granularity);
    ASSERT_EQ(plan.is_one_piece(), plan.create == 0_B && pieces.size() == 1);
  }
  // No memory is created, and no more pieces are taken, than a search over all says.
  void expect_good(const StitchPlan& plan, Bytes size) {
    std::optional<Bytes> smallest_alone, smallest_pair;
    Bytes whole, most_tail, without_tail;
    const auto smaller = [](std::optional<Bytes>& best, Bytes bytes) {
      if (!best || bytes < *best) best = bytes;
    };
    for (const Range first : free_) {
      whole += whole_of(first);
      const std::optional<Range> tail = tail_of(first), own_head = head_of(first);
      if (tail && tail->size >= size) smaller(smallest_alone, tail->size);
      if (own_head && own_head->size >= size) smaller(smallest_alone, own_head->size);
      if (first.size >= size) smaller(smallest_alone, first.size);
      if (!tail) continue;
      most_tail = std::max(most_tail, tail->size);
      if (tail->size >= size) continue;
      for (const Range last : free_) {
        const std::optional<Range> head = head_of(last);
        if (last == first || !head || head->size + tail->size < size) continue;
        const std::set<const Page*> one = pages_of(*tail),
                                    other = pages_of({head->begin, size - tail->size});
        const bool meet = std::any_of(one.begin(), one.end(),
                                      [&](const Page* page) { return other.contains(page); });
        if (!meet) smaller(smallest_pair, tail->size + head->size);
      }
    }
    ASSERT_EQ(plan.is_one_piece(), smallest_alone.has_value());
    if (smallest_alone) return;
    if (smallest_pair) {
      ASSERT_EQ(plan.create, 0_B);
      ASSERT_EQ(plan.front.size(), 1u);
      ASSERT_TRUE(plan.head.has_value());
      Bytes taken = plan.front[0].size;
      for (const Range free : free_) {
        if (free.contains(*plan.head)) taken += head_of(free)->size;
      }
      ASSERT_EQ(taken, *smallest_pair);
      return;
    }
    if (whole >= size) {
      ASSERT_EQ(plan.create, 0_B) << "whole pages suffice";
    }
    // The largest end, and the whole pages of all other stretches: of equals, of any of them.
    for (const Range free : free_) {
      const std::optional<Range> tail = tail_of(free);
      if (tail && tail->size == most_tail) {
        without_tail = std::max(without_tail, whole - whole_of(free));
      }
    }
    Bytes least_whole = without_tail;
    for (const Range free : free_) {
      const std::optional<Range> tail = tail_of(free);
      if (tail && tail->size == most_tail)
        least_whole = std::min(least_whole, whole - whole_of(free));
    }
    const Bytes have = std::min(size, most_tail + least_whole);
    ASSERT_LE(plan.create, round_up(size - have, terrain_.granularity));
  }
  Kind kind_of(const StitchPlan& plan) const {
    if (plan.is_one_piece()) return kOnePiece;
    if (plan.create > 0_B) return plan.head ? kCreateAndHead : kCreate;
    return plan.front.size() + (plan.head ? 1 : 0) == 2 ? kPair : kMany;
  }

  const Terrain terrain_ = GetParam();
  std::mt19937_64 random_{terrain_.free_cells};
  TileIndex index_;
  HomePages pages_{index_};
  Address end_;
  std::vector<Range> free_;
};

TEST_P(StitchPlanModel, EveryPlanCanBeBuiltAndWastesNoFreeMemory) {
  std::array<int, kKinds> kinds{};
  for (int map = 0; map < 150; ++map) {
    make_pages();
    make_free();
    Bytes free;
    for (const Range range : free_) free += range.size;
    for (int i = 0; i < 20; ++i) {
      SCOPED_TRACE("map " + std::to_string(map) + ", request " + std::to_string(i));
      const std::uint64_t most = (free + 4_MiB) / kGrain;
      const Bytes size = i % 2 == 0 ? kCell * (1 + below(most / 256)) : kGrain * (1 + below(most));
      const StitchPlan plan = plan_stitch(size, free_, pages_, terrain_.granularity);
      ASSERT_NO_FATAL_FAILURE(expect_legal(plan, size));
      ASSERT_NO_FATAL_FAILURE(expect_good(plan, size));
      ++kinds[kind_of(plan)];
      // The order in which the stretches are named makes no difference.
      std::vector<Range> shuffled = free_;
      std::shuffle(shuffled.begin(), shuffled.end(), random_);
      const StitchPlan again = plan_stitch(size, shuffled, pages_, terrain_.granularity);
      ASSERT_EQ(again.front, plan.front);
      ASSERT_EQ(again.create, plan.create);
      ASSERT_EQ(again.head, plan.head);
    }
  }
  for (int kind = 0; kind < kKinds; ++kind) {
    EXPECT_GT(kinds[static_cast<std::size_t>(kind)], 3)
        << "kind " << kind << ": the free maps are not what they are meant to be";
  }
}

INSTANTIATE_TEST_SUITE_P(Terrains, StitchPlanModel,
                         testing::Values(Terrain{"pages_of_one_granule", 40, 1, 20, 12, 2_MiB},
                                         Terrain{"small_pages", 30, 3, 30, 10, 2_MiB},
                                         Terrain{"large_pages", 16, 12, 60, 40, 2_MiB},
                                         Terrain{"nearly_all_free", 20, 4, 200, 3, 2_MiB},
                                         Terrain{"little_free", 60, 1, 16, 40, 2_MiB},
                                         Terrain{"coarse_granularity", 24, 4, 40, 20, 8_MiB}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir
