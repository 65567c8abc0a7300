// SPDX-License-Identifier: Apache-2.0
// Blocks that pile up, and what a report advises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "look/report.h"
#include "tests/events_of.h"
#include "tests/unit/look_recordings.h"

namespace weir {
namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr Bytes kBig = 1_GiB;

// One page of 1 GiB, leased by heap 0.
HandMade with_a_big_page() {
  HandMade made;
  made.page(0, kBig).map(0, kAt, 0, kBig);
  made.add({.kind = EventKind::lease, .heap = {0}, .page = {0}, .bytes = kBig});
  return made;
}

// A program that keeps weights from its start, and runs `steps`, in each of which it uses a block
// of 8 MiB four times, and forgets `forgotten` blocks of 1 MiB.
HandMade steps(int steps, int forgotten) {
  HandMade made = with_a_big_page();
  std::uint64_t at = kAt;
  const auto next = [&at](Bytes bytes) { return std::exchange(at, at + bytes.count); };
  for (int i = 0; i < 8; ++i) made.allocate(next(2_MiB), 2_MiB);
  const std::uint64_t work = next(8_MiB);
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < 3; ++i) made.allocate(work, 8_MiB).deallocate(work);
    for (int i = 0; i < forgotten; ++i) made.allocate(next(1_MiB), 1_MiB);
    made.allocate(work, 8_MiB).deallocate(work);
  }
  return made;
}

TEST(ReportGrowth, BlocksThatAreForgottenInEveryStepLookLeaked) {
  const Report report = report_of(steps(40, 2).recording);
  ASSERT_THAT(report.growth, SizeIs(1));
  EXPECT_EQ(report.growth[0].requested, 1_MiB);
  EXPECT_EQ(report.growth[0].blocks, 80U);
  EXPECT_EQ(report.growth[0].bytes, 80_MiB);
  EXPECT_EQ(report.growth[0].grew, 8U);
  EXPECT_THAT(report.advice,
              Contains(Field(&Advice::evidence, HasSubstr("80 blocks of 1.00 MiB on stream 1"))));
}

TEST(ReportGrowth, BlocksOfTheLastStepDoNot) {
  HandMade made = steps(40, 0);
  for (std::uint64_t i = 0; i < 4; ++i) made.allocate(kAt + (900 + i) * 1'048'576, 1_MiB);
  EXPECT_THAT(report_of(made.recording).growth, IsEmpty());
}

TEST(ReportGrowth, ProgramThatIsBeingLoadedDoesNot) {
  HandMade made = with_a_big_page();
  for (std::uint64_t i = 0; i < 200; ++i) made.allocate(kAt + (i << 20), 1_MiB);
  EXPECT_THAT(report_of(made.recording).growth, IsEmpty());
}

// Without stacks the gradients and the optimizer's state that a first step keeps are one group.
TEST(ReportGrowth, WhatASingleStepKeepsDoesNot) {
  HandMade made = with_a_big_page();
  std::uint64_t at = kAt;
  const auto kept = [&](int count) {
    for (; count > 0; --count, at += 16 << 20) made.allocate(at, 16_MiB);
  };
  const auto used = [&](int count) {
    for (; count > 0; --count) made.allocate(at, 16_MiB).deallocate(at);
  };
  used(40);
  for (int i = 0; i < 12; ++i) kept(1), used(2);
  for (int i = 0; i < 12; ++i) kept(2), used(6);
  EXPECT_THAT(report_of(made.recording).growth, IsEmpty());
}

TEST(ReportGrowth, BlocksThatCameInAShortTimeDoNot) {
  HandMade made = steps(40, 2);
  const Nanoseconds rest{made.recording.events.back().time.count * 4};
  made.add({.kind = EventKind::deallocate, .address = {kAt}});
  test::change_last_event(made.recording, [rest](Event& last) { last.time += rest; });
  EXPECT_THAT(report_of(made.recording).growth, IsEmpty());
}

TEST(ReportGrowth, WhatWasThereWhenTheRecordingBeganDoesNot) {
  HandMade made = steps(40, 2);
  made.initial();
  made.allocate(kAt + (900ULL << 20), 512_B);
  EXPECT_THAT(report_of(made.recording).growth, IsEmpty());
}

TEST(ReportGrowth, MarksThatRepeatAreThePhases) {
  HandMade made = with_a_big_page();
  std::uint64_t at = kAt;
  for (int step = 0; step < 5; ++step) {
    made.recording.marks.push_back(
        {made.recording.end() + 1_ns, "iteration " + std::to_string(step)});
    made.allocate(at, 1_MiB);
    at += 1 << 20;
    // Much more happens in the last iteration than in the others together.
    for (int i = 0; i < (step == 4 ? 500 : 2); ++i) made.allocate(at, 1_KiB).deallocate(at);
  }
  const Report report = report_of(made.recording);
  ASSERT_THAT(report.growth, SizeIs(1));
  EXPECT_EQ(report.growth[0].grew, 5U);
  EXPECT_EQ(report.growth[0].parts, 5U);
  EXPECT_EQ(report.growth[0].blocks, 5U);
}

TEST(ReportAdvice, NamesTheLargestCauseOfFragmentationAndItsRemedy) {
  HandMade made = with_a_big_page();
  made.page(1, 256_MiB).map(1, kAt + (2ULL << 30), 1, 256_MiB);
  made.add({.kind = EventKind::lease, .heap = {1}, .page = {1}, .bytes = 256_MiB});
  made.allocate(kAt, kBig);
  const Report report = report_of(made.recording);
  ASSERT_THAT(report.advice, SizeIs(1));
  EXPECT_EQ(report.advice[0].evidence,
            "At the peak of reserved memory, 256 MiB (20.0 % of 1.25 GiB) is held by streams that "
            "have nothing on it.");
  EXPECT_THAT(report.advice[0].remedy, HasSubstr("retire()"));
}

TEST(ReportAdvice, IdleMemoryThatWasNeededBeforeIsNotBlamed) {
  HandMade made = with_a_big_page();
  made.allocate(kAt, kBig).deallocate(kAt).page(1).allocate(kAt, 512_MiB);
  const Report report = report_of(made.recording);
  EXPECT_EQ(report.peak_reserved.live, 512_MiB);
  EXPECT_THAT(report.advice, IsEmpty());
  EXPECT_THAT(report_text(report), HasSubstr("512 MiB more was live at 3.00 us"));
}

TEST(ReportAdvice, MemoryThatWentAndCameAgainSpeaksAgainstTrimming) {
  HandMade made = with_a_big_page();
  made.allocate(kAt, kBig).page(1, 256_MiB).release(1, 256_MiB);
  made.add({.kind = EventKind::trim, .bytes = 256_MiB});
  made.page(2, 128_MiB).release(2, 128_MiB);
  const Report report = report_of(made.recording);
  EXPECT_EQ(report.totals.created_again, 128_MiB);
  EXPECT_THAT(report.advice, Contains(Field(&Advice::remedy, HasSubstr("trim(keep)"))));
}

TEST(ReportAdvice, FailedRequestsComeFirst) {
  HandMade made = with_a_big_page();
  made.allocate(kAt, 512_MiB);
  made.add({.kind = EventKind::out_of_memory, .stream = 1, .requested = 3_GiB});
  const Report report = report_of(made.recording);
  ASSERT_THAT(report.advice, Not(IsEmpty()));
  EXPECT_THAT(report.advice[0].evidence, HasSubstr("1 request failed for want of memory"));
  EXPECT_THAT(report.advice[0].remedy, HasSubstr("WEIR_LIMIT"));
}

}  // namespace
}  // namespace weir
