// SPDX-License-Identifier: Apache-2.0
// The first call that differs between two recordings: made by hand, and by heaps that run a
// program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "look/call_difference.h"
#include "look/call_difference_words.h"
#include "look/diff.h"
#include "replay/report_table.h"
#include "tests/events_of.h"
#include "tests/unit/look_recordings.h"
#include "tests/unit/recording_fixture.h"

namespace weir {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr std::uint64_t kGiB = 1 << 30;

// Two blocks on two streams, one freed; then what `more` adds.
HandMade program(std::uint64_t at = kGiB, std::uint64_t stream = 5,
                 const std::function<void(HandMade&)>& more = {}) {
  HandMade made;
  made.page(0).map(0, at).allocate(at, 64_KiB, stream).allocate(at + (1 << 20), 1_KiB, stream + 1);
  made.deallocate(at);
  if (more) more(made);
  return made;
}

CallDifference between(const HandMade& before, const HandMade& after) {
  return first_difference(before.recording, after.recording);
}

TEST(CallDifference, OfTheSameProgramIsNoneWhereverRowsLieAndHoweverStreamsAreNumbered) {
  const CallDifference same = between(program(kGiB, 5), program(7 * kGiB, 900));
  EXPECT_THAT(same.differs, IsEmpty());
  EXPECT_EQ(same.same, 3u);
  EXPECT_EQ(same.moved, 1u);
  EXPECT_EQ(between(program(), program()).moved, 0u);
}

TEST(CallDifference, IsTheFirstCallWithWhatEachSideDid) {
  const std::uint64_t at = kGiB + 65536;
  const HandMade before = program(
      kGiB, 5, [&](HandMade& made) { made.allocate(at, 2_KiB, 5).allocate(at + 8192, 4_KiB, 5); });
  const HandMade after = program(
      kGiB, 5, [&](HandMade& made) { made.allocate(at, 3_KiB, 6).allocate(at + 8192, 4_KiB, 5); });
  const CallDifference found = between(before, after);
  EXPECT_EQ(found.same, 3u);
  EXPECT_THAT(found.differs, ElementsAre("bytes", "stream"));
  ASSERT_TRUE(found.before.call && found.after.call);
  EXPECT_EQ(found.before.call->number, 4u);
  EXPECT_EQ(found.before.call->event.requested, 2_KiB);
  EXPECT_EQ(found.after.call->event.requested, 3_KiB);
  EXPECT_EQ(found.after.call->event.stream, 6u);
  EXPECT_EQ(found.before.calls, 5u);
  ASSERT_THAT(found.previous, SizeIs(3));
  EXPECT_EQ(found.previous.back().event.kind, EventKind::deallocate);
  EXPECT_EQ(found.previous.back().allocated_in, 1u);
  EXPECT_THAT(difference_text(found),
              AllOf(HasSubstr("The same 3 calls. Call 4 differs (bytes, stream)."),
                    HasSubstr("allocation of 2,048 bytes on stream 5"),
                    HasSubstr("allocation of 3,072 bytes on stream 6"),
                    HasSubstr("3: free of 65,536 bytes that call 1 allocated on stream 5, at ")));
}

TEST(CallDifference, APlaceIsAnOffsetInItsRow) {
  const auto more = [](std::uint64_t at) {
    return program(kGiB, 5, [at](HandMade& made) { made.allocate(at, 2_KiB, 5); });
  };
  EXPECT_THAT(between(more(kGiB + 65536), more(kGiB + 131072)).differs, ElementsAre("place"));
  // Another row; the one above, and one elsewhere.
  EXPECT_THAT(between(more(3 * kGiB), more(9 * kGiB)).differs, IsEmpty());
  EXPECT_THAT(between(more(2 * kGiB), more(9 * kGiB)).differs, ElementsAre("place"));
  EXPECT_THAT(between(more(kGiB + 65536), more(3 * kGiB + 65536)).differs, ElementsAre("place"));
}

TEST(CallDifference, SegmentsOfPlainMemoryLieAnywhere) {
  const auto made = [](std::uint64_t first, std::uint64_t second, std::uint64_t offset) {
    HandMade made;
    for (const std::uint64_t at : {first, second}) {
      made.add({.kind = EventKind::map, .plain = true, .address = {at}, .bytes = 2_MiB});
    }
    return made.allocate(first, 1_KiB).allocate(second + offset, 1_KiB);
  };
  EXPECT_THAT(between(made(kGiB, kGiB + (4 << 20), 512), made(kGiB + (2 << 20), kGiB, 512)).differs,
              IsEmpty());
  EXPECT_THAT(
      between(made(kGiB, kGiB + (4 << 20), 512), made(kGiB, kGiB + (4 << 20), 1024)).differs,
      ElementsAre("place"));
}

TEST(CallDifference, FreesOfOtherBlocksAndMissingCallsAndFencesAreDifferences) {
  const auto made = [](const std::function<void(HandMade&)>& more) {
    return program(kGiB, 5, [&](HandMade& all) {
      all.allocate(kGiB, 1_KiB, 5).allocate(kGiB + 4096, 1_KiB, 5);
      more(all);
    });
  };
  const HandMade frees = made([](HandMade& all) { all.deallocate(kGiB); });
  const HandMade other = made([](HandMade& all) { all.deallocate(kGiB + 4096); });
  const HandMade fences = made([](HandMade& all) { all.fence(kGiB, 6).deallocate(kGiB); });
  const HandMade others = made([](HandMade& all) { all.fence(kGiB, 5).deallocate(kGiB); });
  const CallDifference found = between(frees, other);
  EXPECT_THAT(found.differs, ElementsAre("place"));
  EXPECT_EQ(found.before.call->allocated_in, 4u);
  EXPECT_EQ(found.after.call->allocated_in, 5u);
  EXPECT_THAT(between(frees, fences).differs, ElementsAre("call"));
  EXPECT_THAT(between(fences, others).differs, ElementsAre("user"));
  const CallDifference shorter = between(made([](HandMade&) {}), frees);
  EXPECT_THAT(shorter.differs, ElementsAre("end"));
  EXPECT_FALSE(shorter.before.call);
  EXPECT_EQ(shorter.after.call->number, 6u);
  EXPECT_THAT(difference_text(shorter), HasSubstr("no call: the recording ends"));
}

TEST(CallDifference, PoolsAreMatchedByOrderOfUse) {
  const auto made = [](std::uint64_t pool, std::uint32_t heap) {
    return program(kGiB, 5, [=](HandMade& all) {
      all.add({.kind = EventKind::heap_open, .heap = {9}, .stream = 5, .pool = pool});
      all.allocate(3 * kGiB, 1_KiB, 5, heap);
    });
  };
  EXPECT_THAT(between(made(17, 9), made(4000, 9)).differs, IsEmpty());
  const CallDifference found = between(made(17, 9), made(17, 0));
  EXPECT_THAT(found.differs, ElementsAre("pool"));
  EXPECT_EQ(found.before.call->pool_id, 17u);
  EXPECT_THAT(difference_text(found), HasSubstr("on stream 5 in graph pool 17"));
}

TEST(CallDifference, APoolsRowsAreNotThoseOfAPoolThatHadTheirAddressesBefore) {
  const auto made = [](std::uint64_t second) {
    return program(kGiB, 5, [=](HandMade& all) {
      all.add({.kind = EventKind::heap_open, .heap = {9}, .stream = 5, .pool = 17});
      all.allocate(3 * kGiB, 1_KiB, 5, 9).deallocate(3 * kGiB);
      all.add({.kind = EventKind::heap_open, .heap = {10}, .stream = 5, .pool = 18});
      all.allocate(second, 1_KiB, 5, 10);
    });
  };
  EXPECT_THAT(between(made(3 * kGiB), made(7 * kGiB)).differs, IsEmpty());
}

TEST(CallDifference, SaysWhatWeirDidJustBeforeAndWhereItsWorkDifferedFirst) {
  const HandMade before = program(kGiB, 5, [](HandMade& made) {
    made.wait(5, 6).allocate(kGiB, 1_KiB, 5).page(1).map(1, kGiB + HandMade::kPage.count);
    made.allocate(kGiB + HandMade::kPage.count, 1_MiB, 5);
  });
  const HandMade after = program(kGiB, 5, [](HandMade& made) {
    made.allocate(kGiB, 1_KiB, 5).allocate(kGiB + 65536, 1_MiB, 5);
  });
  const CallDifference found = between(before, after);
  EXPECT_EQ(found.worked_otherwise, 4u);
  EXPECT_EQ(found.same, 4u);
  EXPECT_THAT(found.before.weir_did, SizeIs(2));
  EXPECT_THAT(found.after.weir_did, IsEmpty());
  EXPECT_THAT(difference_text(found),
              AllOf(HasSubstr("just before, Weir created a page of 2.00 MiB, mapped 2.00 MiB"),
                    HasSubstr("first before call 4.")));
}

TEST(CallDifference, NamesStacksAndTheMarkBefore) {
  const auto made = [](Bytes bytes, std::uint32_t line) {
    HandMade made = program(kGiB, 5, [&](HandMade& all) { all.allocate(kGiB, bytes, 5); });
    made.recording.frames = {{"forward", "model.py", line}, {"main", "train.py", 3}};
    made.recording.stacks = {{}, {0, 1}};
    made.recording.marks = {{Nanoseconds{0}, "step 1"}, {Nanoseconds{4000}, "step 2"}};
    test::change_last_event(made.recording, [](Event& event) { event.stack = 1; });
    return made;
  };
  EXPECT_THAT(between(made(1_KiB, 7), made(1_KiB, 9)).differs, IsEmpty());
  const CallDifference found = between(made(1_KiB, 7), made(2_KiB, 9));
  EXPECT_THAT(found.before.stack, ElementsAre("forward (model.py:7)", "main (train.py:3)"));
  EXPECT_THAT(found.after.stack, ElementsAre("forward (model.py:9)", "main (train.py:3)"));
  EXPECT_EQ(found.after.mark, "step 2");
}

TEST(CallDifference, AsJsonHasBothSides) {
  const CallDifference found =
      between(program(kGiB, 5, [](HandMade& made) { made.allocate(kGiB, 1_KiB, 5); }), program());
  Diff diff{"a", "b", {}, found};
  const auto json = nlohmann::json::parse(diff_json(diff))["calls"];
  EXPECT_EQ(json["same"], 3);
  EXPECT_EQ(json["differs"], nlohmann::json::parse(R"(["end"])"));
  EXPECT_EQ(json["before"]["call"]["number"], 4);
  EXPECT_EQ(json["before"]["call"]["requested_bytes"], 1024);
  EXPECT_EQ(json["before"]["call"]["offset"], 0);
  EXPECT_TRUE(json["after"]["call"].is_null());
  EXPECT_TRUE(json["moved"].is_null());
}

// A program of a heap, kept by rings of two sizes. One run has other streams before its own, and
// does one thing otherwise.
class RingDifference : public test::RecordingFiles {
 protected:
  Recording run(Bytes ring, int extra_streams, int other_at) {
    SimDevice device;
    DeviceHeap heap(device);
    for (int i = 0; i < extra_streams; ++i) (void)device.new_stream();
    const Stream a = device.new_stream(), b = device.new_stream();
    const auto recorder = Recorder::keep(ring);
    heap.start_recording(*recorder);
    for (int part = 0; part < 40; ++part) {
      test::run_some(heap, a, b, 500, test::Kept::none);
      if (part == other_at) {
        Result<void*> block = heap.allocate(3_MiB, b);
        EXPECT_TRUE(block.ok() && heap.deallocate(*block).ok());
      }
      EXPECT_TRUE(recorder->flush().ok());
    }
    EXPECT_TRUE(heap.stop_recording(*recorder));
    EXPECT_TRUE(recorder->write_to(path_).ok());
    return read();
  }
};

TEST_F(RingDifference, RingsAreAlignedByTheNumbersOfTheirCalls) {
  const Recording whole = run(64_MiB, 0, 38), small = run(24_KiB, 3, 38),
                  other = run(40_KiB, 1, 39);
  ASSERT_EQ(whole.calls_before, 0u);
  ASSERT_GT(small.calls_before, other.calls_before);
  ASSERT_GT(other.calls_before, 0u);
  const CallDifference same = first_difference(whole, small);
  EXPECT_THAT(same.differs, IsEmpty());
  EXPECT_EQ(same.first, small.calls_before + 1);
  EXPECT_FALSE(same.lived_otherwise);
  EXPECT_EQ(same.before.calls, same.first - 1 + same.same);

  const CallDifference from_whole = first_difference(whole, other);
  const CallDifference found = first_difference(small, other);
  ASSERT_THAT(found.differs, Not(IsEmpty()));
  EXPECT_EQ(found.first, small.calls_before + 1);
  EXPECT_EQ(found.before.call->number, from_whole.before.call->number);
  EXPECT_EQ(found.before.call->event.requested, 3_MiB);
  EXPECT_EQ(found.after.call->event.requested, Bytes{700});
}

TEST_F(RingDifference, WhatOnlyOneOfThemMetBeforeCountsAsNeverMet) {
  const auto use = [](HandMade& made, std::uint64_t stream) {
    made.allocate(2 * stream * kGiB, 1_KiB, stream).deallocate(2 * stream * kGiB);
  };
  HandMade whole, ring;
  for (const std::uint64_t stream : {5, 6, 6, 5}) use(whole, stream);
  for (const std::uint64_t stream : {6, 5}) use(ring, stream);
  ring.recording.calls_before = 4;
  const CallDifference found = between(whole, ring);
  EXPECT_THAT(found.differs, IsEmpty());
  EXPECT_EQ(found.same, 4u);
}

TEST_F(RingDifference, ADifferenceFromBeforeTheRingsIsSaid) {
  HandMade before = program(), after = program();
  before.allocate(kGiB + 4096, 8_KiB).initial();
  after.initial();
  for (HandMade* made : {&before, &after}) made->allocate(kGiB + 32768, 1_KiB);
  before.recording.calls_before = after.recording.calls_before = 4;
  const CallDifference found = between(before, after);
  EXPECT_TRUE(found.lived_otherwise);
  EXPECT_THAT(difference_text(found), HasSubstr("What was live before call 5 differs already"));
}

TEST_F(RingDifference, RecordingsWithoutACallInCommonSayWhichEndsBefore) {
  HandMade before = program(), after = program();
  after.allocate(kGiB + 65536, 8_KiB).initial().allocate(kGiB + 131072, 1_KiB);
  after.recording.calls_before = 100;
  for (const bool swapped : {false, true}) {
    const CallDifference found = swapped ? between(after, before) : between(before, after);
    EXPECT_EQ(found.same, 0u);
    EXPECT_FALSE(found.lived_otherwise) << "nothing of that time is known of the one that ended";
    const std::string text = difference_text(found);
    EXPECT_THAT(text, HasSubstr("No call is in both"));
    EXPECT_THAT(
        text, HasSubstr("ends with call " +
                        std::to_string(found.before.call ? found.after.last : found.before.last)));
  }
}

TEST_F(RingDifference, WhatWeirDidBeforeTheFirstCallOfARingIsNotCompared) {
  HandMade before = program(), after = program();
  before.initial().wait(5, 6);
  after.initial();
  for (HandMade* made : {&before, &after}) {
    made->allocate(kGiB + 32768, 1_KiB).allocate(kGiB + 65536, 1_KiB);
  }
  before.recording.calls_before = after.recording.calls_before = 4;
  EXPECT_EQ(between(before, after).worked_otherwise, 0u);
  before.wait(5, 6);
  for (HandMade* made : {&before, &after}) made->allocate(kGiB + 131072, 1_KiB);
  EXPECT_EQ(between(before, after).worked_otherwise, 7u);
}

}  // namespace
}  // namespace weir
