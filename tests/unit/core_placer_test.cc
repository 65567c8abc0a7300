// SPDX-License-Identifier: Apache-2.0
// Placer: where a request goes, by tables alone. Nothing is mapped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory/placer.h"
#include "tests/unit/core_timelines_fixture.h"

namespace weir {
namespace {

constexpr Address kRow{(1_TiB).count};

struct Case {
  std::string_view row;  // a sign a MiB: used (#), never used (.), or freed by another stream, just
                         // now (r) or long ago (o); pages end at each bar
  Bytes size;            // that is asked for
  std::string plan;
  Bytes peak{};   // the most ever in use; none: what is used, and the request
  Bytes limit{};  // none: there is none
  Create create = Create::may;
  ReusePolicy reuse = ReusePolicy::wait;
};

class PlacerTest : public test::TimelinesTest {
 protected:
  // What a page heap of these pages has.
  struct Heap {
    Heap(PlacerTest& test, std::string_view row, const PageRules& given)
        : rules(given),
          tables(index, {}, rules.granularity),
          reuse(tables, rules, test.timelines_, remote_work),
          placer(tables, rules, reuse, budget) {
      index.add_region({kRow, 1_GiB});
      tables.tiles.add_region({kRow, 1_GiB});
      tables.requests = 1000;
      tables.first = test.a_;
      add(row, test.b_);
    }
    void add(std::string_view row, TimelineId other) {
      Address at = kRow, page = kRow;
      std::uint32_t pages = 0;
      std::vector<std::pair<char, Range>> taken;
      for (const char sign : row) {
        if (sign != '|') {
          const bool again =
              !taken.empty() && taken.back().first == sign && taken.back().second.end() == at;
          if (!again) taken.push_back({sign, {at, 0_B}});
          taken.back().second.size += 1_MiB;
          at = at + 1_MiB;
        } else if (at > page) {
          const Range home{page, at - page};
          tables.tiles.fill(home);
          tables.pages.add(PageId{pages}, PhysicalHandle{pages + 1}, home, HeapId{0});
          ++pages;
          page = at;
        }
      }
      for (const auto& [sign, range] : taken) {
        if (sign == '.') continue;
        Tile* const tile =
            tables.tiles.take(tables.tiles.run_around(range), range, Tile::Kind::used);
        if (sign == '#') continue;
        tables.single_timeline = false;
        tables.tiles.release(tile, {other, {1}, sign == 'r' ? tables.requests - 1 : 1});
      }
      EXPECT_THAT(tables.tiles.validate(), testing::IsEmpty()) << row;
    }

    TileIndex index;
    PageRules rules;
    PageTables tables;
    RemoteWork remote_work{[](const FenceSet&) { return true; }};
    Reuse reuse;
    Budget budget{{}};
    Placer placer;
  };
  static PageRules rules(ReusePolicy reuse, bool plain = false) {
    return {.granularity = 2_MiB,
            .reuse = reuse,
            .most_mappings = 1000,
            .trusts_context = false,
            .plain = plain};
  }

  // The first plan that may be carried out.
  Plan plan(Heap& heap, Bytes size, Create create = Create::may, RequestKeys keys = {}) {
    Owner owner{nullptr, HeapId{0}, a_, fold_};
    Request request{.owner = owner, .size = size, .keys = keys, .create = create};
    heap.reuse.begin(request);
    for (const Placer::Step step : heap.placer.steps()) {
      Plan found = (heap.placer.*step)(request);
      if (found && (found.creates == 0_B || create != Create::never)) return found;
    }
    return {};
  }
  // In MiB.
  static std::string text(Bytes bytes) { return std::to_string(bytes / 1_MiB); }
  static std::string text(Range range) {
    return text(range.begin - kRow) + "-" + text(range.end() - kRow);
  }
  static std::string text(const Plan& plan) {
    switch (plan.way) {
      case Plan::Way::run:
        return "run " + text(plan.home);
      case Plan::Way::grow:
        return "grow " + text(plan.home) + " behind " + text(plan.behind);
      case Plan::Way::segment:
        return "segment of " + text(plan.creates);
      case Plan::Way::stitch: {
        std::string pieces = "stitch";
        for (const Range piece : plan.stitch->front) pieces += " " + text(piece);
        if (plan.stitch->create > 0_B) pieces += " new " + text(plan.stitch->create);
        if (plan.stitch->head) pieces += " " + text(*plan.stitch->head);
        return pieces;
      }
      default:
        return plan ? "another" : "none";
    }
  }
  void expect(const std::vector<Case>& cases, bool plain = false) {
    for (const Case& one : cases) {
      Heap heap(*this, one.row, rules(one.reuse, plain));
      heap.tables.peak_used = one.peak == 0_B ? heap.tables.tiles.used() + one.size : one.peak;
      heap.placer.set_limit(one.limit);
      EXPECT_EQ(text(plan(heap, one.size, one.create)), one.plan)
          << one.row << ", " << one.size.count / (1_MiB).count << " MiB";
    }
  }

  HeapFold fold_{observer_.fold(), HeapId{0}, sa_.id};
};

TEST_F(PlacerTest, ARequestGetsFreeBytesInOnePiece) {
  expect({
      {"|..##|", 2_MiB, "run 0-2"},
      {"|....|####|......|", 4_MiB, "run 0-4"},             // the smallest that fits
      {"|......|", 4_MiB, "run 2-6"},                       // a small request at the end,
      {"|....................|####|", 16_MiB, "run 4-20"},  // as far as a page goes
      {"|....................|####|", 17_MiB, "run 0-17"},
  });
}

TEST_F(PlacerTest, TheRowGrowsAsFarAsThatCostsNextToNothing) {
  expect({
      {"|####|", 4_MiB, "grow 4-8 behind 0"},
      {"|##..|", 4_MiB, "grow 4-6 behind 2"},
      {"|####|", 4_MiB, "none", {}, /*limit=*/6_MiB},
      {"|####|", 4_MiB, "grow 4-8 behind 0", {}, /*limit=*/8_MiB},
      {"|####|", 4_MiB, "none", {}, {}, Create::never},
      {"|..##|##..|", 4_MiB, "grow 8-10 behind 2", /*peak=*/16_MiB},
  });
}

TEST_F(PlacerTest, WhereGrowingCostsTooMuchPiecesAreStitched) {
  expect({
      {"|..##|##..|", 4_MiB, "stitch 6-8 0-2", 8_MiB},
      {"|..##|##..|", 4_MiB, "stitch 6-8 0-2", 16_MiB, {}, Create::never},
      {"|..##|##..|", 4_MiB, "stitch 6-8 0-2", 16_MiB, {}, Create::rather_not},
      {"|..##|####|", 4_MiB, "stitch new 2 0-2", 8_MiB},
      {"|..##|####|", 4_MiB, "none", 8_MiB, {}, Create::never},
      {"|####|####|", 4_MiB, "grow 8-12 behind 0", 8_MiB},  // no piece helps
  });
}

TEST_F(PlacerTest, RecentlyFreedMemoryOfOtherStreamsIsPassedOver) {
  using enum ReusePolicy;
  work(sb_, 100_ms);
  expect({
      {"|oooo|####|rrrr|", 4_MiB, "run 8-12", {}, {}, Create::may, wait},
      {"|oooo|####|rrrr|", 4_MiB, "run 0-4", {}, {}, Create::may, balanced},
      {"|rrrr|####|oooo|", 4_MiB, "run 8-12", {}, {}, Create::may, balanced},
      {"|rrrr|####|....|", 4_MiB, "run 8-12", {}, {}, Create::may, balanced},
      {"|rrrr|####|", 4_MiB, "grow 8-12 behind 0", 12_MiB, {}, Create::may, balanced},
      {"|rrrr|####|", 4_MiB, "run 0-4", 8_MiB, {}, Create::may, balanced},
      {"|rrrr|####|", 4_MiB, "run 0-4", {}, 8_MiB, Create::may, balanced},
      {"|rrrr|####|", 4_MiB, "none", {}, 8_MiB, Create::may, no_wait},
  });
}

TEST_F(PlacerTest, PlainMemoryIsNeitherStitchedNorSpared) {
  expect({{"|....|######|.....|", 4_MiB, "run 0-4"},
          {"|..##|", 2_MiB, "run 0-2"},
          {"|..##|##..|", 4_MiB, "segment of 4", 8_MiB},
          {"|..##|##..|", 3_MiB, "segment of 4"}},
         /*plain=*/true);
}

TEST_F(PlacerTest, ARequestThatIsRememberedGetsItsPlace) {
  Heap heap(*this, "|....|####|.....|", rules(ReusePolicy::wait));
  const RequestKeys keys{1, 2};
  EXPECT_EQ(text(plan(heap, 4_MiB, Create::may, keys)), "run 0-4");
  heap.placer.remember(keys, kRow + 8_MiB);
  EXPECT_EQ(text(plan(heap, 4_MiB, Create::may, keys)), "run 8-12");
  EXPECT_EQ(text(plan(heap, 6_MiB, Create::never, keys)), "stitch 0-4 8-10") << "it is not free";
  heap.placer.forget_places();
  EXPECT_EQ(text(plan(heap, 4_MiB, Create::may, keys)), "run 0-4");
}

TEST_F(PlacerTest, NewPagesSufficeAndAreMadeOfTheGranularity) {
  Heap heap(*this, "|####|", rules(ReusePolicy::wait));
  for (const Bytes peak : {4_MiB, 1_GiB, 100_GiB}) {
    heap.tables.peak_used = peak;
    for (const Bytes size : {1_MiB, 6_MiB, 100_MiB, 3_GiB}) {
      Bytes sum;
      for (const Bytes page : heap.placer.page_sizes(size, size)) {
        EXPECT_EQ(page % 2_MiB, 0_B);
        EXPECT_GT(page, 0_B);
        sum += page;
      }
      EXPECT_EQ(sum, round_up(size, 2_MiB));
    }
  }
}

}  // namespace
}  // namespace weir
