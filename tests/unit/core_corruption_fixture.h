// A heap that has everything, for tests that break one invariant of it at a time.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "tests/unit/core_test_access.h"

namespace weir::test {

// Two streams' heaps: large blocks with free page ends before and behind them, slabs, aliases, idle
// pages that others used, fences, and timelines that waited for each other.
class Corruption : public CoreHeap {
 protected:
  void SetUp() override {
    for (int i = 0; i < 14; ++i) large_.push_back(allocate(heap_, 4_MiB, a_));
    for (std::size_t i = 0; i < 14; i += 2) free(heap_, large_[i]);
    theirs_ = allocate(heap_, 3_MiB, b_);
    idle_ = allocate(heap_, 4_MiB, b_);
    void* const split = allocate(heap_, 5_MiB, a_);  // two pages side by side: they have aliases
    middle_ = allocate(heap_, 3_MiB, a_);            // the rest of the second
    free(heap_, split);
    for (int i = 0; i < 3; ++i) small_.push_back(allocate(heap_, 9_KiB, a_));
    free(heap_, small_[1]);
    ASSERT_TRUE(device_.launch(b_, 1_ms).ok());
    ASSERT_TRUE(heap_.fence(idle_, c_).ok());
    ASSERT_TRUE(heap_.fence(middle_, b_).ok());
    free(heap_, idle_);
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

  PageTable& table() { return TestAccess::table(heap_); }
  Arena& arena(std::uint32_t heap) { return TestAccess::arena(heap_, HeapId{heap}); }
  // The record of a block of the first stream's, or of one that is at hand there.
  Block& block(void* at) { return TestAccess::block(stream_heap(0), Address::of(at)); }
  StreamHeap& stream_heap(std::size_t id) { return TestAccess::stream_heap(heap_, id); }
  // As its page lists it.
  Mapping& listed(const PageMapping& mapping) {
    for (Mapping& mine : TestAccess::pages(table()).at(mapping.page.value).mappings) {
      if (mine.at == mapping.at) return mine;
    }
    ADD_FAILURE() << "the page lists no such mapping";
    return TestAccess::pages(table()).at(mapping.page.value).mappings.front();
  }
  template <class Wanted>
  Page& page_that(Wanted&& wanted) {
    for (auto& [id, page] : TestAccess::pages(table())) {
      if (wanted(page)) {
        last_page_ = "page " + std::to_string(id) + ": ";
        last_id_ = PageId{id};
        return page;
      }
    }
    ADD_FAILURE() << "the heap has no such page";
    return TestAccess::pages(table()).begin()->second;
  }
  Page& leased_page() {
    return page_that([](const Page& page) { return page.lease == HeapId{0}; });
  }
  Page& part_used_page() {
    return page_that([](const Page& page) { return page.lease && page.used < page.size; });
  }
  Page& idle_page() {
    return page_that([](const Page& page) { return !page.lease; });
  }

  DeviceHeap heap_{device_, {.limit = 64_MiB}};
  std::vector<void*> large_, small_;
  void *middle_ = nullptr, *theirs_ = nullptr, *idle_ = nullptr;
  std::string last_page_;
  PageId last_id_;
};

}  // namespace weir::test
