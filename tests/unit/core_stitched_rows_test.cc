// SPDX-License-Identifier: Apache-2.0
// StitchedRows: addresses at which pages from several places stand side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/memory/home_pages.h"
#include "core/memory/stitched_rows.h"

namespace weir {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Not;

using State = StitchedRow::State;

constexpr HeapId kA{0};
constexpr Address kHome{(1_TiB).count}, kRegion{(2_TiB).count};
constexpr Bytes kGap = StitchedRows::kGap;

class StitchedRowsTest : public testing::Test {
 protected:
  void SetUp() override { index_.add_region({kHome, 64_GiB}); }
  // Pages with a gap between them: a row's parts are then never side by side at home.
  Page& page(Bytes size) {
    const PageId id{next_id_++};
    const Range home{next_, size};
    next_ = home.end() + 2_MiB;
    return pages_.add(id, PhysicalHandle{id.value}, home, kA);
  }
  StitchedRow& row(const std::vector<Page*>& pages, Bytes lead = {}) {
    Bytes size;
    for (const Page* const each : pages) size += each->size;
    if (!rows_.has_room(size)) add_region(rows_.region_for(size));
    StitchedRow& row = rows_.add(size, kA);
    for (Page* const each : pages) rows_.append(row, *each);
    rows_.finish(row, lead);
    return row;
  }
  Range add_region(Bytes size) {
    const Range region{next_region_, size};
    next_region_ = region.end();
    rows_.add_region(region);
    return region;
  }
  void take_apart(StitchedRow& row) {
    if (row.state == State::idle) rows_.retire(row);
    while (!row.pages.empty()) rows_.drop_last(row);
    rows_.remove(row);
  }
  // Idle ones.
  std::vector<StitchedRow*> fitting(Bytes bytes, Bytes most) {
    std::vector<StitchedRow*> found;
    rows_.idle().visit_fitting(bytes, [&](StitchedRow& row) {
      if (row.fits(bytes) && row.size <= most) found.push_back(&row);
      return true;
    });
    return found;
  }
  // As whoever has a run in it.
  void use(StitchedRow& row, std::uint64_t now) {
    rows_.use(row, now);
    row.tile = &tile_;
  }
  void TearDown() override { EXPECT_THAT(rows_.validate(), IsEmpty()); }

  TileIndex index_;
  HomePages pages_{index_};
  StitchedRows rows_;
  Tile tile_;
  Address next_ = kHome, next_region_ = kRegion;
  std::uint32_t next_id_ = 0;
};

// Rows of random pages come and go: their addresses never overlap, and all that is found is right.
TEST_F(StitchedRowsTest, AgreesWithAListOfAllRowsOverRandomPrograms) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<Page*> pages;
    for (int i = 0; i < 12; ++i) pages.push_back(&page(2_MiB * (1 + random() % 8)));
    std::vector<StitchedRow*> all;
    for (int step = 0; step < 500; ++step) {
      const std::uint64_t kind = random() % 8;
      if (all.empty() || kind < 3) {
        std::shuffle(pages.begin(), pages.end(), random);
        const std::vector<Page*> some(pages.begin(), pages.begin() + 1 + random() % 6);
        const Bytes lead = some.size() > 1 ? kGrain * (random() % (some[0]->size / kGrain)) : 0_B;
        all.push_back(&row(some, lead));
      } else {
        std::swap(all[random() % all.size()], all.back());
        StitchedRow& any = *all.back();
        if (any.state == State::used) {
          rows_.free(any, {}, static_cast<std::uint64_t>(step));
        } else if (kind < 6) {
          use(any, static_cast<std::uint64_t>(step));
        } else {
          take_apart(any);
          all.pop_back();
        }
      }
      ASSERT_THAT(rows_.validate(), IsEmpty());
      ASSERT_EQ(rows_.count(), all.size());
      std::map<Address, Bytes> mapped;
      for (StitchedRow* const each : all) {
        Bytes size;
        for (const Page* const of_row : each->pages) size += of_row->size;
        mapped[each->begin] = size;
        ASSERT_EQ(rows_.at(each->run()), each);
        ASSERT_EQ(rows_.around(each->begin + size - 1_B), each);
      }
      for (auto at = mapped.begin(); at != mapped.end() && std::next(at) != mapped.end(); ++at) {
        ASSERT_LE(at->first + at->second + kGap, std::next(at)->first);
      }
      const Bytes bytes = kGrain * (1 + random() % (40_MiB / kGrain)), most = bytes * 2;
      const std::vector<StitchedRow*> found = fitting(bytes, most);
      for (StitchedRow* const each : all) {
        const bool fits = each->state == State::idle && each->fits(bytes) && each->size <= most;
        ASSERT_THAT(found, fits ? testing::Matcher<std::vector<StitchedRow*>>(Contains(each))
                                : Not(Contains(each)));
      }
      for (StitchedRow* const each : found) {
        std::size_t pages_used = 0;
        Bytes sum;
        each->visit_parts(bytes, [&](Range home) {
          ++pages_used;
          sum += home.size;
          return true;
        });
        ASSERT_EQ(pages_used, each->pages.size());
        ASSERT_EQ(sum, bytes);
      }
    }
    while (!all.empty()) {
      if (all.back()->state == State::used) rows_.free(*all.back(), {}, 0);
      take_apart(*all.back());
      all.pop_back();
    }
    EXPECT_EQ(rows_.mappings(), 0u);
  }
}

}  // namespace
}  // namespace weir
