// SPDX-License-Identifier: Apache-2.0
// A recording, followed while it grows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "look/top.h"
#include "tests/temporary_folder.h"
#include "tests/unit/look_recordings.h"
#include "weir/recorder.h"
#include "weir/recording.h"

namespace weir {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

namespace fs = std::filesystem;

constexpr std::uint64_t kPage = 2 << 20;

class Top : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& name, std::string_view bytes) const {
    return folder_.write(name, bytes);
  }
  void append(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary | std::ios::app) << bytes;
  }
  // A recorder that has begun with what is there.
  std::unique_ptr<Recorder> recorder(const std::string& name) const {
    auto made =
        Recorder::open(path(name), {.program = "train", .device = "H200", .device_bytes = 141_GiB});
    EXPECT_TRUE(made.ok());
    (*made)->on_start({});
    return std::move(*made);
  }
  // The bytes of a finished recording of these events.
  std::string recorded(const HandMade& made) const {
    const auto to = recorder("whole.weir");
    for (const Event& event : made.recording.events) to->on_event(event);
    EXPECT_TRUE(to->close().ok());
    return folder_.read("whole.weir");
  }

  const test::TemporaryFolder folder_;
};

// Two streams, one of them with a graph pool's memory.
HandMade program() {
  HandMade made;
  made.add({.kind = EventKind::pool_open, .pool = 3});
  made.add({.kind = EventKind::heap_open, .heap = {0}, .stream = 7});
  made.add({.kind = EventKind::heap_open, .heap = {1}, .stream = 9, .pool = 3});
  made.page(0).page(1).page(2).map(0, kAt, 0).map(1, kAt + 4 * kPage, 1);
  made.lease(0, 0).lease(1, 1);
  made.allocate(kAt, 1000_B, 7, 0).allocate(kAt + 4096, 1_MiB, 7, 0);
  made.allocate(kAt + 4 * kPage, 64_KiB, 9, 1).fence(kAt, 9);
  made.add({.kind = EventKind::stream_wait, .heap = {0}, .stream = 7, .other = 9});
  made.add({.kind = EventKind::host_wait, .other = 9, .duration = 3_ms});
  made.deallocate(kAt + 4096);
  return made;
}

void expect_the_program(const TopNumbers& now) {
  EXPECT_EQ(now.all.live, 65_KiB);
  EXPECT_EQ(now.all.blocks, 2U);
  EXPECT_EQ(now.requested, 64_KiB + 1000_B);
  EXPECT_EQ(now.peak_live, 1_MiB + 65_KiB);
  EXPECT_EQ(now.reserved, 6_MiB);
  EXPECT_EQ(now.idle, 2_MiB);
  EXPECT_EQ(now.all.allocations, 3U);
  EXPECT_EQ(now.all.deallocations, 1U);
  EXPECT_EQ(now.host_waits, 1U);
  EXPECT_EQ(now.host_wait_time, 3_ms);
  EXPECT_EQ(now.streams.at(7).live, 1_KiB);
  EXPECT_EQ(now.streams.at(7).leased, 2_MiB);
  EXPECT_EQ(now.streams.at(7).fences, 1U);
  EXPECT_EQ(now.streams.at(7).waits, 1U);
  EXPECT_EQ(now.streams.at(9).live, 64_KiB);
  EXPECT_EQ(now.pools.at(3).live, 64_KiB);
  EXPECT_EQ(now.pools.at(3).leased, 2_MiB);
}

TEST_F(Top, FoldsEventsIntoNumbers) {
  TopState state;
  for (const Event& event : program().recording.events) state.apply(event, false);
  expect_the_program(state.numbers());
}

TEST_F(Top, WhatWasThereAtTheBeginningIsThereButWasNotDone) {
  TopState state;
  for (const Event& event : program().recording.events) state.apply(event, true);
  EXPECT_EQ(state.numbers().all.live, 65_KiB);
  EXPECT_EQ(state.numbers().all.allocations, 0U);
  EXPECT_EQ(state.numbers().created, 0U);
}

TEST_F(Top, FollowsTheFileOfARecorderAtWork) {
  const auto to = recorder("run.weir");
  const HandMade made = program();
  for (const Event& event : made.recording.events) to->on_event(event);
  ASSERT_TRUE(to->flush().ok());
  Result<TopFollower> top = TopFollower::open(path("run.weir"));
  ASSERT_TRUE(top.ok()) << top.error().message();
  expect_the_program(top->numbers());
  EXPECT_EQ(top->view().program, "train");
  EXPECT_EQ(top->view().device_bytes, 141_GiB);
  EXPECT_FALSE(top->view().ended);

  Event more = made.recording.events.back();
  more.time += 1_us;
  more.kind = EventKind::allocate;
  more.address = {kAt + 65536};
  more.bytes = more.requested = 2_KiB;
  more.stream = 7;
  to->on_event(more);
  ASSERT_TRUE(to->flush().ok());
  ASSERT_TRUE(top->poll().ok());
  EXPECT_EQ(top->numbers().all.live, 67_KiB);
  ASSERT_TRUE(to->close().ok());
  ASSERT_TRUE(top->poll().ok());
  EXPECT_TRUE(top->view().ended);
}

TEST_F(Top, FileMayGrowByAnyPieces) {
  const std::string whole = recorded(program());
  for (const std::size_t piece : {1, 7, 23, 24, 25, 64}) {
    write("grows.weir", whole.substr(0, 16));
    Result<TopFollower> top = TopFollower::open(path("grows.weir"));
    ASSERT_TRUE(top.ok()) << top.error().message();
    for (std::size_t at = 16; at < whole.size(); at += piece) {
      append("grows.weir", std::string_view(whole).substr(at, piece));
      ASSERT_TRUE(top->poll().ok());
    }
    expect_the_program(top->numbers());
    EXPECT_TRUE(top->view().ended);
    EXPECT_EQ(top->view().damaged_at, std::nullopt);
  }
}

TEST_F(Top, DamagedBytesAreSurvivedWhereverTheyAre) {
  const std::string whole = recorded(program());
  for (std::size_t at = 16; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    Result<TopFollower> top = TopFollower::open(write("damaged.weir", damaged));
    ASSERT_TRUE(top.ok()) << at;
    EXPECT_LE(top->numbers().all.live, 2_MiB) << at;
    EXPECT_TRUE(top->view().damaged_at || !top->view().ended) << at;
  }
}

TEST_F(Top, BlocksAfterDamagedBytesAreRead) {
  std::string whole = recorded(program());
  const std::string junk = "WBLKnot a block" + std::string(100, 'W');
  whole.insert(16, junk);
  Result<TopFollower> top = TopFollower::open(write("junk.weir", whole));
  ASSERT_TRUE(top.ok());
  expect_the_program(top->numbers());
}

TEST_F(Top, FileThatIsNoRecordingIsRefusedByName) {
  const auto refusal = [](const std::string& path) {
    const Result<TopFollower> top = TopFollower::open(path);
    return top.ok() ? "opened" : top.error().message();
  };
  EXPECT_THAT(refusal(path("none.weir")), AllOf(HasSubstr("none.weir"), HasSubstr("No such file")));
  EXPECT_THAT(refusal(write("empty.weir", "")), HasSubstr("is empty so far"));
  EXPECT_THAT(refusal(write("text.weir", "a 0 1 2 3\nmore than sixteen bytes")),
              HasSubstr("is no recording"));
  std::string newer = recorded(program());
  newer[8] = 99;
  EXPECT_THAT(refusal(write("newer.weir", newer)), HasSubstr("another format"));
  EXPECT_THAT(refusal(folder_.path()), HasSubstr(folder_.path()));
}

TEST_F(Top, FileThatIsCutShorterIsAnError) {
  const std::string whole = recorded(program());
  Result<TopFollower> top = TopFollower::open(write("cut.weir", whole));
  ASSERT_TRUE(top.ok());
  fs::resize_file(path("cut.weir"), 20);
  const Status status = top->poll();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), AllOf(HasSubstr("cut.weir"), HasSubstr("cut shorter")));
}

TEST_F(Top, FindsTheRecordingThatAProcessHasOpen) {
  const auto to = recorder("mine.weir");
  const auto found = recordings_of_process(std::to_string(::getpid()));
  ASSERT_TRUE(found.ok()) << found.error().message();
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ(fs::canonical(found->front()), fs::canonical(path("mine.weir")));
}

TEST_F(Top, FindsTheRecordingThatTheEnvironmentNames) {
  fs::create_directories(path("proc/77/fd"));
  write("proc/77/environ", std::string("A=1\0WEIR_RECORD=run.weir\0B=2\0", 29));
  write("proc/77/cwd/run.weir", recorded(program()));
  const auto found = recordings_of_process("77", path("proc"));
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_THAT(*found, ElementsAre(path("proc/77/cwd/run.weir")));
}

TEST_F(Top, ProcessThatRecordsNothingIsToldHowTo) {
  fs::create_directories(path("proc/77/fd"));
  const auto complaint = [&](const std::string& environment) {
    std::string zeros = environment;
    for (char& c : zeros) c = c == ' ' ? '\0' : c;
    write("proc/77/environ", zeros);
    const auto found = recordings_of_process("77", path("proc"));
    return found.ok() ? "found" : found.error().message();
  };
  EXPECT_THAT(complaint("HOME=/ "), HasSubstr("process 77 is not recording: start it with "
                                              "WEIR_RECORD=run.weir"));
  EXPECT_THAT(complaint("WEIR_RECORD=a.weir WEIR_RECORD_SIGNAL=USR2 "),
              HasSubstr("`kill -USR2 77` starts it"));
  EXPECT_THAT(complaint("WEIR_RECORD=a.weir WEIR_RECORD_RING=64MiB "),
              HasSubstr("keeps its recording in memory"));
  EXPECT_THAT(complaint("WEIR_RECORD=a.weir "), HasSubstr("told to record into a.weir"));
}

TEST_F(Top, ProcessThatIsNotThereIsAnError) {
  const auto found = recordings_of_process("77", path("proc"));
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), ErrorCode::unavailable);
  EXPECT_THAT(found.error().message(), HasSubstr("there is no process 77"));
}

TEST_F(Top, ProcessOfAnotherUserIsAnError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may look at every process";
  fs::create_directories(path("proc/77/fd"));
  fs::permissions(path("proc/77/fd"), fs::perms::none);
  const auto found = recordings_of_process("77", path("proc"));
  fs::permissions(path("proc/77/fd"), fs::perms::owner_all);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.error().message(), HasSubstr("belongs to another user"));
}

TEST_F(Top, TextHasRatesOfTheInterval) {
  TopNumbers before, now;
  before.all.allocations = 1000;
  now.all.allocations = 3000;
  now.all.live = 3_GiB;
  now.streams[7] = now.all;
  now.streams[7].waits = 8;
  const std::string text =
      top_text({.program = "train", .device = "H200"}, now, &before, 2000_ms, 10);
  EXPECT_THAT(
      text, AllOf(HasSubstr("train on H200"), HasSubstr("in the last 2.0 s"), HasSubstr("1,000 /s"),
                  HasSubstr("3.00 GiB"), HasSubstr("4 /s"), Not(HasSubstr("graph pool"))));
  now.end = 1000_ms;
  EXPECT_THAT(top_text({}, now, nullptr, {}, 10),
              AllOf(HasSubstr("since the start"), HasSubstr("3,000 /s")));
}

TEST_F(Top, TextShowsOnlyTheLargestRows) {
  TopNumbers now;
  for (std::uint64_t i = 1; i <= 5; ++i) now.streams[i].live = Bytes{i << 20};
  const std::string text = top_text({}, now, nullptr, {}, 2);
  EXPECT_THAT(text, AllOf(HasSubstr("5.00 MiB"), HasSubstr("4.00 MiB"), Not(HasSubstr("3.00 MiB")),
                          HasSubstr("and 3 more (--top)")));
}

}  // namespace
}  // namespace weir
