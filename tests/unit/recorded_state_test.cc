// SPDX-License-Identifier: Apache-2.0
// Events that are missing show in others: what comes out could have been.
#include "observe/recorded_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/recording_fixture.h"

namespace weir {
namespace {

using test::allocated;
using test::freed;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RecordedStateTest : public ::testing::Test {
 protected:
  // The kinds and addresses (or pages) of what comes out.
  std::vector<std::string> accept(const Event& event) {
    std::vector<std::string> out;
    state_.accept(event, [&](const Event& each) {
      EXPECT_EQ(each.time, event.time);
      const std::uint64_t what = each.address == Address{} ? each.page.value : each.address.value;
      out.push_back(std::string(name_of(each.kind)) + " " + std::to_string(what));
    });
    return out;
  }
  static Event page(EventKind kind, std::uint32_t id) {
    return {.kind = kind, .page = {id}, .bytes = 2_MiB};
  }
  static Event mapping(EventKind kind, std::uint32_t id, std::uint64_t at) {
    Event event = page(kind, id);
    event.address = Address{at};
    return event;
  }
  RecordedState state_;
};

TEST_F(RecordedStateTest, ABlockInThePlaceOfLiveOnesEndsThem) {
  (void)accept(allocated(4096, 1024_B, 1_ns, 1));
  (void)accept(allocated(8192, 1024_B, 1_ns, 1));
  EXPECT_THAT(accept(allocated(4608, 8192_B, 2_ns, 1)),
              ElementsAre("deallocate 4096", "deallocate 8192", "allocate 4608"));
  EXPECT_EQ(state_.repaired(), 1u);
}

TEST_F(RecordedStateTest, APageOfNoBytesIsNone) {
  for (const EventKind kind : {EventKind::create, EventKind::map, EventKind::lease}) {
    Event nothing = mapping(kind, 3, 1 << 21);
    nothing.bytes = 0_B;
    EXPECT_THAT(accept(nothing), IsEmpty()) << name_of(kind);
  }
  EXPECT_EQ(state_.repaired(), 3u);
  EXPECT_THAT(accept(page(EventKind::create, 3)), ElementsAre("create 3"));
  EXPECT_THAT(accept(mapping(EventKind::map, 3, 0)), IsEmpty());
  Event half = mapping(EventKind::map, 3, 1 << 21);
  half.bytes = 1_MiB;
  EXPECT_THAT(accept(half), IsEmpty()) << "a mapping is of the whole page";
  EXPECT_EQ(state_.repaired(), 5u);
}

TEST_F(RecordedStateTest, OnlyWhatDidNotFitAsItWasCounts) {
  (void)accept(page(EventKind::create, 3));
  (void)accept(mapping(EventKind::map, 3, 1 << 21));
  (void)accept(page(EventKind::lease, 3));
  EXPECT_THAT(accept(page(EventKind::unlease, 3)), ElementsAre("unlease 3"));
  EXPECT_EQ(state_.repaired(), 0u);
  EXPECT_THAT(accept(page(EventKind::unlease, 3)), IsEmpty()) << "it is leased no more";
  EXPECT_EQ(state_.repaired(), 1u);
  (void)accept(mapping(EventKind::unmap, 3, 1 << 21));
  EXPECT_THAT(accept(page(EventKind::release, 3)), ElementsAre("release 3"));
  EXPECT_EQ(state_.repaired(), 1u);
  (void)accept(page(EventKind::create, 3));
  (void)accept(page(EventKind::lease, 3));
  EXPECT_THAT(accept(page(EventKind::lease, 3)), ElementsAre("unlease 3", "lease 3"));
  EXPECT_EQ(state_.repaired(), 2u);
  EXPECT_THAT(accept(page(EventKind::release, 3)), ElementsAre("unlease 3", "release 3"));
  EXPECT_EQ(state_.repaired(), 3u);
  for (const std::uint64_t at : {1 << 21, 1 << 22}) (void)accept(mapping(EventKind::map, 4, at));
  EXPECT_EQ(state_.repaired(), 4u) << "the page was not there before its first mapping";
  EXPECT_THAT(accept(page(EventKind::release, 4)),
              ElementsAre("unmap 2097152", "unmap 4194304", "release 4"));
  EXPECT_EQ(state_.repaired(), 5u);
}

// What is known of the block stands.
TEST_F(RecordedStateTest, ADeallocationThatContradictsItsAllocationIsMadeToFit) {
  Event block = allocated(4096, 1000_B, 1_ns, 1);
  block.stack = 9;
  Event others[4];
  for (Event& other : others) other = freed(block, 2_ns);
  others[0].bytes = 2_KiB;
  others[1].requested = 999_B;
  others[2].stream = 2;
  others[3].heap = {5};
  std::uint64_t repaired = 0;
  for (const Event& other : others) {
    (void)accept(block);
    std::vector<std::string> out;
    state_.accept(other, [&](const Event& each) { out.push_back(test::text_of(each)); });
    EXPECT_THAT(out, ElementsAre(test::text_of(freed(block, 2_ns))));
    EXPECT_EQ(state_.repaired(), ++repaired);
  }
  (void)accept(block);
  (void)accept(freed(block, 2_ns));
  EXPECT_EQ(state_.repaired(), repaired);
  EXPECT_THAT(state_.as_events(3_ns), IsEmpty());
}

TEST_F(RecordedStateTest, APageIsLentUntilItIsKept) {
  Event lent = page(EventKind::create, 3);
  lent.pool = 7;
  (void)accept(lent);
  EXPECT_EQ(state_.as_events(1_ns).at(0).pool, 7U);
  EXPECT_THAT(accept(page(EventKind::keep, 3)), ElementsAre("keep 3"));
  EXPECT_EQ(state_.as_events(1_ns).at(0).pool, 0U);
  EXPECT_THAT(accept(page(EventKind::keep, 3)), IsEmpty()) << "it is the borrower's own";
  EXPECT_EQ(state_.repaired(), 1u);
}

TEST_F(RecordedStateTest, OnlyAMappingThatIsThereAndOfThePageEnds) {
  (void)accept(mapping(EventKind::map, 3, 1 << 21));
  (void)accept(page(EventKind::create, 4));
  EXPECT_THAT(accept(mapping(EventKind::unmap, 4, 1 << 21)), IsEmpty());
  EXPECT_THAT(accept(mapping(EventKind::unmap, 3, 1 << 22)), IsEmpty());
  EXPECT_EQ(state_.repaired(), 3u);  // and the page that was mapped before it was there
  EXPECT_THAT(accept(mapping(EventKind::unmap, 3, 1 << 21)), ElementsAre("unmap 2097152"));
}

TEST_F(RecordedStateTest, TwoMappingsDoNotOverlap) {
  (void)accept(mapping(EventKind::map, 3, 1 << 21));
  EXPECT_THAT(accept(mapping(EventKind::map, 4, (1 << 21) + 4096)),
              ElementsAre("create 4", "unmap 2097152", "map 2101248"));
}

TEST_F(RecordedStateTest, PoolsOpenOnceAndCapturesDoNotNest) {
  EXPECT_THAT(accept({.kind = EventKind::pool_close, .pool = 1}), IsEmpty());
  EXPECT_THAT(accept({.kind = EventKind::pool_open, .pool = 1}), ElementsAre("pool_open 0"));
  EXPECT_THAT(accept({.kind = EventKind::pool_open, .pool = 1}), IsEmpty());
  EXPECT_THAT(accept({.kind = EventKind::capture_begin, .pool = 1}),
              ElementsAre("capture_begin 0"));
  EXPECT_THAT(accept({.kind = EventKind::capture_begin, .pool = 1}), IsEmpty());
  EXPECT_THAT(accept({.kind = EventKind::capture_end, .pool = 2}), IsEmpty());
  EXPECT_EQ(state_.repaired(), 4u);
  EXPECT_THAT(state_.as_events(1_ns), SizeIs(2));
  EXPECT_THAT(accept({.kind = EventKind::capture_end, .pool = 1}), ElementsAre("capture_end 0"));
  EXPECT_THAT(accept({.kind = EventKind::pool_close, .pool = 1}), ElementsAre("pool_close 0"));
  EXPECT_THAT(accept({.kind = EventKind::trim, .bytes = 1_KiB}), ElementsAre("trim 0"));
  EXPECT_EQ(state_.repaired(), 4u);
  EXPECT_THAT(state_.as_events(1_ns), IsEmpty());
}

}  // namespace
}  // namespace weir
