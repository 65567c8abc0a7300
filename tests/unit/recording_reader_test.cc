// SPDX-License-Identifier: Apache-2.0
// Whatever has become of a file, what can be read of it is sound, or the error names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "observe/recorded_state.h"
#include "observe/recording_blocks.h"
#include "observe/recording_format.h"
#include "tests/unit/recording_fixture.h"
#include "weir/recording.h"

namespace weir {
namespace {

using test::allocated;
using test::freed;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RecordingReader : public test::RecordingFiles {
 protected:
  // A recording of some blocks' worth, with everything that can be in one. Returns its bytes.
  std::string record(int rounds = 3, int blocks_each = 20) {
    {
      const auto recorder = open({.program = "p", .device = "d", .stacks = &cpp_stacks()});
      recorder->on_start(
          std::vector{Event{.kind = EventKind::heap_open, .time = 1_ns, .stream = 1}});
      for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < blocks_each; ++i) {
          Event block = allocated(static_cast<std::uint64_t>((round + 1) << 20 | i << 12), 900_B,
                                  Nanoseconds{1000 * round + i + 1}, 1);
          block.stack = cpp_stacks().here();
          recorder->on_event(block);
          if (i % 2 == 0) recorder->on_event(freed(block, block.time));
        }
        EXPECT_TRUE(recorder->flush().ok());  // the end of a block
        recorder->mark(Nanoseconds{1000 * round}, "round");
      }
    }
    return bytes();
  }

  // What users of a recording rely on.
  static void expect_sound(const Recording& recording) {
    ASSERT_LE(recording.initial, recording.events.size());
    ASSERT_FALSE(recording.stacks.empty());
    ASSERT_TRUE(recording.stacks.front().empty());
    for (const auto& stack : recording.stacks) {
      for (const std::uint32_t frame : stack) ASSERT_LT(frame, recording.frames.size());
    }
    RecordedState state;
    Nanoseconds time;
    for (const Event& event : recording.events) {
      ASSERT_LT(event.stack, recording.stacks.size());
      ASSERT_GE(event.time, time);
      time = event.time;
      state.accept(event, [](const Event&) {});
    }
    ASSERT_EQ(state.repaired(), 0u);
  }

  std::string error() const {
    const Result<Recording> recording = read_recording(path_);
    return recording.ok() ? "" : recording.error().message();
  }
};

TEST_F(RecordingReader, ReadsAsMuchAsThereIsOfAFileThatIsCutOffAnywhere) {
  const std::string whole = record();
  const std::size_t all = read().events.size();
  std::size_t least = 0;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put_bytes(std::string_view(whole).substr(0, size));
    const Result<Recording> recording = read_recording(path_);
    if (size < recording_format::kFileHeader) {
      ASSERT_FALSE(recording.ok());
      ASSERT_THAT(recording.error().message(), HasSubstr(path_));
      continue;
    }
    ASSERT_TRUE(recording.ok()) << size;
    expect_sound(*recording);
    ASSERT_THAT(recording->damage, HasSubstr("the end is missing")) << size;
    ASSERT_GE(recording->events.size(), least) << "more of the file, and less was read";
    least = recording->events.size();
  }
  EXPECT_EQ(least, all) << "all but the end";
}

// Where something is left that is no block, it is counted, and the first place is known.
TEST_F(RecordingReader, TheEndOfAFileIsBadWhereItIsNoWholeBlock) {
  using namespace recording_format;  // NOLINT(google-build-using-namespace)
  const std::string whole = record();
  const std::size_t last = whole.rfind(kSync);
  struct Case {
    std::string bytes;
    std::uint64_t bad, first;
  };
  const Case cases[] = {{whole, 0, 0},
                        {whole.substr(0, kFileHeader), 0, 0},
                        {whole.substr(0, last), 0, 0},
                        {whole.substr(0, last + 1), 1, last},
                        {whole.substr(0, last + kBlockHeader - 1), 1, last},
                        {whole.substr(0, last + kBlockHeader), 1, last},
                        {whole.substr(0, whole.size() - 1), 1, last},
                        {whole + "x", 1, whole.size()},
                        {whole + std::string(100, 'x'), 1, whole.size()},
                        {whole + std::string(100, 'x') + std::string(kSync), 1, whole.size()}};
  for (const Case& each : cases) {
    put_bytes(each.bytes);
    Result<RecordingBlocks> blocks = RecordingBlocks::open(path_);
    ASSERT_TRUE(blocks.ok()) << blocks.error().message();
    while (blocks->next()) {
    }
    EXPECT_EQ(blocks->bad_stretches(), each.bad) << each.bytes.size();
    EXPECT_EQ(blocks->first_bad(), each.first) << each.bytes.size();
    EXPECT_EQ(blocks->missing(), 0u);
  }
}

TEST_F(RecordingReader, FindsEveryFlippedBitAndReadsTheRest) {
  const std::string whole = record();
  const std::size_t all = read().events.size();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    put_bytes(damaged);
    const Result<Recording> recording = read_recording(path_);
    if (!recording.ok()) {
      ASSERT_LT(at, recording_format::kFileHeader);
      ASSERT_THAT(recording.error().message(), HasSubstr(path_));
      continue;
    }
    expect_sound(*recording);
    const bool counts = at < 12 || at >= recording_format::kFileHeader;
    ASSERT_TRUE(!recording->damage.empty() || !counts) << "byte " << at;
    ASSERT_GE(recording->events.size() + all / 2, all) << "byte " << at << ": one block at most";
  }
}

// The file is read a piece at a time, and a mark of a block may begin in one and end in the next.
TEST_F(RecordingReader, FindsTheBlockBehindDamageOfAnyLength) {
  using namespace recording_format;  // NOLINT(google-build-using-namespace)
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const std::string whole = record();
  const std::size_t all = read().events.size();
  const std::string_view blocks = std::string_view(whole).substr(kFileHeader);
  for (std::size_t begin = kPiece - kSync.size(); begin <= kPiece; ++begin) {
    put_bytes(whole.substr(0, kFileHeader) + std::string(begin - kFileHeader, '\0') +
              std::string(blocks));
    const Recording recording = read();
    expect_sound(recording);
    EXPECT_EQ(recording.program, "p") << "the block at byte " << begin << " was not found";
    EXPECT_EQ(recording.events.size(), all);
  }
}

// Its checksum is right: a later version wrote it, or a mistaken one.
TEST_F(RecordingReader, ABlockOfAnUnknownKindIsDamageAndTheRestIsRead) {
  using namespace recording_format;  // NOLINT(google-build-using-namespace)
  const std::string whole = record();
  const std::size_t all = read().events.size();
  const std::size_t begin = whole.find(kSync, whole.find(kSync) + 1);
  BlockHeader header = *parse_block_header(std::string_view(whole).substr(begin));
  const std::string stored = whole.substr(begin + kBlockHeader, header.stored);
  const std::size_t end = begin + kBlockHeader + header.stored;
  header.kind = static_cast<BlockKind>(kLastBlockKind + 1);
  put_bytes(whole.substr(0, end) + block_header(header, stored) + stored + whole.substr(end));
  const Recording recording = read();
  expect_sound(recording);
  EXPECT_THAT(recording.damage, HasSubstr("damaged from byte " + std::to_string(end)));
  EXPECT_EQ(recording.events.size(), all);
}

TEST_F(RecordingReader, LeavesOutEventsOfALaterVersionsKindsAndNamesOne) {
  const Event known = allocated(1 << 20, 900_B, 2_ns, 1), last = freed(known, 4_ns);
  {
    const auto recorder = open({.program = "p", .device = "d"});
    recorder->on_start({});
    recorder->on_event(known);
    recorder->on_event(
        {.kind = static_cast<EventKind>(kEventKinds), .time = 3_ns, .bytes = 8_MiB, .pool = 5});
    recorder->on_event(last);
  }
  const Recording recording = read();
  expect_sound(recording);
  ASSERT_THAT(recording.events, SizeIs(2));
  EXPECT_EQ(recording.events.back().kind, EventKind::deallocate);
  EXPECT_EQ(recording.events.back().time, 4_ns);
  EXPECT_EQ(recording.damage, "events of kind " + std::to_string(kEventKinds) +
                                  ", which this version of Weir does not know, were left out: "
                                  "read it with the version that wrote it");
}

TEST_F(RecordingReader, ABlockThatIsLeftOutIsMissed) {
  const std::string whole = record();
  const std::size_t first = whole.find(recording_format::kSync, 40);
  const std::size_t second = whole.find(recording_format::kSync, first + 1);
  put_bytes(whole.substr(0, first) + whole.substr(second));
  const Recording recording = read();
  expect_sound(recording);
  EXPECT_THAT(recording.damage, HasSubstr(": 1 part of it is missing"));
}

TEST_F(RecordingReader, ReadsNoMoreEventsThanItIsAskedTo) {
  record();
  const Recording recording = read({.most_events = 17});
  expect_sound(recording);
  EXPECT_THAT(recording.events, SizeIs(17));
  EXPECT_THAT(recording.damage, HasSubstr("more than 17 events"));
}

TEST_F(RecordingReader, ReadsNoMoreFramesStacksAndTextsThanItIsAskedTo) {
  const RecordedFrame a{"a", "file", 1}, b{"b", "file", 2}, c{"c", "file", 3};
  test::GivenStacks stacks;
  stacks.of = {{1, {a, b, c}}, {2, {c}}, {3, {}}};
  {
    const auto recorder = open({.stacks = &stacks});
    recorder->on_start({});
    for (std::uint32_t stack = 1; stack <= 3; ++stack) {
      Event event = allocated(std::uint64_t{stack} << 20, 512_B, Nanoseconds{stack}, 1);
      event.stack = stack;
      recorder->on_event(event);
    }
    recorder->mark(4_ns, "mark");
  }
  // The functions of each event's stack.
  const auto read_stacks = [&](const ReadOptions& options) {
    const Recording recording = read(options);
    expect_sound(recording);
    std::string all;
    for (const Event& event : recording.events) {
      for (const std::uint32_t frame : recording.stacks[event.stack]) {
        all += recording.frames[frame].function;
      }
      all += ";";
    }
    return all + std::to_string(recording.marks.size());
  };
  constexpr std::size_t kText = 3 * 5 + 4 + sizeof(RecordedMark);
  EXPECT_EQ(read_stacks({}), "abc;c;;1");
  EXPECT_EQ(read_stacks({.most_frames = 3, .most_stack_entries = 7, .most_text = kText}),
            "abc;c;;1");
  EXPECT_EQ(read_stacks({.most_frames = 2}), "ab;;;1") << "the stacks behind them are read";
  EXPECT_EQ(read_stacks({.most_frames = 0}), ";;;1");
  EXPECT_EQ(read_stacks({.most_stack_entries = 6}), "abc;c;;1");
  EXPECT_EQ(read({.most_stack_entries = 7}).stacks.size(), 4u);
  EXPECT_EQ(read({.most_stack_entries = 6}).stacks.size(), 3u);
  EXPECT_EQ(read_stacks({.most_stack_entries = 5}), "abc;;;1");
  EXPECT_EQ(read_stacks({.most_text = 10}), "ab;;;0");
  EXPECT_EQ(read_stacks({.most_text = 9}), "a;;;0");
  EXPECT_EQ(read_stacks({.most_text = kText - 1}), "abc;c;;0");
  EXPECT_THAT(read({.most_text = kText - 1}).damage, HasSubstr("1 part of it is not decodable"));
}

TEST_F(RecordingReader, WhatIsNoRecordingIsAnErrorThatNamesTheFileAndTheRemedy) {
  EXPECT_THAT(error(), AllOf(HasSubstr(path_), HasSubstr("No such file")));
  put_bytes("");
  EXPECT_THAT(error(), AllOf(HasSubstr(path_), HasSubstr("is empty")));
  put_bytes("# {\"workload\": \"a trace\"}\na 0 1 2 3\n");
  EXPECT_THAT(error(), AllOf(HasSubstr(path_), HasSubstr("WEIR_RECORD")));
  const Result<Recording> folder = read_recording(folder_.path());
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(folder.error().message(), HasSubstr("cannot be read"));
}

TEST_F(RecordingReader, ANewerVersionIsAnErrorThatSaysSo) {
  std::string newer = record();
  newer[8] = 2;
  put_bytes(newer);
  EXPECT_THAT(error(), AllOf(HasSubstr(path_), HasSubstr("format 2"), HasSubstr("format 1")));
}

// Payloads that make no sense although their checksum is right: another program wrote them.
TEST_F(RecordingReader, PayloadsThatMakeNoSenseAreReadAsFarAsTheyDo) {
  using namespace recording_format;  // NOLINT(google-build-using-namespace)
  const std::string junk =
      "\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x05" + std::string(40, 'x');
  for (std::uint8_t kind = 1; kind <= kLastBlockKind; ++kind) {
    for (std::size_t size = 0; size <= junk.size(); ++size) {
      const std::string stored = deflated(std::string_view(junk).substr(0, size));
      put_bytes(
          file_header() +
          block_header({static_cast<BlockKind>(kind), static_cast<std::uint32_t>(stored.size()),
                        static_cast<std::uint32_t>(size), 0, 0},
                       stored) +
          stored);
      const Recording recording = read();
      expect_sound(recording);
      const bool is_header = static_cast<BlockKind>(kind) == BlockKind::header;
      EXPECT_EQ(recording.damage.find("the header is missing") == std::string::npos, is_header);
      if (size < junk.size() || static_cast<BlockKind>(kind) == BlockKind::end) continue;
      EXPECT_THAT(recording.damage,
                  HasSubstr("1 part of it is not decodable, and read as far as possible"))
          << int{kind};
    }
  }
}

}  // namespace
}  // namespace weir
