// SPDX-License-Identifier: Apache-2.0
// Each invariant of addresses is broken, one at a time: chunks of the home row, what they know of
// their users, stitched rows, regions. validate() must name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "tests/unit/core_corruption_fixture.h"

namespace weir {
namespace {

using test::Corruption;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(Corruption, BinsHaveTheFreeChunksBySize) {
  ChunkBins& bins = TestAccess::bins(chunks());
  auto& filled = TestAccess::filled(bins);
  auto& first = TestAccess::first(bins);
  Chunk& free = chunk_that([](const Chunk& chunk) {
    return chunk.state == Chunk::State::free && chunk.previous == nullptr;
  });
  const std::uint64_t bin = TestAccess::bin_of(free.size);
  ASSERT_EQ(first[bin], &free);
  const std::uint64_t empty = 5;
  ASSERT_EQ(first[empty], nullptr);
  for (const std::uint64_t of : {bin, empty}) {
    expect_caught(
        filled[of / 64], [&](std::uint64_t& bits) { bits ^= std::uint64_t{1} << of % 64; },
        "bins: a bit is wrong");
  }
  expect_caught(
      first[empty], [&](Chunk*& chunk) { chunk = &free; }, "bins: a bit is wrong");
  expect_caught(
      first[empty], [&](Chunk*& chunk) { chunk = &free; }, "bins: a chunk of another size");
  expect_caught(
      free.size, [](Bytes& size) { size += 64_MiB; }, "bins: a chunk of another size");
  expect_caught(
      free.next, [&](Chunk*& next) { next = &free; }, "bins: more chunks than counted");  // a ring
  expect_caught(
      free.previous, [&](Chunk*& previous) { previous = &free; }, "bins: a list is linked wrong");
  expect_caught(
      first[bin], [](Chunk*& chunk) { chunk = nullptr; }, "bins: fewer chunks than counted");
  expect_caught(
      TestAccess::count(bins), [](std::size_t& count) { ++count; },
      "bins: fewer chunks than counted");
  expect_caught(
      TestAccess::count(bins), [](std::size_t& count) { --count; },
      "bins: more chunks than counted");
  expect_caught(
      free.state, [](Chunk::State& state) { state = Chunk::State::used; },
      "bins: a chunk that is not free");
}

TEST_F(Corruption, ChunksTileTheRow) {
  const std::string index = "chunks: the index by address is wrong";
  for (const auto change : {0, 1}) {
    std::vector<decltype(TestAccess::tables(chunks())[0]->filled)> filled;
    std::vector<decltype(TestAccess::tables(chunks())[0]->first)> first;
    auto& tables = TestAccess::tables(chunks());
    expect_caught_until(
        [&] {
          for (const auto& table : tables) {
            if (table == nullptr) continue;
            filled.push_back(table->filled);
            first.push_back(table->first);
            if (change == 0) table->filled = {};
            if (change == 1) table->first = {};
          }
        },
        [&] {
          std::size_t i = 0;
          for (const auto& table : tables) {
            if (table == nullptr) continue;
            table->filled = filled[i];
            table->first = first[i++];
          }
        },
        index);
  }
  Chunk& used = chunk_that([](const Chunk& chunk) {
    return chunk.state == Chunk::State::used && chunk.before != nullptr && chunk.after != nullptr;
  });
  expect_caught(
      used.begin, [](Address& at) { at = at + 1_GiB; }, index);
  const std::string linked = "chunks: they overlap, or are linked wrong";
  expect_caught(
      used.after->before, [](Chunk*& before) { before = before->before; }, linked);
  expect_caught(used.size, linked);
  expect_caught(
      used.size, [](Bytes& size) { size = 0_B; }, "chunks: one is empty");
}

TEST_F(Corruption, FreeNeighboursAreMerged) {
  Chunk& used = chunk_that([](const Chunk& chunk) {
    return chunk.state == Chunk::State::used && chunk.after != nullptr &&
           chunk.after->state == Chunk::State::free;
  });
  expect_caught(
      used.state, [](Chunk::State& state) { state = Chunk::State::free; },
      "chunks: neighbours of one state were not merged");
}

TEST_F(Corruption, FreeAndVacantChunksAreListed) {
  Chunk& used = chunk_of(Chunk::State::used);
  expect_caught(
      used.state, [](Chunk::State& state) { state = Chunk::State::free; },
      "chunks: the free ones are listed wrong");
  const std::string vacant = "chunks: the vacant ones are listed wrong";
  expect_caught(
      used.state, [](Chunk::State& state) { state = Chunk::State::vacant; }, vacant);
  Chunk*& first = TestAccess::vacant(chunks());
  expect_caught(
      first, [](Chunk*& chunk) { chunk = nullptr; }, vacant);
  expect_caught(
      first->next, [&](Chunk*& next) { next = first; }, vacant);  // a ring
  expect_caught(
      first, [&](Chunk*& chunk) { chunk = &used; }, "chunks: one listed as vacant is not");
}

TEST_F(Corruption, WhoUsedAChunkIsKnownByRanges) {
  FreedRanges& freed = freed_chunk().freed;
  FreedRange& first = *TestAccess::first(freed);
  expect_caught(
      first.end, [&](Address& end) { end = first.begin; }, "chunks: a freed range is empty");
  expect_caught(
      first.begin, [](Address& begin) { begin = begin - kGrain; },
      "chunks: a freed range lies beyond its chunk");
  expect_caught(
      TestAccess::last(freed)->end, [](Address& end) { end = end + 1_GiB; },
      "chunks: a freed range lies beyond its chunk");
  std::uint32_t& size = TestAccess::size(freed);
  expect_caught(
      size, [](std::uint32_t& count) { ++count; }, "chunks: fewer freed ranges than are counted");
  expect_caught(
      size, [](std::uint32_t& count) { --count; }, "chunks: more freed ranges than are counted");
  expect_caught(
      TestAccess::last(freed), [](FreedRange*& last) { last = nullptr; },
      "chunks: the last freed range is another one");
  expect_caught_until([&] { chunk_of(Chunk::State::vacant).freed = freed; },
                      [&] { chunk_of(Chunk::State::vacant).freed = {}; },
                      "chunks: what has no memory has users");

  Chunk& several = chunk_that([](const Chunk& chunk) {
    return chunk.state == Chunk::State::free && chunk.freed.size() > 1;
  });
  FreedRange& before = *TestAccess::first(several.freed);
  ASSERT_NE(before.next, nullptr);
  expect_caught(
      before.end, [&](Address& end) { end = before.next->begin + kGrain; },
      "chunks: freed ranges overlap");
}

// Else a look at a chunk would cost more and more.
TEST_F(Corruption, AChunkKnowsOfFewRanges) {
  Chunk& chunk = freed_chunk();
  const FreedRanges kept = chunk.freed;
  std::vector<FreedRange> many(FreedRanges::kMost + 2);
  ASSERT_GT(chunk.size, kGrain * many.size());
  for (std::size_t i = 0; i < many.size(); ++i) {
    many[i].begin = chunk.begin + kGrain * i;
    many[i].end = many[i].begin + kGrain;
    if (i > 0) many[i - 1].next = &many[i];
  }
  expect_caught_until(
      [&] {
        TestAccess::first(chunk.freed) = &many.front();
        TestAccess::last(chunk.freed) = &many.back();
        TestAccess::size(chunk.freed) = static_cast<std::uint32_t>(many.size());
      },
      [&] { chunk.freed = kept; }, "chunks: too many freed ranges");
}

TEST_F(Corruption, ChunksHaveMemoryExactlyWherePagesAreMapped) {
  const Chunk& vacant = chunk_of(Chunk::State::vacant);
  const Range range{vacant.begin + 64_MiB, 2_MiB};
  expect_caught_until([&] { chunks().fill(range); }, [&] { chunks().vacate(range); },
                      "chunks: one has no memory");
  const PageId id{9999};
  const auto add_at = [&](Address home) {
    return [&, home] { pages().add(id, PhysicalHandle{9999}, {home, 2_MiB}, HeapId{0}); };
  };
  const auto remove = [&] { pages().remove(TestAccess::all(pages()).at(id.value)); };
  expect_caught_until(add_at(range.begin), remove, "page 9999: mapped, yet vacant");
  expect_caught_until(add_at(vacant.end()), remove, "page 9999: mapped where no chunk is");
}

TEST_F(Corruption, AddressesAreThoseOfTheRegions) {
  auto& regions = TestAccess::regions(heap_);
  ASSERT_EQ(regions.size(), 2u);  // the home row's, and stitched rows'
  (void)used_row();
  const std::string row_name = last_row_;
  expect_caught(
      regions, [](auto& all) { all.erase(all.begin()); }, "chunks: one lies beyond all regions");
  expect_caught(
      regions, [](auto& all) { all.pop_back(); }, row_name + "beyond all regions");
  for (Range& region : regions) {
    const std::string name = "region at " + std::to_string(region.begin.value) +
                             ": its addresses are not those of the rows in it";
    expect_caught(region.size, name);
  }
  auto& vacant = TestAccess::vacant(rows());
  ASSERT_FALSE(vacant.empty());
  expect_caught(vacant.begin()->second, "region at " + std::to_string(regions[1].begin.value) +
                                            ": its addresses are not those of the rows in it");
}

TEST_F(Corruption, RowsHavePagesThatKnowThem) {
  StitchedRow& row = used_row();
  const std::string name = last_row_;
  ASSERT_EQ(row.pages.size(), 2u);
  expect_caught(
      row.begin, [](Address& begin) { begin = begin + kGrain; }, name + "found by another address");
  expect_caught(
      row.pages, [](auto& pages) { pages[1] = pages[0]; }, name + "has a page twice");
  expect_caught(
      row.pages[0]->rows, [](auto& rows) { rows.clear(); }, name + "a page of it does not know it");
  expect_caught(
      row.reserved, [](Bytes& reserved) { reserved = 8_MiB; }, name + "larger than its addresses");
  expect_caught(
      row.reserved, [](Bytes& reserved) { reserved += 1_GiB; }, "overlaps the one before");
  const std::string size = name + "its size is not that of its pages";
  expect_caught(row.size, size);
  expect_caught(row.lead, size);
  expect_caught(
      row.pages, [](auto& pages) { pages.clear(); }, size);
  Page& other = page_that([&](const Page& page) { return page.rows.empty(); });
  expect_caught(
      other.rows, [&](auto& rows) { rows.push_back(&row); },
      last_page_ + "in a row that does not have it");
  expect_caught(
      TestAccess::mappings(rows()), [](std::size_t& count) { ++count; },
      "stitched rows: mappings are counted wrong");
}

TEST_F(Corruption, IdleRowsAreFound) {
  StitchedRow& idle = idle_row();
  const std::string idle_name = last_row_;
  StitchedRow& used = used_row();
  const std::string used_name = last_row_;
  auto& listed = TestAccess::idle(rows());
  expect_caught(
      listed, [](auto& index) { index.clear(); }, idle_name + "idle, and not listed");
  expect_caught(
      idle.state, [](auto& state) { state = StitchedRow::State::used; },
      idle_name + "listed as idle, and is not");
  expect_caught(
      listed, [&](auto& index) { index.emplace(used.size, &used); },
      used_name + "listed as idle, and is not");
  expect_caught(
      listed, [&](auto& index) { index.emplace(77_MiB, &idle); },
      "stitched rows: the index of idle ones is wrong");
}

TEST_F(Corruption, VacantAddressesOfRowsAreNobodys) {
  auto& vacant = TestAccess::vacant(rows());
  expect_caught(
      vacant, [&](auto& all) { all[used_row().begin + 2_MiB] = 2_MiB; },
      "stitched rows: a row's addresses are vacant");
  const Address free = vacant.begin()->first;
  expect_caught(
      vacant, [&](auto& all) { all[free + 2_MiB] = 2_MiB; },
      "stitched rows: vacant addresses overlap");
  expect_caught(
      vacant.begin()->second, [](Bytes& size) { size = 0_B; },
      "stitched rows: vacant addresses overlap");
}

TEST_F(Corruption, ARetiredRowIsGoingToBeUnmapped) {
  StitchedRow& row = idle_row();
  const std::string text = last_row_ + "retired, and nobody is going to unmap it; or the reverse";
  auto& retired = TestAccess::rows_retired(heap_);
  expect_caught(
      retired, [&](auto& going) { going.push_back(&row); }, text);
  rows().retire(row);
  EXPECT_THAT(heap_.validate(), Contains(HasSubstr(text)));
  retired = {&row};
  EXPECT_THAT(heap_.validate(), IsEmpty());
  retired.clear();
  rows().free(row, {}, 0);
  EXPECT_THAT(heap_.validate(), IsEmpty());
}

TEST_F(Corruption, ARowIsUsedExactlyWhileARunIsThere) {
  StitchedRow& idle = idle_row();
  Page& page = page_that(
      [&](const Page& p) { return p.idle() && p.rows == std::vector<StitchedRow*>{&idle}; });
  ASSERT_TRUE(page.idle());
  const std::string in_used_row = last_page_ + "idle, in a row that is used";
  const auto use = [&] { rows().use(idle, 1); };
  const auto free = [&] { rows().free(idle, {}, 1); };
  expect_caught_until(use, free, in_used_row);
  expect_caught_until(use, free, "stitched rows: one is used, and nobody has it");

  StitchedRow& used = used_row();
  const std::string not_there = "run at " + std::to_string(Address::of(stitched_).value) +
                                ": its stitched row is not there, or not its own";
  expect_caught_until([&] { rows().free(used, {}, 1); }, [&] { rows().use(used, 1); }, not_there);
}

TEST_F(Corruption, RunsAreFoundByTheirAddresses) {
  AddressMap& addresses = TestAccess::addresses(heap_);
  const auto name = [](HeapId heap, Range run) {
    return "heap " + std::to_string(heap.value) + ": run at " + std::to_string(run.begin.value) +
           ": its addresses are another heap's, or nobody's";
  };
  const auto add = [&](Range run, HeapId heap) {
    return [&addresses, run, heap] { addresses.add_run(run, heap); };
  };
  const HeapId a{0}, b{1};
  for (void* const at : {large_[1], stitched_}) {
    const Range run = block(at).range();
    expect_caught_until(add(run, b), add(run, a), name(a, run));
  }
  const Range theirs = TestAccess::block(stream_heap(1), Address::of(theirs_)).range();
  expect_caught_until([&] { addresses.remove_run(theirs); }, add(theirs, b), name(b, theirs));
}

}  // namespace
}  // namespace weir
