// SPDX-License-Identifier: Apache-2.0
// The latest events in memory, and what was there before them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "observe/recorded_state.h"
#include "observe/recording_blocks.h"
#include "observe/recording_format.h"
#include "tests/events_of.h"
#include "tests/unit/recording_fixture.h"

namespace weir {
namespace {

using test::allocated;
using test::freed;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using FlightRecorder = test::RecordingFiles;

TEST_F(FlightRecorder, SaysWhatWasLiveBeforeTheOldestEventThatItKeeps) {
  SimDevice device;
  test::Collector all;
  DeviceHeap heap(device, {}, &all);
  const auto recorder = Recorder::keep(20_KiB);
  const Stream a = device.new_stream(), b = device.new_stream();
  test::run_some(heap, a, b, 50);
  const std::size_t at_start = all.events.size();
  heap.start_recording(*recorder);
  // In parts, so that the ring has room for each.
  for (int part = 0; part < 20; ++part) {
    test::run_some(heap, a, b, 1000);
    ASSERT_TRUE(recorder->flush().ok());
  }
  EXPECT_TRUE(heap.stop_recording(*recorder));
  ASSERT_TRUE(recorder->write_to(path_).ok());

  const Recording recording = read();
  EXPECT_EQ(recording.damage, "");
  EXPECT_EQ(recording.dropped, 0u);
  // Calls of before are counted, and those that were there when the recording began are not.
  const auto calls = [](auto begin, auto end) {
    return std::count_if(begin, end, [](const Event& each) { return is_call(each.kind); });
  };
  EXPECT_EQ(recording.calls_before +
                calls(recording.events.from(recording.initial), recording.events.end()),
            calls(all.events.begin() + static_cast<std::ptrdiff_t>(at_start), all.events.end()));
  ASSERT_GT(recording.initial, 0u);
  ASSERT_LT(recording.events.size(), all.events.size() / 4) << "nothing was given up";
  EXPECT_LT(bytes().size(), (84_KiB).count);
  // The latest are there as they were,
  const std::size_t latest = recording.events.size() - recording.initial;
  ASSERT_GT(latest, 100u);
  EXPECT_EQ(
      test::texts_of({recording.events.from(recording.initial), recording.events.end()}),
      test::texts_of({all.events.end() - static_cast<std::ptrdiff_t>(latest), all.events.end()}));
  // and all of them give what all events give.
  RecordedState whole, kept;
  for (const Event& event : all.events) whole.accept(event, [](const Event&) {});
  for (const Event& event : recording.events) kept.accept(event, [](const Event&) {});
  EXPECT_EQ(kept.repaired(), 0u);
  EXPECT_EQ(whole.repaired(), 0u);
  EXPECT_EQ(test::texts_of(kept.as_events(1000_ms)), test::texts_of(whole.as_events(1000_ms)));
  // Wherever the file is cut off between two blocks, nothing is said to have been dropped.
  const std::string written = bytes();
  for (std::size_t at = written.find(recording_format::kSync); at != std::string::npos;
       at = written.find(recording_format::kSync, at + 1)) {
    put_bytes(std::string_view(written).substr(0, at));
    EXPECT_EQ(read().dropped, 0u) << at;
  }
}

TEST_F(FlightRecorder, MoreThanABlockOfLiveBlocksIsSaidOnce) {
  constexpr std::uint64_t kLive = 20'000;
  const auto recorder = Recorder::keep(4_KiB);
  std::vector<Event> live;
  for (std::uint64_t i = 0; i < kLive; ++i) {
    live.push_back(allocated(i << 12, Bytes{1 + i * 7919 % 4000}, 1_us, i % 7));
    live.back().address.value += 1 << 20;
  }
  recorder->on_start(live);
  ASSERT_TRUE(recorder->write_to(path_).ok());
  const Recording recording = read();
  EXPECT_EQ(recording.damage, "");
  EXPECT_EQ(recording.initial, kLive);
  EXPECT_EQ(test::texts_of(test::events_of(recording)), test::texts_of(live));
  std::size_t blocks = 0;
  Result<RecordingBlocks> all = RecordingBlocks::open(path_);
  while (const auto block = all->next()) {
    if (block->kind != recording_format::BlockKind::initial) continue;
    EXPECT_LT(block->plain.size(), recording_format::kFullBlock + 128);
    ++blocks;
  }
  EXPECT_GT(blocks, 1u);
}

TEST_F(FlightRecorder, StacksOfWhatIsStillLiveAreKnown) {
  test::GivenStacks stacks;
  stacks.of = {{3, {{"f", "f.cc", 1}}}};
  const auto recorder = Recorder::keep(4_KiB, {.stacks = &stacks});
  Event first = allocated(4096, 1_KiB, 1_us, 1);
  first.stack = 3;
  recorder->on_event(first);
  for (std::uint64_t i = 0; i < 40'000; ++i) {
    const Event block =
        allocated(1 << 20 | i << 30, Bytes{1 + i * 7919 % 100'000}, Nanoseconds{2000}, 1);
    recorder->on_event(block);
    recorder->on_event(freed(block, block.time));
    if (i % 4000 == 0) {
      ASSERT_TRUE(recorder->flush().ok());
    }
  }
  ASSERT_TRUE(recorder->write_to(path_).ok());
  const Recording recording = read();
  const auto live = std::find_if(recording.events.begin(), recording.events.end(),
                                 [&](const Event& each) { return each.address == first.address; });
  ASSERT_LT(live - recording.events.begin(), static_cast<std::ptrdiff_t>(recording.initial));
  EXPECT_THAT(recording.stacks.at(live->stack), SizeIs(1));
}

TEST_F(FlightRecorder, WritesAgainAndReplacesTheFile) {
  const auto recorder = Recorder::keep(1_MiB);
  recorder->on_event(allocated(4096, 1_KiB, 1_us, 1));
  ASSERT_TRUE(recorder->write_to(path_).ok());
  EXPECT_THAT(read().events, SizeIs(1));
  recorder->on_event(allocated(8192, 1_KiB, 2_us, 1));
  ASSERT_TRUE(recorder->write_to(path_).ok());
  EXPECT_THAT(read().events, SizeIs(2));
  ASSERT_TRUE(recorder->close().ok());
  ASSERT_TRUE(recorder->write_to(path_).ok()) << "what is kept is there after the end, too";
  EXPECT_THAT(read().events, SizeIs(2));
}

TEST_F(FlightRecorder, AFileThatCannotBeWrittenIsNamed) {
  const auto recorder = Recorder::keep(1_MiB);
  EXPECT_THAT(recorder->write_to("/nowhere/at/all.weir").error().message(),
              HasSubstr("/nowhere/at/all.weir"));
  EXPECT_THAT(open()->write_to(path_ + "2").error().message(), HasSubstr("flight recorder"));
}

}  // namespace
}  // namespace weir
