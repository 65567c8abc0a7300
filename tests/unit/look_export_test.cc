// SPDX-License-Identifier: Apache-2.0
// Exporters, read back by readers that share no code with them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "look/export.h"
#include "look/exporters.h"
#include "look/load.h"
#include "look/replayed.h"
#include "look/report.h"
#include "replay/replay.h"
#include "replay/trace_reader.h"
#include "tests/events_of.h"
#include "tests/temporary_folder.h"
#include "tests/unit/look_recordings.h"

namespace weir {
namespace {

using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::string exported(const Recording& recording, LookFormat format, const std::string& name) {
  const TemporaryFolder folder;
  const Status status = export_timeline(recording, format, folder / name);
  EXPECT_TRUE(status.ok()) << status.error().message();
  return folder.read(name);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// What the trace's lines do, without their times.
std::vector<std::string> operations(const std::string& text) {
  std::vector<std::string> all;
  for (const std::string& line : lines_of(text)) {
    if (line.empty() || line[0] == '#') continue;
    all.push_back(line[0] == 'm' ? line : line.substr(0, line.rfind(' ')));
  }
  return all;
}

std::string traced(const Recording& recording) {
  const TemporaryFolder folder;
  Result<OutputFile> file = OutputFile::open(folder / "traced");
  EXPECT_TRUE(file.ok());
  write_trace(recording, *file);
  EXPECT_TRUE(file->commit().ok());
  return folder.read("traced");
}

ReplayReport replay_of(const Trace& trace) {
  const auto device = make_sim_replay_device();
  Result<ReplayReport> report = replay(trace, *device, {});
  EXPECT_TRUE(report.ok());
  return *std::move(report);
}

class TraceRoundTrip : public testing::TestWithParam<const char*> {};

// Trace -> recording -> trace -> recording: the second trace has what the first one's replay did,
// and replaying it changes nothing any more.
TEST_P(TraceRoundTrip, GivesTheSameOperationsAndPeaks) {
  const std::string path = std::string("bench/traces/") + GetParam() + ".trace.gz";
  const Result<Trace> trace = read_trace(path);
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  const Result<Recording> recording = replayed(*trace);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const std::string text = traced(*recording);
  const Result<Trace> again = parse_trace(text, "again");
  ASSERT_TRUE(again.ok()) << again.error().message();

  EXPECT_EQ(again->peak_live, trace->peak_live);
  EXPECT_EQ(again->markers, trace->markers);
  ASSERT_EQ(again->blocks.size(), trace->blocks.size());
  for (std::size_t i = 0; i < trace->blocks.size(); ++i) {
    ASSERT_EQ(again->blocks[i].bytes, trace->blocks[i].bytes) << i;
    ASSERT_EQ(again->streams[again->blocks[i].stream], trace->streams[trace->blocks[i].stream]);
  }
  const auto late =
      std::count_if(trace->blocks.begin(), trace->blocks.end(),
                    [](const TraceBlock& b) { return b.used_until_us().has_value(); });
  if (late != 0) return;  // how long another stream used a block is not in a recording
  EXPECT_EQ(replay_of(*again).all.peak_reserved, replay_of(*trace).all.peak_reserved);
  const Result<Recording> second = replayed(*again);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(operations(traced(*second)), operations(text));
}

INSTANTIATE_TEST_SUITE_P(OfBench, TraceRoundTrip,
                         testing::Values("gnn", "graph_serve", "graph_train", "graph_two_stream",
                                         "dist_tp", "serve_multistream", "unet_like"));

// Stream 3 uses block 0 past its free.
TEST(Replayed, HasTheFencesOfTheTracesOwnStreams) {
  const Result<Trace> trace = parse_trace(
      "a 9 512 3 0\na 0 4194304 0 0\nr 0 4194304 0 100\na 1 4194304 0 110\n"
      "f 0 4194304 0 5000\nr 1 4194304 0 6000\nf 1 4194304 0 6000\nr 9 512 3 7000\n",
      "t");
  ASSERT_TRUE(trace.ok());
  const Result<Recording> recording = replayed(*trace);
  ASSERT_TRUE(recording.ok());
  std::vector<std::uint64_t> users;
  for (const Event& event : recording->events) {
    if (event.kind == EventKind::fence) users.push_back(event.other);
  }
  EXPECT_THAT(users, ElementsAre(3U, 0U));
}

TEST(WriteTrace, HasFencesWaitsMarksAndWhatWasThereBefore) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 100_B, 1).initial();
  made.allocate(kAt + 512, 200_B, 2).fence(kAt, 2).deallocate(kAt).wait(1, 2);
  made.add({.kind = EventKind::out_of_memory, .stream = 1, .requested = 9_B});
  made.recording.marks = {{{3500}, "phase\ntwo"}};
  EXPECT_THAT(
      lines_of(traced(made.recording)),
      ElementsAre(StartsWith("# {"), "a 0 100 1 2", "a 1 200 2 3", "m phase two", "u 0 2 4",
                  "r 0 100 1 5", "f 0 100 1 5", "w 1 2 6", "m out of memory: 9 bytes on stream 1"));
}

TEST(WriteTrace, CapturesOfARecordingArePhases) {
  HandMade made;
  const std::uint64_t captured = std::uint64_t{1} << 63 | 4;
  made.page(0).map(0, kAt).add({.kind = EventKind::heap_open, .stream = 4, .pool = 3});
  made.add({.kind = EventKind::capture_begin, .pool = 3});
  made.allocate(kAt, 512_B, captured).add({.kind = EventKind::capture_end, .pool = 3});
  made.allocate(kAt + 512, 512_B, 4);
  made.recording.marks = {{{4500}, "within"}};
  const std::string text = traced(made.recording);
  EXPECT_THAT(operations(text), ElementsAre("m capture into pool 3", "a 0 512 4",
                                            "m after the capture", "a 1 512 4"));
  EXPECT_THAT(text, HasSubstr("# within\n"));
  EXPECT_TRUE(parse_trace(text, "t").ok());
}

TEST(WriteTrace, ACaptureWithWorkOutsideItIsNoPhase) {
  HandMade made;
  made.page(0).map(0, kAt).add({.kind = EventKind::heap_open, .stream = 4, .pool = 3});
  made.add({.kind = EventKind::heap_open, .heap = {1}, .stream = 5});
  made.add({.kind = EventKind::allocate,
            .heap = {1},
            .stream = 5,
            .address = {kAt},
            .bytes = 512_B,
            .requested = 512_B});
  made.add({.kind = EventKind::capture_begin, .pool = 3});
  made.deallocate(kAt).add({.kind = EventKind::capture_end, .pool = 3});
  const std::string text = traced(made.recording);
  EXPECT_THAT(operations(text), ElementsAre("a 0 512 5", "r 0 512 5", "f 0 512 5"));
  EXPECT_THAT(text, HasSubstr("# a capture into pool 3, with work outside it meanwhile"));
  EXPECT_TRUE(parse_trace(text, "t").ok());
}

TEST(WriteTrace, AProgramsMarksAreNoCaptures) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 512_B, 4).deallocate(kAt);
  made.recording.marks = {{{1500}, "capture the flag"}, {{2500}, ""}};
  const std::string text = traced(made.recording);
  EXPECT_THAT(operations(text), ElementsAre("m mark: capture the flag", "a 0 512 4",
                                            "m mark: ", "r 0 512 4", "f 0 512 4"));
  const Result<Trace> trace = parse_trace(text, "t");
  ASSERT_TRUE(trace.ok()) << trace.error().message();
}

TEST(WriteCsv, HasARowForEachBlock) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 100_B, 1, 5).fence(kAt, 2).fence(kAt, 3).deallocate(kAt);
  made.wait(2, 1).allocate(kAt, 100_B, 2, 6);
  made.recording.frames = {{"f<int, \"x\">", "a.cc", 7}, {"main", "", 0}};
  made.recording.stacks.push_back({0, 1});
  test::change_events(made.recording, [](auto& events) { events[2].stack = 1; });
  const std::vector<std::string> lines = lines_of(exported(made.recording, LookFormat::csv, "c"));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1],
            "0,268435456,512,100,1,0,0,5,2000,5000,0,0,2,2 3,1,1,"
            "\"f<int, \"\"x\"\"> (a.cc:7) < main\"");
  EXPECT_EQ(lines[2], "1,268435456,512,100,2,0,0,6,7000,7000,0,1,0,,,0,");
}

nlohmann::json memory_viz(const Recording& recording) {
  return nlohmann::json::parse(exported(recording, LookFormat::memory_viz, "viz.json"));
}

TEST(WriteMemoryViz, BlockThroughAnAliasIsShownWhereItIsAndItsBytesOnlyThere) {
  HandMade made;
  const std::uint64_t alias = kAt + 0x10000000;
  made.page(0).map(0, kAt, 1).map(0, alias, 2).allocate(alias + 512, 1024_B, 8, 2);
  const nlohmann::json viz = memory_viz(made.recording);
  std::uint64_t total = 0;
  std::vector<std::string> blocks;
  for (const auto& segment : viz["segments"]) {
    total += segment["total_size"].get<std::uint64_t>();
    for (const auto& block : segment["blocks"]) {
      blocks.push_back(fmt::format("{:x}+{} {}", block["address"].get<std::uint64_t>(),
                                   block["size"].get<std::uint64_t>(),
                                   block["state"].get<std::string>()));
    }
  }
  EXPECT_EQ(total, HandMade::kPage.count);
  EXPECT_THAT(blocks, ElementsAre("10000000+512 inactive", "10000600+2095616 inactive",
                                  "20000200+1024 active_allocated"));
}

TEST(WriteMemoryViz, HistoryHasEventsAsPytorchNamesThem) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 100_B, 8).fence(kAt, 9).deallocate(kAt);
  made.add({.kind = EventKind::out_of_memory, .stream = 8, .requested = 77_B}).unmap(0, kAt);
  made.recording.device_bytes = 8_MiB;
  made.recording.marks = {{{2000}, "step"}};
  const nlohmann::json viz = memory_viz(made.recording);
  std::vector<std::string> actions;
  for (const auto& event : viz["device_traces"][0]) actions.push_back(event["action"]);
  EXPECT_THAT(actions, ElementsAre("segment_map", "alloc", "free_requested", "free_completed",
                                   "oom", "segment_unmap", "snapshot"));
  const auto& history = viz["device_traces"][0];
  EXPECT_EQ(history[1]["size"], 100);
  EXPECT_EQ(history[1]["stream"], 8);
  EXPECT_THAT(history[1]["frames"][0]["name"].get<std::string>(), HasSubstr("fence of stream 9"));
  EXPECT_EQ(history[4]["device_free"], 0);  // the recording does not say it, and viewers read it
  EXPECT_EQ(viz["external_annotations"][0]["name"], "step");
  EXPECT_EQ(viz["external_annotations"][0]["stage"], "START");
  EXPECT_EQ(viz["external_annotations"][1]["stage"], "END");
  EXPECT_EQ(viz["allocator_settings"]["max_split_size"], -1);
  EXPECT_THAT(viz["segments"], IsEmpty());
}

TEST(EveryViewer, ShowsLentScratch) {
  HandMade made;
  made.page(0).map(0, kAt);
  made.add({.kind = EventKind::create, .page = {1}, .bytes = 2_MiB, .pool = 7})
      .map(1, kAt + 2097152);
  made.add({.kind = EventKind::create, .page = {2}, .bytes = 2_MiB, .pool = 7})
      .map(2, kAt + 4194304);
  made.add({.kind = EventKind::keep, .page = {2}, .bytes = 2_MiB, .pool = 7});
  made.allocate(kAt, 512_B);
  const auto viz =
      nlohmann::json::parse(exported(made.recording, LookFormat::memory_viz, "v.json"));
  std::vector<std::string> maps;
  for (const auto& event : viz["device_traces"][0]) {
    if (event["action"] == "segment_map") maps.push_back(event["frames"][0]["name"]);
  }
  EXPECT_THAT(maps,
              ElementsAre("page 0: mapped here", "page 1, scratch lent by pool 7: mapped here",
                          "page 2, scratch lent by pool 7: mapped here"));
  ASSERT_EQ(viz["segments"].size(), 1u);
  EXPECT_EQ(viz["segments"][0]["frames"][0]["name"],
            "2097152 bytes of it are scratch lent by graph pools");
  const auto perfetto =
      nlohmann::json::parse(exported(made.recording, LookFormat::perfetto, "p.json"));
  std::vector<std::uint64_t> lent;
  for (const auto& event : perfetto["traceEvents"]) {
    if (event["name"] == "lent") lent.push_back(event["args"]["bytes"]);
  }
  EXPECT_THAT(lent, ElementsAre(2097152, 4194304, 2097152));
}

TEST(WriteMemoryViz, TextThatIsNoUtf8OrFullOfQuotesStaysText) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 100_B);
  made.recording.frames = {{"a\"\\\n\x01<script>\xff\xc3\xa9", "\xed\xa0\x80", 1}};
  made.recording.stacks.push_back({0});
  test::change_events(made.recording, [](auto& events) { events[2].stack = 1; });
  const nlohmann::json frame = memory_viz(made.recording)["device_traces"][0][1]["frames"][0];
  EXPECT_EQ(frame["name"], "a\"\\\n\x01<script>\xEF\xBF\xBD\xc3\xa9");
  EXPECT_EQ(frame["filename"], "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(EveryFormat, NamesAllStreamsInWords) {
  const std::uint64_t all = Stream::all().id;
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 512_B, 1).fence(kAt, all).deallocate(kAt).wait(2, all);
  made.allocate(kAt, 512_B, 2);
  made.add({.kind = EventKind::host_wait, .other = all, .duration = 10_us});
  const std::string perfetto = exported(made.recording, LookFormat::perfetto, "perfetto");
  EXPECT_THAT(perfetto, HasSubstr("waits for all streams"));
  EXPECT_THAT(perfetto, HasSubstr("host waits for all streams"));
  EXPECT_THAT(exported(made.recording, LookFormat::memory_viz, "memory_viz"),
              HasSubstr("fence of all streams"));
  EXPECT_THAT(perfetto, Not(HasSubstr("stream all")));
}

TEST(EveryFormat, TakesAnEmptyRecording) {
  for (const LookFormat format : {LookFormat::memory_viz, LookFormat::perfetto, LookFormat::csv}) {
    EXPECT_FALSE(exported(Recording{}, format, "empty").empty());
  }
  EXPECT_TRUE(moment_of(Recording{}, 0).events.empty());
}

TEST(Moment, HoldsWhatIsThereThen) {
  HandMade made;
  made.page(0).map(0, kAt).lease(0, 1).allocate(kAt, 512_B, 1, 1).fence(kAt, 2);  // 0 ... 4 us
  made.allocate(kAt + 512, 512_B, 1, 1).deallocate(kAt);                          // 5, 6 us
  const auto blocks_at = [&made](std::string_view text) {
    const Result<std::size_t> events = parse_moment(text, made.recording);
    EXPECT_TRUE(events.ok()) << text;
    const Recording moment = moment_of(made.recording, *events);
    EXPECT_EQ(moment.initial, moment.events.size());
    EXPECT_EQ(report_of(moment).end.pages, *events == 0 ? 0U : 1U);
    return lifetimes_of(moment).blocks;
  };
  EXPECT_EQ(blocks_at("begin").size(), 0U);
  EXPECT_EQ(blocks_at("2us").size(), 0U);
  ASSERT_EQ(blocks_at("4.5us").size(), 1U);
  EXPECT_EQ(blocks_at("4.5us")[0].fences, 1U);
  EXPECT_TRUE(blocks_at("4.5us")[0].live_at_end);
  EXPECT_EQ(blocks_at("peak-live").size(), 2U);
  EXPECT_EQ(blocks_at("peak-reserved").size(), 2U) << "of those moments the one with most live";
  ASSERT_EQ(blocks_at("end").size(), 1U);
  EXPECT_EQ(blocks_at("end")[0].address, Address{kAt + 512});
}

TEST(Moment, RefusesWhatIsNone) {
  HandMade made;
  made.page(0).page(1);
  for (const char* text : {"", "now", "5", "-1s", "1e400s", "nan s", "1 s", "1h", "2us"}) {
    const Result<std::size_t> events = parse_moment(text, made.recording);
    ASSERT_FALSE(events.ok()) << text;
    EXPECT_EQ(events.error().code(), ErrorCode::invalid_argument);
  }
}

TEST(Output, ReplacesTheFileBehindALinkAndLeavesNothingElse) {
  for (const bool dangling : {false, true}) {
    const TemporaryFolder folder;
    if (!dangling) folder.write("real", "before");
    std::filesystem::create_symlink("real", folder / "link");
    ASSERT_TRUE(export_timeline(Recording{}, LookFormat::csv, folder / "link").ok());
    EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
    EXPECT_THAT(folder.read("real"), StartsWith("block,"));
    EXPECT_THAT(folder.names(), ElementsAre("link", "real"));
  }
}

TEST(Output, WithoutCommitLeavesWhatWasThere) {
  const TemporaryFolder folder;
  folder.write("file", "before");
  {
    Result<OutputFile> file = OutputFile::open(folder / "file");
    ASSERT_TRUE(file.ok());
    file->text() += std::string(4 << 20, 'x');
    file->relieve();
  }
  EXPECT_EQ(folder.read("file"), "before");
}

}  // namespace
}  // namespace weir
