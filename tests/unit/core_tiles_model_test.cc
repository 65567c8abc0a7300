// SPDX-License-Identifier: Apache-2.0
// Tiles against a model that keeps, for each unit of the row, whose it is and its last use, over
// random programs. Two rows share one index, and their regions may lie side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/memory/tile_index.h"
#include "core/memory/tiles.h"

namespace weir {
namespace {

using Kind = Tile::Kind;
using testing::IsEmpty;

constexpr std::uint32_t kStreams = 4;

// The latest point of each stream; 0: none.
using Fences = std::array<std::uint64_t, kStreams>;

void join(Fences& into, const FenceSet& fences) {
  for (const Fence fence : fences) {
    std::uint64_t& latest = into[fence.timeline.value];
    latest = std::max(latest, fence.sequence.value);
  }
}

struct Unit {
  Kind kind = Kind::vacant;
  std::uint64_t run = 0;  // used, or a part: a number for each request
  bool exact = true;      // the note says just this, as it was not joined with another
  bool was_used = false;  // free: since it was filled
  std::uint32_t by = 0;   // the last use
  std::uint64_t released = 0, freed_at = 0;
  Fences fences{};

  bool is_free() const { return kind == Kind::free; }
  bool is_taken() const { return kind == Kind::used || kind == Kind::part; }
};

struct Terrain {
  const char* name;
  Address begin;
  Bytes gap;  // between regions
  std::vector<Bytes> regions;
  Bytes unit;             // runs are made of these
  std::uint64_t page;     // in units
  std::uint64_t longest;  // of a run, in units
  int steps;
};

class TilesModel : public testing::TestWithParam<Terrain> {
 protected:
  static constexpr int kGone = -1;
  struct Region {
    Range range;
    std::size_t first, end;  // units
    int row = kGone;         // that has it
  };

  void SetUp() override {
    Address at = terrain_.begin;
    for (const Bytes size : terrain_.regions) {
      const std::size_t first = units_.size();
      for (Bytes offset; offset < size; offset += terrain_.unit) {
        at_.push_back(at + offset);
        region_of_.push_back(regions_.size());
        units_.emplace_back();
      }
      regions_.push_back({{at, size}, first, units_.size()});
      at = at + size + terrain_.gap;
    }
    for (Region& region : regions_) add(region);
  }

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  Range range(std::size_t first, std::size_t end) const {
    return {at_[first], terrain_.unit * (end - first)};
  }
  Region& region_of(std::size_t unit) { return regions_[region_of_[unit]]; }
  bool is_gone(std::size_t unit) { return region_of(unit).row == kGone; }
  Tiles& tiles_of(std::size_t unit) { return rows_[static_cast<std::size_t>(region_of(unit).row)]; }
  // Where what begins at `first` ends, as far as is() is true of it and its region goes.
  template <class Is>
  std::size_t end_of(std::size_t first, std::uint64_t most, Is&& is) {
    const std::size_t last = std::min(region_of(first).end, first + most);
    std::size_t end = first;
    while (end < last && is(units_[end])) ++end;
    return end;
  }

  void add(Region& region) {
    region.row = static_cast<int>(below(rows_.size()));
    index_.add_region(region.range);
    tiles_of(region.first).add_region(region.range);
  }
  void add_or_remove_region() {
    Region& region = regions_[below(regions_.size())];
    if (region.row == kGone) return add(region);
    tiles_of(region.first).remove_region(region.range.begin);
    index_.remove_region(region.range);
    region.row = kGone;
    std::fill(units_.begin() + static_cast<long>(region.first),
              units_.begin() + static_cast<long>(region.end), Unit{});
  }

  // Pages come and go whole, but not always alone.
  void fill() {
    const std::size_t first = below(units_.size() / terrain_.page) * terrain_.page;
    if (is_gone(first)) return;
    std::size_t end = end_of(first, terrain_.page * (1 + below(3)),
                             [](const Unit& unit) { return unit.kind == Kind::vacant; });
    end -= (end - first) % terrain_.page;
    if (end == first) return;
    tiles_of(first).fill(range(first, end));
    for (std::size_t i = first; i < end; ++i) units_[i].kind = Kind::free;
    note_joined(first);
  }
  void vacate() {
    const std::size_t first = below(units_.size() / terrain_.page) * terrain_.page;
    if (is_gone(first)) return;
    std::size_t end = end_of(first, terrain_.page * (1 + below(2)),
                             [](const Unit& unit) { return unit.is_free(); });
    end -= (end - first) % terrain_.page;
    if (end == first) return;
    tiles_of(first).vacate(range(first, end));
    for (std::size_t i = first; i < end; ++i) units_[i] = {};
  }
  void take() {
    std::size_t first = below(units_.size());
    if (!units_[first].is_free()) return;
    // Half of the runs begin where free bytes begin.
    if (below(2) == 0) first = begin_of_run(first);
    std::uint64_t most = 1 + below(terrain_.longest);
    if (below(3) == 0) most = std::max<std::uint64_t>(1, TileIndex::kSlab / terrain_.unit);
    const std::size_t end = end_of(first, most, [](const Unit& unit) { return unit.is_free(); });
    // Blocks are longer than a step; parts of rows may be of any size.
    const Range run = range(first, end);
    const Kind kind = run.size > TileIndex::kStep && below(4) != 0 ? Kind::used : Kind::part;
    Tiles& tiles = tiles_of(first);
    const Tile* const tile = tiles.take(tiles.run_around(run), run, kind);
    ASSERT_EQ(tile->range(), run);
    ASSERT_EQ(tile->kind, kind);
    ASSERT_FALSE(tile->uses) << "notes are forgotten";
    ++runs_;
    for (std::size_t i = first; i < end; ++i) {
      units_[i] = {};
      units_[i].kind = kind;
      units_[i].run = runs_;
    }
  }
  void release() {
    std::size_t first = below(units_.size());
    if (!units_[first].is_taken()) return;
    const std::uint64_t run = units_[first].run;
    while (first > region_of(first).first && units_[first - 1].run == run) --first;
    const std::size_t end =
        end_of(first, units_.size(), [&](const Unit& unit) { return unit.run == run; });
    if (below(3) == 0) ++point_;
    const auto by = static_cast<std::uint32_t>(below(kStreams));
    Tiles& tiles = tiles_of(first);
    Tile* const tile = tiles.at(at_[first]);
    const FenceSet fences = below(3) == 0 ? any_fences() : FenceSet{};
    tile->uses.join(fences);
    const Tile* const head = tiles.release(tile, {{by}, {point_}, ++requests_});
    for (std::size_t i = first; i < end; ++i) {
      Unit& unit = units_[i];
      unit.kind = Kind::free;
      unit.run = 0;
      unit.was_used = true;
      unit.by = by;
      unit.released = point_;
      unit.freed_at = requests_;
      join(unit.fences, fences);
    }
    ASSERT_EQ(head, tiles.run_around(range(first, end)));
    note_joined(first);
  }
  FenceSet any_fences() {
    FenceSet fences;
    for (std::uint64_t i = below(3); i > 0; --i) {
      fences.join({{static_cast<std::uint32_t>(below(kStreams))}, {1 + below(point_)}});
    }
    return fences;
  }
  void add_fences() {
    const std::size_t first = below(units_.size());
    if (is_gone(first)) return;
    const std::size_t end = end_of(first, 1 + below(64), [](const Unit&) { return true; });
    const FenceSet fences = any_fences();
    Tiles& tiles = tiles_of(first);
    // A tile that is named in part has them all.
    for (const Address edge : {at_[first], at_[end - 1]}) {
      const Range whole = tiles.at(edge)->range();
      for (std::size_t i = region_of(first).first; i < region_of(first).end; ++i) {
        if (whole.contains(range(i, i + 1)) && (i < first || i >= end)) units_[i].exact = false;
      }
    }
    tiles.add_fences(range(first, end), fences);
    for (std::size_t i = first; i < end; ++i) {
      if (units_[i].is_taken() || units_[i].was_used) join(units_[i].fences, fences);
    }
  }

  std::size_t begin_of_run(std::size_t unit) {
    while (unit > region_of(unit).first && units_[unit - 1].is_free()) --unit;
    return unit;
  }
  // Where a run may have had more notes than are kept apart.
  void note_joined(std::size_t unit) {
    if (tiles_of(unit).run_around(range(unit, unit + 1))->tiles < Tiles::kMost) return;
    for (std::size_t i = begin_of_run(unit); i < region_of(unit).end && units_[i].is_free(); ++i) {
      units_[i].exact = false;
    }
  }

  void compare() {
    std::array<std::size_t, 2> runs{}, vacant{};
    std::array<Bytes, 2> used{};
    for (const Tiles& tiles : rows_) ASSERT_THAT(tiles.validate(), IsEmpty());
    for (const Region& region : regions_) {
      expect_nothing_at(region.range.begin - 1_B);
      expect_nothing_at(region.range.end());
      expect_nothing_at(region.range.begin);
      if (region.row == kGone) continue;
      const auto row = static_cast<std::size_t>(region.row);
      for (std::size_t i = region.first; i < region.end; ++i) {
        const Unit& unit = units_[i];
        const std::size_t begin = i;
        const std::size_t end = end_of(i, units_.size(), [&](const Unit& next) {
          return next.kind == unit.kind && next.run == unit.run;
        });
        if (unit.is_taken()) used[row] += terrain_.unit * (end - i);
        runs[row] += unit.is_free() ? 1 : 0;
        vacant[row] += unit.kind == Kind::vacant ? 1 : 0;
        for (; i < end && !HasFatalFailure(); ++i) compare(i, range(begin, end));
        if (HasFatalFailure()) return;
        if (unit.is_free()) compare_visits(begin, end);
        --i;
      }
    }
    for (const std::size_t row : {0u, 1u}) {
      ASSERT_EQ(rows_[row].runs().count(), runs[row]);
      ASSERT_EQ(rows_[row].vacant().count(), vacant[row]);
      ASSERT_EQ(rows_[row].used(), used[row]);
      Address last;
      for (const Tile* at = rows_[row].first(); at != nullptr; at = rows_[row].after(at)) {
        ASSERT_LE(last, at->begin);
        last = at->end();
      }
    }
  }
  // Unless a region that is there lies around the address.
  void expect_nothing_at(Address address) {
    const bool inside = std::any_of(regions_.begin(), regions_.end(), [&](const Region& region) {
      return region.row != kGone && region.range.contains({address, 1_B});
    });
    ASSERT_EQ(index_.contains(address), inside);
    if (inside) return;
    for (const Tiles& tiles : rows_) ASSERT_EQ(tiles.at(address), nullptr);
    expect_not_found(address);
  }
  void expect_not_found(Address address) {
    const Tile* const found = index_.find(address);
    ASSERT_TRUE(found == nullptr || found->kind != Kind::used ||
                !found->range().contains({address, 1_B}));
  }
  // `whole`: the run, or what is vacant, around the unit.
  void compare(std::size_t i, Range whole) {
    const Unit& unit = units_[i];
    const Tiles& tiles = tiles_of(i);
    const Tile* const tile = tiles.at(at_[i]);
    const Address last = at_[i] + terrain_.unit - 1_B;
    ASSERT_NE(tile, nullptr) << "unit " << i;
    ASSERT_EQ(tile->kind, unit.kind) << "unit " << i;
    ASSERT_TRUE(tile->range().contains(range(i, i + 1)));
    ASSERT_EQ(tiles.at(last), tile);
    ASSERT_EQ(rows_[region_of(i).row == 0 ? 1 : 0].at(at_[i]), nullptr) << "the other row's";
    const Tile* const head = tiles.run_around(range(i, i + 1));
    if (unit.is_free()) {
      ASSERT_NE(head, nullptr) << "unit " << i;
      ASSERT_EQ(head->run_range(), whole);
      ASSERT_EQ(tiles.run_around(whole), head);
      ASSERT_EQ(tiles.run_around({whole.begin, whole.size + terrain_.unit}), nullptr);
      ASSERT_LE(head->tiles, Tiles::kMost);
      compare_note(unit, *tile);
    } else {
      ASSERT_EQ(head, nullptr);
      ASSERT_EQ(tile->range(), whole) << "unit " << i;
    }
    for (const Address address : {at_[i], last}) {
      if (unit.kind == Kind::used) {
        ASSERT_EQ(index_.find(address), tile) << "unit " << i;
      } else {
        expect_not_found(address);
      }
    }
  }
  void compare_note(const Unit& unit, const Tile& tile) {
    if (unit.exact) {
      ASSERT_EQ(tile.by != Tile::kNobody, unit.was_used);
    }
    (unit.exact ? exact_ : joined_) += 1;
    if (!unit.was_used) return;
    ASSERT_NE(tile.by, Tile::kNobody);
    ASSERT_GE(tile.freed_at, unit.freed_at);
    for (std::uint32_t taker = 0; taker <= kStreams; ++taker) {
      Fences waits{}, least = unit.fences;
      join(waits, tile.uses.fences());
      FenceSet of_note, of_unit;
      of_note.join({tile.by, tile.released});
      of_unit.join({{unit.by}, {unit.released}});
      if (tile.by.value != taker) join(waits, of_note);
      if (unit.by != taker) join(least, of_unit);
      if (unit.exact) {
        ASSERT_EQ(waits, least) << "stream " << taker;
      }
      for (std::uint32_t other = 0; other < kStreams; ++other) {
        if (other == taker) continue;  // its own work is ordered
        ASSERT_GE(waits[other], least[other]) << "stream " << taker;
      }
    }
  }
  // The notes of some of a run are those of the tiles there, and no others.
  void compare_visits(std::size_t begin, std::size_t end) {
    const std::size_t first = begin + below(end - begin);
    const std::size_t last = below(2) == 0 ? end : first + 1 + below(end - first);
    const Range some = range(first, last);
    const Tiles& tiles = tiles_of(begin);
    std::vector<const Tile*> there, visited;
    for (std::size_t i = first; i < last; ++i) {
      const Tile* const tile = tiles.at(at_[i]);
      if (there.empty() || there.back() != tile) there.push_back(tile);
    }
    const Tile* const head = tiles.run_around(some);
    ASSERT_TRUE(Tiles::visit_notes(head, some, [&](const Tile& tile) {
      visited.push_back(&tile);
      return true;
    }));
    ASSERT_THAT(visited, testing::UnorderedElementsAreArray(there));
    std::size_t left = there.size();
    ASSERT_FALSE(Tiles::visit_notes(head, some, [&](const Tile&) { return --left > 0; }));
    ASSERT_EQ(left, 0u);
  }

  const Terrain terrain_ = GetParam();
  std::mt19937_64 random_{terrain_.longest};
  TileIndex index_;
  std::array<Tiles, 2> rows_{Tiles{index_, {}}, Tiles{index_, {}}};
  std::vector<Region> regions_;
  std::vector<Unit> units_;
  std::vector<Address> at_;             // of each unit
  std::vector<std::size_t> region_of_;  // each unit
  std::uint64_t runs_ = 0, point_ = 1, requests_ = 0;
  std::uint64_t exact_ = 0, joined_ = 0;  // notes that were compared
};

TEST_P(TilesModel, AgreesWithEachUnitsKindAndLastUse) {
  for (int step = 0; step < terrain_.steps; ++step) {
    // The row fills, and empties, in turns.
    const bool fills = step / 1500 % 2 == 0;
    const std::uint64_t kind = below(64);
    if (kind < 3) {
      fill();
    } else if (kind == 3) {
      vacate();
    } else if (kind == 4 && regions_.size() > 1 && below(8) == 0) {
      add_or_remove_region();
    } else if (kind < 8) {
      add_fences();
    } else if (kind < (fills ? 48u : 14u)) {
      take();
    } else {
      release();
    }
    if (step % 16 == 0) compare();
    if (HasFatalFailure()) FAIL() << "at step " << step;
  }
  compare();
  EXPECT_GT(exact_, 10'000u) << "the program is not what it is meant to be";
  EXPECT_GT(joined_, 10'000u) << "the program is not what it is meant to be";
  for (Region& region : regions_) {
    if (region.row == kGone) continue;
    tiles_of(region.first).remove_region(region.range.begin);
    index_.remove_region(region.range);
    region.row = kGone;
  }
  compare();
}

constexpr Address kRow{(5_TiB).count};

INSTANTIATE_TEST_SUITE_P(
    Terrains, TilesModel,
    testing::Values(Terrain{"one_region", kRow + 2_MiB, 2_MiB, {64_MiB}, 64_KiB, 32, 24, 12'000},
                    Terrain{"regions_side_by_side_in_one_slot",
                            kRow + 2_MiB,
                            {},
                            {4_MiB, 2_MiB, 16_MiB, 2_MiB, 6_MiB, 2_MiB, 4_MiB},
                            64_KiB,
                            32,
                            40,
                            24'000},
                    Terrain{"regions_side_by_side_across_slots",
                            kRow + (TileIndex::kSlot - 6_MiB),
                            {},
                            {4_MiB, 8_MiB, 6_MiB, 2_MiB},
                            64_KiB,
                            32,
                            40,
                            12'000},
                    Terrain{
                        "many_short_parts", kRow, 2_MiB, {4_MiB, 4_MiB}, 16_KiB, 128, 3, 12'000},
                    Terrain{"large_pages", kRow, 4_MiB, {16_GiB, 4_GiB}, 64_MiB, 4, 30, 12'000}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir
