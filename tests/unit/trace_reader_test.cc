// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <string>

#include "tests/temporary_folder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Trace trace_of(std::string_view text) {
  Result<Trace> trace = parse_trace(text, "t.trace");
  EXPECT_TRUE(trace.ok()) << trace.error().message();
  return trace.ok() ? *std::move(trace) : Trace{};
}

// The message of the error that reading `text` gives.
std::string refusal(std::string_view text) {
  const Result<Trace> trace = parse_trace(text, "t.trace");
  EXPECT_FALSE(trace.ok()) << "accepted: " << text;
  if (trace.ok()) return {};
  EXPECT_EQ(trace.error().code(), ErrorCode::invalid_input);
  return trace.error().message();
}

class TraceFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) { return folder_ / name; }
  void write(const std::string& name, std::string_view bytes) { folder_.write(name, bytes); }
  void write_compressed(const std::string& name, std::string_view text) {
    const gzFile file = gzopen(path(name).c_str(), "wb");
    ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
  }
  std::string refusal_of_file(const std::string& name) {
    const Result<Trace> trace = read_trace(path(name));
    EXPECT_FALSE(trace.ok());
    return trace.ok() ? "" : trace.error().message();
  }

  const test::TemporaryFolder folder_;
};

TEST(TraceReader, ReadsBlocksStreamsMarkersAndTimes) {
  const Trace trace = trace_of(
      "# {\"workload\": \"small\"}\n"
      "m warm up\n"
      "a 0 1000 7 10\n"
      "a 1 512 3 20\n"
      "r 0 1000 7 30\n"
      "f 0 1000 7 31\n"
      "w 3 7 32\n"
      "u 1 7 33\n"
      "m step\n"
      "# a comment\n"
      "r 1 512 3 40\n"
      "f 1 512 3 40\n");
  EXPECT_EQ(trace.header_json, "{\"workload\": \"small\"}");
  EXPECT_THAT(trace.streams, ElementsAre(7, 3));
  EXPECT_THAT(trace.markers, ElementsAre("warm up", "step"));
  ASSERT_EQ(trace.blocks.size(), 2u);
  EXPECT_EQ(trace.blocks[0].bytes, 1000_B);
  EXPECT_EQ(trace.blocks[1].stream, 1u);
  EXPECT_EQ(trace.start_us, 10);
  EXPECT_EQ(trace.duration(), 30_us);
  EXPECT_EQ(trace.lines, 12u);

  std::vector<TraceOp::Kind> kinds;
  for (const TraceOp& op : trace.ops) kinds.push_back(op.kind);
  using Kind = TraceOp::Kind;
  EXPECT_THAT(kinds, ElementsAre(Kind::marker, Kind::allocate, Kind::allocate, Kind::free,
                                 Kind::wait, Kind::fence, Kind::marker, Kind::free));
  EXPECT_EQ(trace.ops[0].time_us, 10) << "a marker before the first time takes that time";
  EXPECT_EQ(trace.ops[5].stream, 0u);
  EXPECT_EQ(trace.ops[5].target, 1u);
  EXPECT_EQ(trace.ops[7].line, 11u);
}

TEST(TraceReader, AFailedRequestSaysItsTime) {
  const Trace trace = trace_of(
      "a 0 512 0 5\nm out of memory: 9 bytes on stream 0 at 8 us\n"
      "m out of memory: 9 bytes on stream 0\nf 0 512 0 11\n");
  ASSERT_EQ(trace.ops.size(), 4U);
  EXPECT_EQ(trace.ops[1].time_us, 8);
  EXPECT_EQ(trace.ops[2].time_us, 8) << "a neighbour's";
}

TEST(TraceReader, PeakLiveRoundsEachBlockUpTo512AndEndsItAtTheUsersFree) {
  // 512 + 1024, then 1024 + 2560 once the first one is freed, though not reusable yet.
  EXPECT_EQ(trace_of("a 0 1 0 0\na 1 513 0 1\nr 0 1 0 2\na 2 2049 0 3\nf 0 1 0 4\n").peak_live,
            3584_B);
  EXPECT_EQ(trace_of("a 0 0 0 0\n").peak_live, 0_B);
}

TEST(TraceReader, ABlockWasUsedUntilItsReusableLineWhereOthersLieBetween) {
  const auto used_until = [](const std::string& lines) {
    return trace_of("a 0 512 0 0\n" + lines).blocks[0].used_until_us();
  };
  EXPECT_EQ(used_until("r 0 512 0 5\na 1 512 0 7\nf 0 512 0 9\n"), 9);
  EXPECT_EQ(used_until("r 0 512 0 5\nf 0 512 0 9\n"), std::nullopt);
  EXPECT_EQ(used_until("f 0 512 0 5\n"), std::nullopt);
  EXPECT_EQ(used_until("r 0 512 0 5\n"), 5);
}

TEST(TraceReader, BlockIdsNeedNotBeCounters) {
  const Trace trace = trace_of(
      "a 18446744073709551615 512 0 0\na 5 512 0 0\na 7000000000 512 0 0\n"
      "r 7000000000 512 0 1\nr 18446744073709551615 512 0 1\nr 5 512 0 1\n");
  EXPECT_EQ(trace.ops[3].target, 2u);
  EXPECT_EQ(trace.ops[4].target, 0u);
  EXPECT_EQ(trace.ops[5].target, 1u);
}

TEST(TraceReader, WindowsLineEndsAreFine) {
  EXPECT_EQ(trace_of("a 0 512 0 0\r\nm text\r\n").markers[0], "text");
}

struct Refused {
  const char* name;
  const char* text;
  const char* where;
  const char* what;
};

class TraceReaderRefuses : public ::testing::TestWithParam<Refused> {};

TEST_P(TraceReaderRefuses, WithFileLineAndReason) {
  EXPECT_THAT(refusal(GetParam().text),
              AllOf(StartsWith(GetParam().where), HasSubstr(GetParam().what)));
}

INSTANTIATE_TEST_SUITE_P(
    Traces, TraceReaderRefuses,
    ::testing::Values(
        Refused{"Nothing", "", "t.trace:1: ", "empty"},
        Refused{"OnlyAHeader", "# {}\n", "t.trace:2: ", "empty"},
        Refused{"HeaderThatIsNotJson", "# {oops\na 0 1 0 0\n", "t.trace:1: ", "not JSON"},
        Refused{"UnknownLine", "a 0 1 0 0\nq 0 1 0 0\n",
                "t.trace:2: ", "unknown line \"q 0 1 0 0\""},
        Refused{"EmptyLine", "a 0 1 0 0\n\na 1 1 0 0\n", "t.trace:2: ", "unknown line"},
        Refused{"NoSpaceAfterTheKind", "a0 1 0 0\n", "t.trace:1: ", "unknown line"},
        Refused{"LastLineCut", "a 0 1 0 0\na 1 5", "t.trace:2: ", "cut off"},
        Refused{"LastLineWithoutItsEnd", "a 0 1 0 0\na 1 5 0 0", "t.trace:2: ", "cut off"},
        Refused{"TooFewColumns", "a 0 1 0\n", "t.trace:1: ", "too few columns"},
        Refused{"TooManyColumns", "a 0 1 0 0 9\n", "t.trace:1: ", "too many columns"},
        Refused{"WordForANumber", "a 0 one 0 0\n", "t.trace:1: ", "not a number"},
        Refused{"NumberWithATail", "a 0 1k 0 0\n", "t.trace:1: ", "not a number"},
        Refused{"Negative", "a 0 -1 0 0\n", "t.trace:1: ", "negative"},
        Refused{"Overflow", "a 0 18446744073709551616 0 0\n", "t.trace:1: ", "does not fit"},
        Refused{"BlockBeyondReason", "a 0 18446744073709551615 0 0\n", "t.trace:1: ", "beyond"},
        Refused{"TimeBeyondReason", "a 0 1 0 18446744073709551615\n", "t.trace:1: ", "too large"},
        Refused{"TraceOfYears", "a 0 1 0 0\na 1 1 0 8000000000000000\n", "t.trace:2: ", "longer"},
        Refused{"TimeGoesBack", "a 0 1 0 5\na 1 1 0 4\n", "t.trace:2: ", "time goes back"},
        Refused{"IdAgain", "a 0 1 0 0\na 0 1 0 0\n", "t.trace:2: ", "block 0 is allocated again"},
        Refused{"IdAgainAfterItsFree", "a 0 1 0 0\nr 0 1 0 0\nf 0 1 0 0\na 0 1 0 0\n",
                "t.trace:4: ", "allocated again"},
        Refused{"FreedTwiceByTheUser", "a 0 1 0 0\nr 0 1 0 0\nr 0 1 0 0\n",
                "t.trace:3: ", "block 0 is freed twice"},
        Refused{"ReusableTwice", "a 0 1 0 0\nr 0 1 0 0\nf 0 1 0 0\nf 0 1 0 0\n",
                "t.trace:4: ", "block 0 is freed twice"},
        Refused{"FreedAfterReusable", "a 0 1 0 0\nf 0 1 0 0\nr 0 1 0 0\n",
                "t.trace:3: ", "block 0 is freed twice"},
        Refused{"NeverAllocated", "a 0 1 0 0\nr 1 1 0 0\n",
                "t.trace:2: ", "block 1 is freed but was never allocated"},
        Refused{"FreedWithAnotherSize", "a 0 1 0 0\nr 0 2 0 0\n", "t.trace:2: ",
                "freed as 2 bytes of stream 0, but was allocated as 1 bytes of stream 0"},
        Refused{"FreedOnAnotherStream", "a 0 1 4 0\nr 0 1 9 0\n", "t.trace:2: ",
                "freed as 1 bytes of stream 9, but was allocated as 1 bytes of stream 4"},
        Refused{"FenceOfAFreedBlock", "a 0 1 0 0\nr 0 1 0 0\nu 0 1 0\n",
                "t.trace:3: ", "while it is not allocated"},
        Refused{"WaitWithTooFewColumns", "w 0 1\n", "t.trace:1: ", "STREAM STREAM TIME_US"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(TraceReader, MessageShowsNoCharactersThatATerminalActsOn) {
  EXPECT_THAT(refusal("\x1b[2Jgarbage\x07\n"), HasSubstr("\"?[2Jgarbage?\""));
}

TEST_F(TraceFile, CompressedAndPlainReadTheSame) {
  // More than one of the reader's chunks, so that lines lie across their ends.
  std::string text = "# {\"workload\": \"long\"}\n";
  for (int i = 0; i < 100000; ++i) {
    const std::string n = std::to_string(i);
    text += "a " + n + " 4096 0 " + n + "\nr " + n + " 4096 0 " + n + "\n";
  }
  write("long.trace", text);
  write_compressed("long.trace.gz", text);
  const Result<Trace> plain = read_trace(path("long.trace"));
  const Result<Trace> compressed = read_trace(path("long.trace.gz"));
  ASSERT_TRUE(plain.ok()) << plain.error().message();
  ASSERT_TRUE(compressed.ok()) << compressed.error().message();
  EXPECT_EQ(plain->ops.size(), 200000u);
  EXPECT_EQ(plain->peak_live, 4096_B);
  ASSERT_EQ(compressed->ops.size(), plain->ops.size());
  for (std::size_t i = 0; i < plain->ops.size(); ++i) {
    ASSERT_EQ(plain->ops[i].line, compressed->ops[i].line);
    ASSERT_EQ(plain->ops[i].target, compressed->ops[i].target);
    ASSERT_EQ(plain->ops[i].time_us, compressed->ops[i].time_us);
  }
}

TEST_F(TraceFile, CompressedFileCutOffAnywhereIsRefused) {
  std::string text = "# {}\n";
  for (int i = 0; i < 200; ++i)
    text += "a " + std::to_string(i) + " 4096 0 " + std::to_string(i * i) + "\n";
  write_compressed("whole.trace.gz", text);
  const std::string whole = folder_.read("whole.trace.gz");
  ASSERT_GT(whole.size(), 100u);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write("cut.trace.gz", whole.substr(0, length));
    EXPECT_THAT(refusal_of_file("cut.trace.gz"), StartsWith(path("cut.trace.gz") + ":")) << length;
  }
}

TEST_F(TraceFile, LineWithoutEndIsRefusedAndNotReadWhole) {
  write("endless.trace", std::string(3 << 20, '#'));
  EXPECT_THAT(refusal_of_file("endless.trace"), HasSubstr(":1: no line is this long"));
}

TEST(TraceReader, RecordedTracesKeepThePeakThatTheirRecorderSaw) {
  // Torch counts the same: "peak_allocated" of the trace's header, where a block is live until the
  // user frees it.
  const Result<Trace> trace = read_trace("bench/traces/gpt2_train.trace.gz");
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  EXPECT_EQ(trace->peak_live, Bytes{28167412736});
  EXPECT_EQ(trace->blocks.size(), 14944u);
  EXPECT_EQ(trace->duration(), 2960436_us);
}

}  // namespace
}  // namespace weir
