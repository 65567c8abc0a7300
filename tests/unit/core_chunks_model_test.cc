// SPDX-License-Identifier: Apache-2.0
// Chunks against a model that keeps, for each grain of the row, its state and its last use, over
// random programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/memory/chunks.h"
#include "tests/unit/core_last_use.h"

namespace weir {
namespace {

using State = Chunk::State;
using testing::IsEmpty;

constexpr std::uint32_t kStreams = 4;

struct Grain {
  State state = State::vacant;
  std::uint64_t run = 0;  // used: whose, a number for each request
  bool was_used = false;  // free: since it was filled
  std::uint32_t by = 0;   // the last use
  std::uint64_t released = 0, freed_at = 0;
  Fences fences;

  Fences waits(std::uint32_t taker) const {
    if (!was_used) return {};
    Fences all = fences;
    if (by != taker) join(all, {{by, released}});
    return all;
  }
};

struct Terrain {
  const char* name;
  std::vector<Bytes> regions;  // each is followed by a gap of a page
  Bytes unit;                  // runs are made of these, pages of 32
  std::uint64_t longest;       // of a run, in units
  // Chunks get few enough ranges, and fences to whole ones: what is known of a grain is exact.
  bool exact;
  int steps;
};

class ChunksModel : public testing::TestWithParam<Terrain> {
 protected:
  static constexpr std::uint64_t kPage = 32;  // in units
  static constexpr Address kRow{(5_TiB).count + (2_MiB).count};

  void SetUp() override {
    Address at = kRow;
    for (const Bytes size : terrain_.regions) {
      chunks_.add_region({at, size});
      regions_.push_back(grains_.size());
      for (Bytes offset; offset < size; offset += terrain_.unit) {
        at_.push_back(at + offset);
        grains_.emplace_back();
      }
      at = at + size + terrain_.unit * kPage;
    }
    regions_.push_back(grains_.size());
  }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  Range range(std::uint64_t first, std::uint64_t end) const {
    return {at_[first], terrain_.unit * (end - first)};
  }
  bool is_region_end(std::uint64_t unit) const {
    return std::find(regions_.begin(), regions_.end(), unit) != regions_.end();
  }
  // How far from `first` on all is as it says, in units: not from one region into another.
  template <class Is>
  std::uint64_t stretch(std::uint64_t first, std::uint64_t most, Is&& is) const {
    std::uint64_t end = first;
    while (end < first + most && (end == first || !is_region_end(end)) && is(grains_[end])) ++end;
    return end - first;
  }

  // Pages come and go whole, but not always alone.
  void fill() {
    const std::uint64_t first = below(grains_.size() / kPage) * kPage;
    const std::uint64_t length = stretch(first, kPage * (1 + below(3)),
                                         [](const Grain& g) { return g.state == State::vacant; });
    const std::uint64_t end = first + length / kPage * kPage;
    if (end == first || would_join_ranges(first)) return;
    chunks_.fill(range(first, end));
    for (std::uint64_t i = first; i < end; ++i) {
      grains_[i] = {};
      grains_[i].state = State::free;
    }
  }
  void vacate() {
    const std::uint64_t first = below(grains_.size() / kPage) * kPage;
    const std::uint64_t length = stretch(first, kPage * (1 + below(2)),
                                         [](const Grain& g) { return g.state == State::free; });
    const std::uint64_t end = first + length / kPage * kPage;
    if (end == first) return;
    chunks_.vacate(range(first, end));
    for (std::uint64_t i = first; i < end; ++i) grains_[i] = {};
  }
  void use() {
    std::uint64_t first = below(grains_.size());
    // Half of the runs begin where free bytes begin.
    const auto is_free = [&](std::uint64_t i) { return grains_[i].state == State::free; };
    if (below(2) == 0) {
      while (first > 0 && is_free(first) && is_free(first - 1) && !is_region_end(first)) --first;
    }
    const std::uint64_t length = stretch(first, 1 + below(terrain_.longest),
                                         [](const Grain& g) { return g.state == State::free; });
    if (length == 0) return;
    chunks_.use(range(first, first + length));
    ++runs_;
    for (std::uint64_t i = first; i < first + length; ++i) {
      grains_[i] = {};
      grains_[i].state = State::used;
      grains_[i].run = runs_;
    }
  }
  void release() {
    std::uint64_t first = below(grains_.size());
    if (grains_[first].state != State::used) return;
    const std::uint64_t run = grains_[first].run;
    while (first > 0 && grains_[first - 1].run == run) --first;
    const std::uint64_t length =
        stretch(first, grains_.size(), [&](const Grain& g) { return g.run == run; });
    if (would_join_ranges(first)) return;
    if (below(3) == 0) ++point_;
    const auto by = static_cast<std::uint32_t>(below(kStreams));
    const FenceSet fences = below(3) == 0 ? any_fences() : FenceSet{};
    chunks_.release(range(first, first + length), {{by}, {{by}, {point_}}, fences, ++requests_});
    for (std::uint64_t i = first; i < first + length; ++i) {
      Grain& grain = grains_[i];
      grain.state = State::free;
      grain.run = 0;
      grain.was_used = true;
      grain.by = by;
      grain.released = point_;
      grain.freed_at = requests_;
      join(grain.fences, fences_of(fences));
    }
  }
  FenceSet any_fences() {
    FenceSet fences;
    for (std::uint64_t i = below(3); i > 0; --i) {
      fences.join({{static_cast<std::uint32_t>(below(kStreams))}, {1 + below(point_)}});
    }
    return fences;
  }
  // In the exact program no free chunk is to have more ranges than it keeps apart: would it, if the
  // chunk of `unit` were free?
  bool would_join_ranges(std::uint64_t unit) const {
    const Chunk* const chunk = chunks_.at(at_[unit]);
    std::uint32_t ranges = 1;
    for (const Chunk* const near : {chunk->before, chunk->after}) {
      if (near != nullptr) ranges += near->freed.size();
    }
    return terrain_.exact && ranges > FreedRanges::kMost;
  }
  void add_fences() {
    std::uint64_t first = below(grains_.size());
    std::uint64_t end = std::min<std::uint64_t>(grains_.size(), first + 1 + below(kPage * 2));
    if (terrain_.exact) {
      // What one request used is named as a whole.
      const Grain& grain = grains_[first];
      if (grain.state == State::vacant || (grain.state == State::free && !grain.was_used)) return;
      const Chunk* const chunk = chunks_.at(at_[first]);
      Range whole = chunk->range();
      if (grain.state == State::free) {
        chunk->freed.visit({at_[first], terrain_.unit}, [&](const FreedRange& freed) {
          whole = freed.range();
          return true;
        });
      }
      while (first > 0 && at_[first] > whole.begin) --first;
      end = first + whole.size / terrain_.unit;
    }
    const FenceSet fences = any_fences();
    const Range named{at_[first], at_[end - 1] + terrain_.unit - at_[first]};
    chunks_.add_fences(named, fences);
    for (std::uint64_t i = first; i < end; ++i) {
      if (grains_[i].state == State::used || grains_[i].was_used) {
        join(grains_[i].fences, fences_of(fences));
      }
    }
  }

  void compare() {
    ASSERT_THAT(chunks_.validate(), IsEmpty());
    std::size_t chunks = 0, expected = 0;
    for (const Chunk* at = chunks_.first(); at != nullptr; at = at->after) ++chunks;
    for (std::uint64_t i = 0; i < grains_.size(); ++i) {
      const Grain& grain = grains_[i];
      const bool begins = is_region_end(i) || i == 0 || grains_[i - 1].state != grain.state ||
                          grains_[i - 1].run != grain.run;
      expected += begins ? 1 : 0;
      const Chunk* const chunk = chunks_.at(at_[i]);
      ASSERT_NE(chunk, nullptr);
      ASSERT_EQ(chunk->state, grain.state) << "unit " << i;
      ASSERT_EQ(chunk->begin == at_[i], begins) << "unit " << i;
      ASSERT_EQ(chunks_.is_free(range(i, i + 1)), grain.state == State::free);
      ASSERT_EQ(chunks_.at(at_[i] + terrain_.unit - 1_B), chunk);
      if (grain.state == State::free) compare_use(i);
      if (HasFatalFailure()) return;
    }
    ASSERT_EQ(chunks, expected);
    for (std::size_t i = 1; i < regions_.size(); ++i) {
      ASSERT_EQ(chunks_.at(at_[regions_[i] - 1] + terrain_.unit), nullptr) << "behind a region";
    }
  }
  void compare_use(std::uint64_t unit) {
    const Grain& grain = grains_[unit];
    std::vector<const FreedRange*> found;
    chunks_.visit_freed(range(unit, unit + 1), [&](const FreedRange& freed) {
      found.push_back(&freed);
      return true;
    });
    ASSERT_LE(found.size(), 1u);
    if (terrain_.exact) {
      ASSERT_EQ(found.size() == 1, grain.was_used) << "unit " << unit;
    }
    if (!grain.was_used) return;
    ASSERT_EQ(found.size(), 1u) << "unit " << unit;
    ASSERT_GE(found[0]->use.freed_at, grain.freed_at);
    for (std::uint32_t taker = 0; taker <= kStreams; ++taker) {
      FenceSet all;
      collect(found[0]->use, {taker}, all);
      Fences waits = fences_of(all);
      const Fences least = grain.waits(taker);
      if (terrain_.exact) {
        ASSERT_EQ(waits, least) << "unit " << unit << ", stream " << taker;
      }
      for (const auto& [timeline, sequence] : least) {
        if (timeline == taker && !terrain_.exact) continue;
        ASSERT_GE(waits[timeline], sequence) << "unit " << unit << ", stream " << taker;
      }
    }
    most_ranges_ = std::max(most_ranges_, chunks_.at(at_[unit])->freed.size());
  }

  const Terrain terrain_ = GetParam();
  std::mt19937_64 random_{terrain_.longest};
  Chunks chunks_;
  std::vector<Grain> grains_;
  std::vector<Address> at_;             // of each unit
  std::vector<std::uint64_t> regions_;  // the units where one begins; and the end
  std::uint64_t runs_ = 0, point_ = 1, requests_ = 0;
  std::uint32_t most_ranges_ = 0;
};

TEST_P(ChunksModel, AgreesWithEachGrainsStateAndLastUse) {
  for (int step = 0; step < terrain_.steps; ++step) {
    // The row fills, and empties, in turns.
    const bool fills = step / 1500 % 2 == 0;
    const std::uint64_t kind = below(64);
    if (kind < 3) {
      fill();
    } else if (kind == 3) {
      vacate();
    } else if (kind < 8) {
      add_fences();
    } else if (kind < (fills ? 48u : 14u)) {
      use();
    } else {
      release();
    }
    if (step % 16 == 0) compare();
    if (HasFatalFailure()) FAIL() << "at step " << step;
  }
  compare();
  if (terrain_.exact) {
    EXPECT_GT(most_ranges_, 6u) << "the program is not what it is meant to be";
  } else {
    EXPECT_EQ(most_ranges_, FreedRanges::kMost) << "the program is not what it is meant to be";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Terrains, ChunksModel,
    testing::Values(Terrain{"one_region_exactly", {64_MiB}, 64_KiB, 24, true, 12'000},
                    Terrain{
                        "three_regions_exactly", {4_MiB, 16_MiB, 6_MiB}, 64_KiB, 60, true, 12'000},
                    Terrain{"many_short_runs", {256_KiB}, 512_B, 3, false, 12'000},
                    Terrain{"runs_of_all_lengths", {32_MiB, 32_MiB}, 64_KiB, 40, false, 12'000},
                    Terrain{"large_pages", {16_GiB, 4_GiB}, 64_MiB, 30, false, 12'000}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir
