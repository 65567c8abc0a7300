// SPDX-License-Identifier: Apache-2.0
// A heap that has everything, for tests that break one invariant of it at a time.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "tests/unit/core_test_access.h"

namespace weir::test {

// Two streams' heaps: large blocks with free bytes between them that several streams freed, slabs,
// stitched rows, idle pages that others used, fences, and timelines that waited for each other.
class Corruption : public CoreHeap {
 protected:
  void SetUp() override {
    for (int i = 0; i < 14; ++i) large_.push_back(allocate(heap_, 4_MiB, a_));
    for (std::size_t i = 0; i < 14; i += 2) free(heap_, large_[i]);
    theirs_ = allocate(heap_, 3_MiB, b_);
    void* const idle = allocate(heap_, 4_MiB, b_);
    stitched_ = allocate(heap_, 7_MiB, a_);  // two pages that lie apart
    void* const unstitched = allocate(heap_, 6_MiB, a_);
    void* const middle = allocate(heap_, 1_MiB, a_);
    free(heap_, unstitched);
    for (int i = 0; i < 3; ++i) small_.push_back(allocate(heap_, 9_KiB, a_));
    free(heap_, small_[1]);
    ASSERT_TRUE(device_.launch(b_, 1_ms).ok());
    ASSERT_TRUE(heap_.fence(idle, c_).ok());
    ASSERT_TRUE(heap_.fence(middle, b_).ok());
    free(heap_, idle);
    // Timelines: c waits for a, and then has an event.
    Timelines& timelines = TestAccess::timelines(heap_);
    FenceSet point;
    point.join(timelines.now(timelines.of(a_)));
    ASSERT_TRUE(timelines.wait(timelines.of(c_), point).ok());
    ASSERT_TRUE(timelines.record(timelines.of(c_)).ok());
    ASSERT_TRUE(timelines.record(timelines.of(c_)).ok());
    ASSERT_THAT(heap_.validate(), testing::IsEmpty());
  }

  // With `member` changed, validate() says `text`; and nothing, once it is as it was.
  template <class Member, class Change>
  void expect_caught(Member& member, Change&& change, const std::string& text) {
    const Member kept = member;
    change(member);
    EXPECT_THAT(heap_.validate(), testing::Contains(testing::HasSubstr(text)));
    member = kept;
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
  }
  // The same for what cannot be copied.
  template <class Change, class Undo>
  void expect_caught_until(Change&& change, Undo&& undo, const std::string& text) {
    change();
    EXPECT_THAT(heap_.validate(), testing::Contains(testing::HasSubstr(text)));
    undo();
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
  }
  void expect_caught(Bytes& member, const std::string& text) {
    expect_caught(
        member, [](Bytes& bytes) { bytes += kGrain; }, text);
  }

  PageHeap& page_heap() { return TestAccess::pages(heap_); }
  HomePages& pages() { return TestAccess::home(heap_); }
  Chunks& chunks() { return TestAccess::chunks(heap_); }
  StitchedRows& rows() { return TestAccess::rows(heap_); }
  // The record of a block of the first stream's, or of one that is cached there.
  Block& block(void* at) { return TestAccess::block(stream_heap(0), Address::of(at)); }
  StreamHeap& stream_heap(std::size_t id) { return TestAccess::stream_heap(heap_, id); }

  // The first of them that is wanted.
  template <class Wanted>
  Chunk& chunk_that(Wanted&& wanted) {
    for (Chunk* chunk = chunks().first(); chunk != nullptr; chunk = chunk->after) {
      if (wanted(*chunk)) return *chunk;
    }
    ADD_FAILURE() << "the heap has no such chunk";
    return *chunks().first();
  }
  Chunk& chunk_of(Chunk::State state) {
    return chunk_that([&](const Chunk& chunk) { return chunk.state == state; });
  }
  // One with freed ranges.
  Chunk& freed_chunk() {
    return chunk_that([](const Chunk& chunk) {
      return chunk.state == Chunk::State::free && !chunk.freed.empty();
    });
  }
  template <class Wanted>
  Page& page_that(Wanted&& wanted) {
    for (auto& [id, page] : TestAccess::all(pages())) {
      if (!wanted(page)) continue;
      last_page_ = "page " + std::to_string(id) + ": ";
      return page;
    }
    ADD_FAILURE() << "the heap has no such page";
    return TestAccess::all(pages()).begin()->second;
  }
  Page& used_page() {
    return page_that([](const Page& page) { return !page.idle(); });
  }
  Page& part_used_page() {
    return page_that([](const Page& page) { return !page.idle() && page.used < page.size; });
  }
  Page& idle_page() {
    return page_that([](const Page& page) { return page.idle(); });
  }
  StitchedRow& row_of(StitchedRow::State state) {
    for (const auto& [begin, row] : TestAccess::all(rows())) {
      if (row->state != state) continue;
      last_row_ = "stitched row at " + std::to_string(begin.value) + ": ";
      return *row;
    }
    ADD_FAILURE() << "the heap has no such row";
    return *TestAccess::all(rows()).begin()->second;
  }
  StitchedRow& used_row() { return row_of(StitchedRow::State::used); }
  StitchedRow& idle_row() { return row_of(StitchedRow::State::idle); }

  DeviceHeap heap_{device_, {.limit = 64_MiB}};
  std::vector<void*> large_, small_;
  void *theirs_ = nullptr, *stitched_ = nullptr;
  std::string last_page_, last_row_;  // how validate() names what was last asked for
};

}  // namespace weir::test
