// SPDX-License-Identifier: Apache-2.0
// A heap that has everything, for tests that break one invariant of it at a time.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
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

  // Changes `member` until undo().
  template <class Member, class Value>
  void set(Member& member, Value value) {
    on_undo([&member, kept = Member(member)] { member = kept; });
    member = static_cast<Member>(std::move(value));
  }
  void on_undo(std::function<void()> step) { undo_.push_back(std::move(step)); }
  void undo() {
    for (; !undo_.empty(); undo_.pop_back()) undo_.back()();
  }
  // After a change validate() says `text`; and nothing, once it is undone.
  void expect_caught(const std::function<void()>& change, const std::string& text) {
    change();
    EXPECT_THAT(heap_.validate(), testing::Contains(testing::HasSubstr(text)));
    undo();
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
  }

  StreamHeap& stream_heap(std::size_t id) { return TestAccess::stream_heap(heap_, id); }
  PageTables& tables() { return TestAccess::tables(heap_); }
  // The run that the address lies in.
  Tile& run(const void* at) { return *TestAccess::pages(heap_).find_tile(Address::of(at)); }
  SmallTile& small(const void* at) { return *run(at).slab->tile_at(Address::of(at)); }

  // The first of them that is wanted.
  template <class Wanted>
  Tile& tile_that(Wanted&& wanted) {
    const Tile* tile = tables().tiles.first();
    while (tile != nullptr && !wanted(*tile)) tile = tables().tiles.after(tile);
    if (tile == nullptr) throw std::logic_error("the heap has no such tile");
    return *tables().tiles.at(tile->begin);
  }
  Tile& vacant_tile() {
    return tile_that([](const Tile& tile) { return tile.kind == Tile::Kind::vacant; });
  }
  // A free one that was used.
  Tile& freed_tile() {
    return tile_that([](const Tile& tile) { return tile.is_free() && tile.by != Tile::kNobody; });
  }
  Page& page_that(bool idle) {
    for (auto& [id, page] : tables().pages.all()) {
      if (page.idle() == idle) return page;
    }
    throw std::logic_error("the heap has no such page");
  }
  StitchedRow& row_of(StitchedRow::State state) {
    StitchedRow* found = nullptr;
    tables().rows.visit_all([&](StitchedRow& row) {
      if (row.state == state) found = &row;
    });
    if (found == nullptr) throw std::logic_error("the heap has no such row");
    return *found;
  }

  DeviceHeap heap_{device_, {.limit = 64_MiB}};
  std::vector<void*> large_, small_;
  void *theirs_ = nullptr, *stitched_ = nullptr;
  std::vector<std::function<void()>> undo_;
};

}  // namespace weir::test
