// SPDX-License-Identifier: Apache-2.0
#include "replay/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Event event(EventKind kind, Nanoseconds time, Bytes bytes) {
  Event event;
  event.kind = kind;
  event.time = time;
  event.bytes = bytes;
  return event;
}

// The events of a timeline that fit.
class Events {
 public:
  explicit Events(const Timeline& timeline) : all_(nlohmann::json::parse(timeline.json())) {}

  std::vector<nlohmann::json> with(std::string_view phase, std::string_view name = {}) const {
    std::vector<nlohmann::json> found;
    for (const nlohmann::json& event : all_["traceEvents"]) {
      if (event["ph"] == phase && (name.empty() || event["name"] == name)) found.push_back(event);
    }
    return found;
  }

  std::vector<std::uint64_t> values(std::string_view counter) const {
    std::vector<std::uint64_t> values;
    for (const nlohmann::json& point : with("C", counter)) values.push_back(point["args"]["bytes"]);
    return values;
  }

 private:
  nlohmann::json all_;
};

TEST(Timeline, ShowsCountersPassesPhasesAndMarksInMicroseconds) {
  Timeline timeline;
  timeline.begin_trace("small.trace", "sim", 1000_us);
  timeline.name_stream(70, "stream 0");
  timeline.name_stream(71, "stream 1");
  timeline.begin_pass(1, 1000_us);
  timeline.begin_phase("warm up", 1001_us);
  timeline.on_event(event(EventKind::create, 1002_us, 2_MiB));
  timeline.on_event(event(EventKind::allocate, 1004_us, 512_B));
  timeline.begin_phase("step", 1006_us);
  Event wait = event(EventKind::stream_wait, Nanoseconds{1007001}, 0_B);
  wait.stream = 71;
  wait.other = 70;
  timeline.on_event(wait);
  timeline.use(71, TraceBlock{.id = 9, .bytes = 512_B}, 1008_us, 4_us);
  timeline.on_event(event(EventKind::deallocate, 1009_us, 512_B));
  timeline.end_pass(1010_us);

  const Events events(timeline);
  EXPECT_EQ(events.with("M", "process_name")[0]["args"]["name"], "small.trace on sim");
  EXPECT_THAT(events.values("live"), ElementsAre(512, 0));
  EXPECT_THAT(events.values("reserved"), ElementsAre((2_MiB).count));
  EXPECT_EQ(events.with("X", "pass 1")[0]["ts"], 0.0);
  EXPECT_EQ(events.with("X", "pass 1")[0]["dur"], 10.0);
  EXPECT_EQ(events.with("X", "warm up")[0]["dur"], 5.0);
  EXPECT_EQ(events.with("X", "step")[0]["dur"], 4.0);
  EXPECT_EQ(events.with("i", "create")[0]["ts"], 2.0);
  EXPECT_EQ(events.with("X", "uses block 9")[0]["dur"], 4.0);
  const auto waits = events.with("i", "waits for stream 0");
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0]["ts"], 7.001);
  EXPECT_EQ(waits[0]["tid"], events.with("X", "uses block 9")[0]["tid"])
      << "both on stream 1's row";
}

TEST(Timeline, AWaitForAllStreamsSaysSo) {
  Timeline timeline;
  timeline.begin_trace("small.trace", "sim", 0_us);
  timeline.name_stream(71, "stream 1");
  timeline.begin_pass(1, 0_us);
  Event wait = event(EventKind::stream_wait, 1_us, 0_B);
  wait.stream = 71;
  wait.other = Stream::all().id;
  timeline.on_event(wait);
  timeline.end_pass(2_us);
  const Events events(timeline);
  EXPECT_THAT(events.with("i", "waits for all streams"), SizeIs(1));
  for (const nlohmann::json& row : events.with("M", "thread_name")) {
    EXPECT_NE(row["args"]["name"], "another stream");
  }
}

TEST(Timeline, HostWaitIsAsLongAsItTook) {
  Timeline timeline;
  timeline.begin_trace("t", "sim", 0_us);
  timeline.begin_pass(1, 0_us);
  Event wait = event(EventKind::host_wait, 30_us, 0_B);
  wait.duration = 20_us;
  timeline.on_event(wait);
  timeline.end_pass(40_us);
  const auto waits = Events(timeline).with("X", "host waits for another stream");
  ASSERT_THAT(waits, SizeIs(1));
  EXPECT_EQ(waits[0]["ts"], 10.0);
  EXPECT_EQ(waits[0]["dur"], 20.0);
}

TEST(Timeline, EventsOutsideAPassAreNotShown) {
  Timeline timeline;
  timeline.begin_trace("t", "sim", 0_us);
  timeline.on_event(event(EventKind::create, 1_us, 2_MiB));
  timeline.begin_pass(1, 2_us);
  timeline.end_pass(3_us);
  timeline.on_event(event(EventKind::release, 4_us, 2_MiB));
  EXPECT_THAT(Events(timeline).with("i"), IsEmpty());
  EXPECT_THAT(Events(timeline).with("C"), IsEmpty());
}

TEST(Timeline, EachTraceIsAProcessOfItsOwn) {
  Timeline timeline;
  for (const char* name : {"one", "two"}) {
    timeline.begin_trace(name, "sim", 0_us);
    timeline.begin_pass(1, 0_us);
    timeline.end_pass(1_us);
  }
  const auto passes = Events(timeline).with("X", "pass 1");
  ASSERT_THAT(passes, SizeIs(2));
  EXPECT_NE(passes[0]["pid"], passes[1]["pid"]);
}

TEST(Timeline, NamesThatAreNotUtf8StayReadable) {
  Timeline timeline;
  timeline.begin_trace("bad \xff name \"quoted\"", "sim", 0_us);
  EXPECT_THAT(Events(timeline).with("M", "process_name"), SizeIs(1));
}

TEST(Timeline, LongReplayStaysSmallAndKeepsItsPeaksAndCounts) {
  constexpr int kBlocks = 300000, kPeakAt = 123456;
  Timeline timeline;
  timeline.begin_trace("long", "sim", 0_us);
  timeline.begin_pass(1, 0_us);
  std::int64_t now = 0;
  for (int i = 0; i < kBlocks; ++i) {
    const Bytes bytes = i == kPeakAt ? 7_GiB : Bytes{512 * (std::uint64_t(i) % 1000 + 1)};
    timeline.on_event(event(EventKind::map, Nanoseconds{now += 900}, 1_B));
    timeline.on_event(event(EventKind::allocate, Nanoseconds{now += 900}, bytes));
    timeline.on_event(event(EventKind::deallocate, Nanoseconds{now += 900}, bytes));
    timeline.use(5, TraceBlock{}, Nanoseconds{now}, 1_us);
  }
  timeline.end_pass(Nanoseconds{now});

  EXPECT_LT(timeline.json().size(), 5u << 20);
  const Events events(timeline);
  const auto live = events.values("live");
  EXPECT_EQ(*std::max_element(live.begin(), live.end()), (7_GiB).count);
  EXPECT_EQ(live.back(), 0u);
  EXPECT_GT(live.size(), 4000u) << "detail is lost without need";
  double last = 0;
  for (const nlohmann::json& point : events.with("C", "live")) {
    EXPECT_GE(point["ts"], last);
    last = point["ts"];
  }
  std::uint64_t maps = 0, mapped = 0;
  for (const nlohmann::json& mark : events.with("i", "map")) {
    maps += mark["args"]["count"].get<std::uint64_t>();
    mapped += mark["args"]["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(maps, kBlocks);
  EXPECT_EQ(mapped, kBlocks);
}

}  // namespace
}  // namespace weir
