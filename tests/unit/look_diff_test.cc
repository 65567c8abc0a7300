// SPDX-License-Identifier: Apache-2.0
// What changed between two recordings made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "look/diff.h"
#include "replay/report_table.h"
#include "tests/events_of.h"
#include "tests/unit/look_recordings.h"

namespace weir {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Optional;

Report whole_report(const Recording& recording) { return report_of(recording, {.top = SIZE_MAX}); }

const ChangeGroup& group(const Diff& diff, const std::string& name) {
  for (const ChangeGroup& group : diff.groups) {
    if (group.name == name) return group;
  }
  static const ChangeGroup kNone;
  ADD_FAILURE() << "no group " << name;
  return kNone;
}

// `bytes` live on one stream, and 1 KiB on another.
HandMade program(std::uint64_t stream, Bytes bytes, int waits = 0) {
  HandMade made;
  made.page(0).map(0, kAt).lease(0, 0);
  made.allocate(kAt, bytes, stream).allocate(kAt + (1 << 20), 1_KiB, stream + 1);
  for (int i = 0; i < waits; ++i) made.wait(stream, stream + 1);
  return made;
}

auto change(const char* name, std::uint64_t before, std::uint64_t after) {
  return AllOf(Field(&Change::name, name), Field(&Change::before, Optional(before)),
               Field(&Change::after, Optional(after)));
}

TEST(Diff, OfTheSameIsNothing) {
  const Report report = whole_report(program(5, 64_KiB, 3).recording);
  const Diff diff = diff_of(report, report);
  EXPECT_FALSE(diff.changed());
  EXPECT_THAT(diff_text(diff, 8), HasSubstr("Nothing that a report counts has changed."));
}

TEST(Diff, StreamsAreMatchedByOrderOfUseWhateverTheirNumbers) {
  const Diff diff = diff_of(whole_report(program(5, 64_KiB).recording),
                            whole_report(program(90, 128_KiB).recording));
  EXPECT_THAT(group(diff, "by_stream").changes, ElementsAre(change("5 / 90", 65536, 131072)));
}

// The second stream that is named is all streams before, and stream 6 afterwards.
TEST(Diff, WaitsForAllStreamsAreComparedWithEachOtherOnly) {
  const auto made = [](std::uint64_t awaited, int waits) {
    HandMade made;
    made.page(0).map(0, kAt).lease(0, 0).allocate(kAt, 64_KiB, 5);
    for (int i = 0; i < waits; ++i) made.wait(5, awaited);
    made.allocate(kAt + (1 << 20), 1_KiB, 6);
    return whole_report(made.recording);
  };
  const std::uint64_t all = Stream::all().id;
  const Diff more = diff_of(made(all, 2), made(all, 7));
  EXPECT_THAT(group(more, "waits").changes, ElementsAre(change("5 for all", 2, 7)));
  EXPECT_THAT(group(more, "counts").changes, ElementsAre(change("stream waits", 2, 7)));
  const Diff diff = diff_of(made(all, 2), made(6, 3));
  const auto only_before = AllOf(Field(&Change::name, "5 for all"), Field(&Change::before, 2),
                                 Field(&Change::after, std::nullopt));
  const auto only_after = AllOf(Field(&Change::name, "5 for 6"),
                                Field(&Change::before, std::nullopt), Field(&Change::after, 3));
  EXPECT_THAT(group(diff, "waits").changes, ElementsAre(only_after, only_before));
  EXPECT_THAT(group(diff, "by_stream").changes, IsEmpty());
}

TEST(Diff, LargestChangesComeFirstAndOnlySomeAreShown) {
  HandMade before = program(1, 1_KiB), after = program(1, 1_KiB);
  after.allocate(kAt + 4096, 4_KiB).allocate(kAt + 65536, 64_KiB).allocate(kAt + 8192, 8_KiB);
  const Diff diff = diff_of(whole_report(before.recording), whole_report(after.recording));
  const auto& sizes = group(diff, "by_size").changes;
  ASSERT_EQ(sizes.size(), 3U);
  EXPECT_EQ(sizes[0].name, "32 - 64 KiB");
  EXPECT_EQ(sizes[0].before, std::nullopt);
  EXPECT_THAT(sizes[0].after, Optional(65536U));
  EXPECT_EQ(sizes[2].name, "2 - 4 KiB");
  EXPECT_THAT(diff_text(diff, 2), AllOf(HasSubstr("32 - 64 KiB"), Not(HasSubstr("2 - 4 KiB")),
                                        HasSubstr("and 1 more (--top)")));
}

TEST(Diff, StacksAreMatchedWhateverTheirLines) {
  const auto made = [](std::uint32_t line, const char* function, Bytes bytes) {
    HandMade made = program(1, bytes);
    made.recording.frames = {{function, line == 0 ? "" : "model.py", line}};
    made.recording.stacks = {{}, {0}};
    test::change_events(made.recording, [](auto& events) { events[3].stack = 1; });
    return whole_report(made.recording);
  };
  EXPECT_THAT(group(diff_of(made(10, "f", 1_KiB), made(12, "f", 2_KiB)), "by_stack").changes,
              ElementsAre(change("f (model.py:10)", 1024, 2048)));
  EXPECT_EQ(group(diff_of(made(10, "f", 1_KiB), made(10, "g", 1_KiB)), "by_stack").changes.size(),
            2U);
  EXPECT_EQ(
      group(diff_of(made(0, "ns::f", 1_KiB), made(0, "ns::g", 1_KiB)), "by_stack").changes.size(),
      2U);
}

TEST(Diff, PartsOfFragmentationAreCompared) {
  const Diff diff = diff_of(whole_report(program(1, 1_MiB).recording),
                            whole_report(program(1, 512_KiB).recording));
  // The block shrank by 512 KiB, up to the block behind it.
  EXPECT_THAT(group(diff, "fragmentation").changes, ElementsAre(change("placement", 0, 524288)));
  const auto json = nlohmann::json::parse(diff_json(diff));
  EXPECT_EQ(json["fragmentation"][0]["change"], 524288);
  EXPECT_EQ(json["peaks"][0]["change"], -524288);
  EXPECT_EQ(json["changed"], true);
}

}  // namespace
}  // namespace weir
