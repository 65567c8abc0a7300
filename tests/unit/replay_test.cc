// SPDX-License-Identifier: Apache-2.0
#include "replay/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "replay/report.h"
#include "replay/trace_reader.h"
#include "tests/temporary_folder.h"
#include "weir/recorder.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

Trace parsed(std::string_view text) {
  Result<Trace> trace = parse_trace(text, "t.trace");
  EXPECT_TRUE(trace.ok()) << trace.error().message();
  return *std::move(trace);
}

ReplayReport replayed(const Trace& trace, const ReplayOptions& options = {}) {
  const std::unique_ptr<ReplayDevice> device = make_sim_replay_device();
  Result<ReplayReport> report = replay(trace, *device, options);
  EXPECT_TRUE(report.ok());
  return *std::move(report);
}

std::string failure(const ReplayReport& report) {
  return report.failure ? report.failure->message : "";
}

// The block's memory is wanted again while another stream still works on it.
constexpr std::string_view kLateUse =
    "a 0 4194304 0 0\n"
    "r 0 4194304 0 100\n"
    "a 1 4194304 0 110\n"
    "f 0 4194304 0 5000\n"
    "r 1 4194304 0 6000\n"
    "f 1 4194304 0 6000\n";

// The streams, as the trace has them, whose work was fenced.
class FencingStreams final : public ReplayWatcher {
 public:
  void on_event(const Event& event) override {
    if (event.kind == EventKind::fence) fencing.push_back(numbers_[event.other]);
  }
  void on_stream(std::uint64_t id, std::uint64_t number) override { numbers_[id] = number; }
  void on_pass_begin(Nanoseconds /*time*/) override {}
  void on_phase(std::string_view /*name*/, Nanoseconds /*time*/) override {}
  void on_pass_end(Nanoseconds /*time*/) override {}

  std::vector<std::uint64_t> fencing;

 private:
  std::map<std::uint64_t, std::uint64_t> numbers_;
};

TEST(Replay, MeasuresWhatTheProgramAndTheHeapHeld) {
  const ReplayReport report =
      replayed(parsed("a 0 3145728 0 1000\n"
                      "a 1 1000 1 1500\n"
                      "r 0 3145728 0 2000\n"
                      "f 0 3145728 0 2000\n"));
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.peak_live, 3_MiB + 1_KiB);
  EXPECT_EQ(report.trace_time, 1000_us);
  EXPECT_EQ(report.blocks, 2u);
  EXPECT_EQ(report.streams, 2u);
  ASSERT_THAT(report.passes, SizeIs(1));
  EXPECT_GE(report.all.peak_reserved, report.peak_live);
  EXPECT_GT(report.ratio(report.all), 1.0);
  EXPECT_GT(report.all.calls(DeviceCall::create), 0u);
  EXPECT_GT(report.all.driver_time, 0_ns);
  EXPECT_EQ(report.all.races, 0u);
  EXPECT_EQ(report.all.host_waits, 0u);
  EXPECT_GT(report.all.reserved, 0_B);
  EXPECT_EQ(report.driver_reserved, report.all.reserved);
}

TEST(Replay, PassesAddUpToTheWhole) {
  const ReplayReport report =
      replayed(parsed("a 0 6291456 0 0\na 1 700 0 5\nr 1 700 0 50\n"), {.passes = 4});
  EXPECT_EQ(failure(report), "");
  ASSERT_THAT(report.passes, SizeIs(4));
  Nanoseconds driver;
  std::uint64_t calls = 0;
  Bytes reserved;
  for (const ReplayFigures& pass : report.passes) {
    driver += pass.driver_time;
    calls += std::accumulate(pass.driver_calls.begin(), pass.driver_calls.end(), std::uint64_t{0});
    reserved = std::max(reserved, pass.peak_reserved);
    EXPECT_EQ(pass.trace_time, report.trace_time);
  }
  EXPECT_EQ(driver, report.all.driver_time);
  EXPECT_EQ(calls, std::accumulate(report.all.driver_calls.begin(), report.all.driver_calls.end(),
                                   std::uint64_t{0}));
  EXPECT_EQ(reserved, report.all.peak_reserved);
  EXPECT_GT(report.passes[0].calls(DeviceCall::create), 0u);
  EXPECT_EQ(report.passes[1].calls(DeviceCall::create), 0u) << "the memory is there already";
}

TEST(Replay, BlocksThatTheProgramKeepsAreFreedAtTheEndOfEachPass) {
  const Trace trace = parsed("a 0 4194304 0 0\na 1 4194304 0 1\n");
  const ReplayReport report = replayed(trace, {.limit = 8_MiB, .passes = 3});
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.all.peak_reserved, 8_MiB);
}

TEST(Replay, BlockUsedPastItsFreeIsFenced) {
  // No room to grow: the memory must be taken over, and only the fence orders that.
  for (const ReusePolicy policy : {ReusePolicy::wait, ReusePolicy::balanced}) {
    const ReplayReport report = replayed(parsed(kLateUse), {.limit = 4_MiB, .policy = policy});
    EXPECT_EQ(failure(report), "");
    EXPECT_EQ(report.late_uses, 1u);
    EXPECT_EQ(report.all.fences, 1u);
    EXPECT_EQ(report.all.races, 0u) << report.first_race;
    EXPECT_GT(report.all.stream_waits, 0u);
  }
}

TEST(Replay, FenceThatIsLeftOutIsARace) {
  const ReplayReport report =
      replayed(parsed(kLateUse), {.limit = 4_MiB, .leave_out_fences = true});
  EXPECT_EQ(failure(report), "");
  EXPECT_GT(report.all.races.value(), 0u);
  EXPECT_THAT(report.first_race, Not(IsEmpty()));
  ReplayOutcome outcome;
  outcome.trace = report.trace;
  outcome.report = report;
  EXPECT_EQ(outcome.exit_code(), ExitCode::answer_is_no);
  EXPECT_THAT(outcome.complaint(), HasSubstr(report.first_race));
}

TEST(Replay, OtherStreamOfTheTraceIsTheOneThatUsesLate) {
  const std::string text =
      std::string("a 9 512 3 0\n") + std::string(kLateUse) + "r 9 512 3 7000\n";
  FencingStreams watcher;
  const ReplayReport report = replayed(parsed(text), {.watcher = &watcher});
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.all.races, 0u) << report.first_race;
  EXPECT_THAT(watcher.fencing, ElementsAre(3u, 0u));
}

TEST(Replay, RecordedFencesAreTakenAgain) {
  const std::string_view text =
      "a 0 4194304 0 0\n"
      "u 0 1 10\n"
      "r 0 4194304 0 11\n"
      "f 0 4194304 0 11\n"
      "a 1 4194304 0 11\n"
      "r 1 4194304 0 40\n"
      "f 1 4194304 0 40\n";
  const ReplayReport fenced = replayed(parsed(text), {.limit = 4_MiB});
  EXPECT_EQ(failure(fenced), "");
  EXPECT_EQ(fenced.all.fences, 1u);
  EXPECT_EQ(fenced.all.races, 0u) << fenced.first_race;
  const ReplayReport unfenced = replayed(parsed(text), {.limit = 4_MiB, .leave_out_fences = true});
  EXPECT_GT(unfenced.all.races.value(), 0u);
}

TEST(Replay, EmptyBlocksAreFine) {
  const ReplayReport report = replayed(parsed("a 0 0 0 0\nu 0 1 1\nr 0 0 0 2\na 1 0 0 3\n"),
                                       {.passes = 2, .validate = true});
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.peak_live, 0_B);
  EXPECT_EQ(report.ratio(report.all), 1.0);
}

// Stream 6 uses block 0 past its free; block 1 takes its memory.
constexpr const char* kCapturedLateUse =
    "m capture\na 0 4194304 5 0\nr 0 4194304 5 10\na 1 4194304 5 20\n"
    "r 1 4194304 5 30\nf 1 4194304 5 30\nf 0 4194304 5 100\na 2 512 6 110\n";

TEST(Replay, CapturedPhasesAreOrderedByEdges) {
  const ReplayReport report =
      replayed(parsed(kCapturedLateUse), {.policy = ReusePolicy::wait, .graph_orders = 50});
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.graphs, 1u);
  EXPECT_EQ(report.all.races, 0u);
  EXPECT_GT(report.all.stream_waits, 0u);
}

TEST(Replay, WithoutFencesACapturedPhaseIsFoundToRace) {
  const ReplayReport report =
      replayed(parsed(kCapturedLateUse),
               {.policy = ReusePolicy::wait, .graph_orders = 50, .leave_out_fences = true});
  EXPECT_EQ(report.graphs, 1u);
  EXPECT_GT(report.all.races.value_or(0), 1u);  // by the edges, and in some order
}

TEST(Replay, RunningOutOfMemorySaysWhereAndWhatHoldsIt) {
  const ReplayReport report = replayed(
      parsed("a 0 4194304 5 0\na 1 2097152 6 1\na 2 8388608 5 2\n"), {.limit = 8_MiB, .passes = 2});
  ASSERT_TRUE(report.failure.has_value());
  EXPECT_EQ(report.failure->kind, ReplayFailure::Kind::out_of_memory);
  EXPECT_EQ(report.failure->line, 3u);
  EXPECT_EQ(report.failure->pass, 1u);
  EXPECT_THAT(report.failure->held,
              Contains(MatchesRegex(
                  "stream 5 of the trace \\([0-9]+ on the device\\): 4.00 MiB in 1 block")));
  EXPECT_THAT(report.failure->held, Contains(HasSubstr("stream 6 of the trace")));
  EXPECT_THAT(report.failure->held, Contains("1 block of 4.00 MiB: 4.00 MiB"));
  ReplayOutcome outcome;
  outcome.trace = report.trace;
  outcome.report = report;
  EXPECT_EQ(outcome.exit_code(), ExitCode::answer_is_no);
  EXPECT_THAT(outcome.complaint(), HasSubstr("t.trace:3: in pass 1: "));
  EXPECT_THAT(outcome.complaint(), HasSubstr("stream 5 of the trace"));
}

TEST(Replay, ValidatedReplayMeasuresTheSame) {
  ReplayReport plain = replayed(parsed(kLateUse), {.passes = 2});
  ReplayReport validated = replayed(parsed(kLateUse), {.passes = 2, .validate = true});
  EXPECT_EQ(failure(validated), "");
  EXPECT_EQ(plain.all.driver_calls, validated.all.driver_calls);
}

// A program of its own choosing, from the seed, on two streams that are ordered with each other.
void run_program(DeviceHeap& heap, SimDevice& device, unsigned seed) {
  std::mt19937 random(seed);
  const Stream streams[] = {device.new_stream(), device.new_stream()};
  std::vector<void*> blocks;
  for (int i = 0; i < 3000; ++i) {
    device.advance(20_us);
    if (blocks.size() > 60 || (!blocks.empty() && random() % 3 == 0)) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      ASSERT_TRUE(heap.deallocate(blocks.back()).ok());
      blocks.pop_back();
      continue;
    }
    const Bytes bytes{(std::uint64_t{1} << (random() % 22)) + random() % 5000};
    Result<void*> block = heap.allocate(bytes, streams[random() % 8 == 0]);
    ASSERT_TRUE(block.ok()) << block.error().message();
    blocks.push_back(*block);
  }
}

// The blocks and fences of a recording, as a trace.
std::string as_trace(const Recording& recording) {
  std::string text;
  std::map<std::uint64_t, std::pair<std::size_t, Event>> live;  // number and allocation, by address
  std::size_t blocks = 0;
  const auto line = [&](char kind, const Event& event) {
    const auto& [number, block] = live.at(event.address.value);
    const std::string size = kind == 'u' ? "" : " " + std::to_string(block.requested.count);
    const std::uint64_t stream = kind == 'u' ? event.other : block.stream;
    text += kind + (" " + std::to_string(number)) + size + " " + std::to_string(stream) + " " +
            std::to_string(event.time.count / 1000) + "\n";
  };
  for (const Event& event : recording.events) {
    if (event.kind == EventKind::allocate) {
      live[event.address.value] = {blocks++, event};
      line('a', event);
    } else if (event.kind == EventKind::fence) {
      line('u', event);
    } else if (event.kind == EventKind::deallocate) {
      line('r', event);
      line('f', event);
      live.erase(event.address.value);
    }
  }
  return text;
}

TEST(Replay, RecordingOfARunReplaysToTheSamePeaks) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "run.weir";
  SimDevice device;
  Result<std::unique_ptr<Recorder>> recorder = Recorder::open(path);
  ASSERT_TRUE(recorder.ok()) << recorder.error().message();
  Statistics statistics;
  {
    DeviceHeap heap(device, {}, recorder->get());
    run_program(heap, device, 17);
    statistics = heap.statistics();
  }
  ASSERT_TRUE((*recorder)->close().ok());
  ASSERT_EQ((*recorder)->dropped(), 0u);

  const Result<Recording> recording = read_recording(path);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const ReplayReport report = replayed(parsed(as_trace(*recording)), {.validate = true});
  EXPECT_EQ(failure(report), "");
  EXPECT_EQ(report.blocks, statistics.live_blocks.total);
  EXPECT_EQ(report.peak_live.count, statistics.live_bytes.peak);
  EXPECT_EQ(report.all.peak_reserved.count, statistics.reserved_bytes.peak);
  EXPECT_EQ(report.all.races, 0u) << report.first_race;
}

}  // namespace
}  // namespace weir
