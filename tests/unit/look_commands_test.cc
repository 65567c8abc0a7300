// SPDX-License-Identifier: Apache-2.0
// `weir report` and `weir diff`: what they print where, and what they return.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/unit/command_fixture.h"
#include "weir/event.h"
#include "weir/recorder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using test::Finished;
using test::kSmallTrace;

class LookCommands : public test::WeirCommand {
 protected:
  // Leaves no page of `weir look` elsewhere.
  Finished in_own_folder(const std::string& arguments, const std::string& environment = "") const {
    return shell(environment + "TMPDIR=" + path("") + " " WEIR_TOOL " " + arguments,
                 ">" + path("out"));
  }
};

constexpr std::string_view kLarger =
    "a 0 6291456 0 0\n"
    "a 1 1000 1 10\n"
    "r 0 6291456 0 500\n"
    "f 0 6291456 0 500\n";

TEST_F(LookCommands, ReportShowsTheMomentThatIsAskedFor) {
  const std::string trace = write("small.trace", kSmallTrace);
  const Finished text = weir("report " + trace);
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.err, IsEmpty());
  EXPECT_THAT(text.out, AllOf(HasSubstr("peak of live"), HasSubstr("3.00 MiB"),
                              Not(HasSubstr("the moment asked for"))));
  EXPECT_THAT(weir("report --at 400us " + trace).out, HasSubstr("the moment asked for"));
  const auto parsed = nlohmann::json::parse(weir("report --json --at 400us " + trace).out);
  EXPECT_EQ(parsed["peak_live"]["live_bytes"], 3145728 + 1024);
  EXPECT_EQ(parsed["at"]["live_bytes"], 3145728 + 1024);
  EXPECT_EQ(parsed["end"]["live_bytes"], 1024);
}

// Two devices; the second ran out of memory, half of which had no block.
constexpr const char* kRanOut = R"json({"segments": [
  {"device": 0, "address": 1, "total_size": 2097152, "stream": 0, "segment_type": "small",
   "blocks": [{"size": 2097152, "state": "inactive"}]},
  {"device": 1, "address": 67108864, "total_size": 20971520, "stream": 0, "segment_type": "large",
   "blocks": [{"size": 10485760, "state": "active_allocated"},
              {"size": 10485760, "state": "inactive"}]}],
 "device_traces": [
  [{"action": "segment_alloc", "addr": 1, "size": 2097152, "time_us": 1},
   {"action": "alloc", "addr": 1, "size": 512, "time_us": 2},
   {"action": "free_completed", "addr": 1, "size": 512, "time_us": 3}],
  [{"action": "segment_alloc", "addr": 67108864, "size": 20971520, "stream": 0, "time_us": 11},
   {"action": "alloc", "addr": 67108864, "size": 10485760, "stream": 0, "time_us": 12, "frames": [
     {"name": "at::_ops::relu::call()", "filename": "??", "line": 0},
     {"name": "forward", "filename": "/x/somebody/net/model.py", "line": 7}]},
   {"action": "oom", "size": 20971520, "device_free": 1048576, "stream": 0, "time_us": 19, "frames":
     [{"name": "loss", "filename": "/x/somebody/net/model.py", "line": 9}]}],
  []]})json";

TEST_F(LookCommands, TheRequestThatFailedIsTheHeadlineOfTheDeviceThatRanOut) {
  const std::string file = write("ran_out.json", kRanOut);
  const Finished report = weir("report " + file);
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(
      report.out,
      StartsWith(
          "Out of memory on device 1 of 3: 20.0 MiB wanted at 7.00 us by loss (model.py:9); "
          "10.0 MiB was live,\n10.0 MiB unused in pieces of at most 10.0 MiB, 1.00 MiB "
          "free on the device.\nMost of it: 10.0 MiB (100.0 %) by forward (model.py:7) · relu.\n"
          "No setting is enough alone: up to the failed request it needs 30.0 MiB, and this "
          "program "
          "could have\nat most 21.0 MiB; a batch at most 0.66 times as large gets past this "
          "request. Run smaller batches,\nor"));
  // What the verdict advises is not advised again.
  const std::string_view all = report.out;
  EXPECT_EQ(all.find("smaller batches"), all.rfind("smaller batches"));
  const auto json = nlohmann::json::parse(weir("report --json " + file).out);
  EXPECT_EQ(json["length_us"], 7);  // the failure at 19 us is later than the last event
  EXPECT_EQ(json["failed_request"]["requested_bytes"], 20 << 20);
  EXPECT_EQ(json["failed_request"]["free_bytes"], 1 << 20);
  EXPECT_EQ(json["pytorch"]["inactive"]["remainder_bytes"], 10 << 20);
  EXPECT_THAT(weir("report --device 0 " + file).out,
              HasSubstr(" ns, 512 B was live in 1 block on device 0 of 3.\n"));
  for (const std::string nth : {"2", "7"}) {
    const Finished none = weir("report --device " + nth + " " + file);
    EXPECT_EQ(none.code, 3);
    EXPECT_THAT(none.err, HasSubstr("ran_out.json: device " + nth + " was not used; name 0 or 1"));
  }
}

// Ten segments of 20 MiB, each with a block of 12 MiB when `wanted` MiB more are asked for. `free`:
// what the device had. `had_large`: blocks of 20 MiB were there before.
std::string split_memory(int wanted, std::string_view free, bool had_large = true,
                         bool expandable = false) {
  constexpr std::uint64_t kMiB = 1 << 20;
  std::string events, segments;
  int time = 0;
  const auto event = [&](const char* action, int nth, std::uint64_t bytes) {
    events += fmt::format(R"({{"action":"{}","addr":{},"size":{},"stream":0,"time_us":{}}},)",
                          action, (1000 + 20 * nth) * kMiB, bytes, ++time);
  };
  for (int i = 0; i < 10; ++i) event("segment_alloc", i, 20 * kMiB);
  for (int i = 0; i < 10 && had_large; ++i) event("alloc", i, 20 * kMiB);
  for (int i = 0; i < 10 && had_large; ++i) event("free_completed", i, 20 * kMiB);
  for (int i = 0; i < 10; ++i) event("alloc", i, 12 * kMiB);
  for (int i = 0; i < 10; ++i) {
    segments += fmt::format(
        R"({}{{"address":{},"total_size":20971520,"stream":0,"segment_type":"large","blocks":[
           {{"size":12582912,"state":"active_allocated"}},{{"size":8388608,"state":"inactive"}}]}})",
        i == 0 ? "" : ",", (1000 + 20 * i) * kMiB);
  }
  return fmt::format(
      R"({{"segments":[{}],"device_traces":[[{}{{"action":"oom","size":{},"stream":0,"time_us":99{}}}]],
         "allocator_settings":{{"expandable_segments":{}}}}})",
      segments, events, wanted * kMiB, free, expandable);
}

// A snapshot may be of another version of PyTorch's, or damaged.
TEST_F(LookCommands, WhatCannotBeReadIsNamedAndTheRestIsRead) {
  const std::string split = split_memory(16, R"(,"device_free":1048576)");
  constexpr const char* kBlock = R"("size":12582912,"state":"active_allocated")";
  constexpr const char* kOurs = R"({"weir_snapshot": 1, "time_ns": 3, "blocks": [
    {"address": 512, "bytes": 512, "requested": 500}]})";
  const struct {
    std::string in, from, to, named;
  } cases[] = {
      {split, kBlock, R"("size":12582912,"state":"active_new")", ""},
      {split, kBlock, R"("size":null,"state":"active_allocated")", "segments[0].blocks[0].size"},
      {split, kBlock, R"("size":"12 MiB","state":"active_allocated")",
       "segments[0].blocks[0].size"},
      {split, kBlock, R"("state":"active_allocated")", "segments[0].blocks[0].size"},
      {split, kBlock, R"("size":12582912,"state":null)", "segments[0].blocks[0].state"},
      {split, kBlock, R"("size":12582912,"state":"active_allocated"}]},
                      {"address":1,"total_size":2097152,"segment_type":"small"},
                      {"address":9000000,"total_size":0,"blocks":[{"size":0,"state":"inactive")",
       "segments[1].blocks"},
      {kRanOut, "\"total_size\": 20971520", "\"total_size\": -5", "segments[1].total_size"},
      {kRanOut, "\"size\": 20971520, \"dev", "\"size\": 1e99, \"dev", "device_traces[1][2].size"},
      {kRanOut, "\"time_us\": 19", "\"time_us\": -19", "device_traces[1][2].time_us"}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.to);
    std::string snapshot = each.in;
    snapshot.replace(snapshot.find(each.from), each.from.size(), each.to);
    const Finished report = weir("report --json " + write("bad.json", snapshot));
    EXPECT_EQ(report.code, each.named.empty() ? 0 : 3) << report.err;
    const auto json = nlohmann::json::parse(report.out);
    EXPECT_EQ(json["damage"], each.named.empty() ? "" : "1 value can't be read: " + each.named);
    if (each.in != split) continue;
    EXPECT_THAT(json["verdict"][0].get<std::string>(), HasSubstr("120 MiB was live, "));
    EXPECT_GE(json["pytorch"]["reserved_bytes"], 200 << 20);
  }
  for (const char* const command : {"convert -o - ", "fit --gpu 24GiB "}) {
    const Finished run = weir(command + path("bad.json"));
    EXPECT_EQ(run.code, 3) << command;
    EXPECT_THAT(run.err, HasSubstr("device_traces[1][2].time_us")) << command;
  }
  std::string ours = kOurs;
  ours.replace(ours.find("\"bytes\": 512"), 12, "\"bytes\": -512");
  const Finished report = weir("report " + write("bad.json", ours));
  EXPECT_EQ(report.code, 3);
  EXPECT_THAT(report.err, HasSubstr("bad.json: blocks[0].bytes is -512"));
}

TEST_F(LookCommands, TheVerdictIsTheSameInTextInJsonAndInLook) {
  constexpr const char* kFree = R"(,"device_free":1048576)";
  const struct {
    std::string name, snapshot, why, help;
  } cases[] = {
      {"split", split_memory(16, kFree),
       "Out of memory on device 0 by fragmentation: 16.0 MiB wanted at 88.0 us; 120 MiB was live, "
       "80.0 MiB unused in pieces of at most 8.00 MiB, 1.00 MiB free on the device.",
       "What helps: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would hold 200 MiB, Weir "
       "(python -m weir run SCRIPT) 200 MiB, with this request (201 MiB were available)."},
      {"full", split_memory(100, kFree), "Out of memory on device 0: 100 MiB wanted at 88.0 us; ",
       "No setting is enough alone: up to the failed request it needs 220 MiB, and this program "
       "could have at most 201 MiB; a batch at most 0.79 times as large gets past this request "
       "with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."},
      {"unknown", split_memory(100, ""), "Out of memory on device 0: 100 MiB wanted at 88.0 us; ",
       "What helps is not known: the file does not say how much memory there was. 220 MiB is "
       "needed at least; weir fit FILE --gpu SIZE tries the settings."}};
  for (const auto& each : cases) {
    const std::string file = write(each.name + ".json", each.snapshot);
    const auto json = nlohmann::json::parse(weir("report --json " + file).out);
    EXPECT_THAT(json["verdict"][0].get<std::string>(), StartsWith(each.why));
    EXPECT_EQ(json["verdict"][2], each.help);
    // Settings are judged by replays alone.
    for (const auto& advice : json["advice"]) {
      EXPECT_THAT(advice["remedy"].get<std::string>(), Not(HasSubstr("ALLOC_CONF")));
    }
    std::string said;
    for (const auto& line : json["verdict"]) said += line.get<std::string>() + " ";
    for (const std::string command : {"report ", "look --no-open "}) {
      std::string text = weir(command + file).out;
      std::replace(text.begin(), text.end(), '\n', ' ');
      EXPECT_THAT(text, StartsWith(said)) << command;
    }
  }
}

// Ten segments were split by blocks that the file lacks: no replay fails.
TEST_F(LookCommands, WhatFitSaysFitsTheVerdictNames) {
  constexpr const char* kFree = R"(,"device_free":1048576)";
  const std::string cut = write("cut.json", split_memory(16, kFree, false, true));
  const auto ways = nlohmann::json::parse(weir("fit --json --gpu 201MiB " + cut).out)["allocators"];
  ASSERT_EQ(ways.size(), 4U);
  EXPECT_TRUE(ways[0]["fits"]);
  EXPECT_FALSE(ways[2]["fits"]) << "as it ran";
  EXPECT_THAT(weir("fit --gpu 201MiB " + cut).out,
              HasSubstr("\n\nCaution: by replay your own setting (expandable_segments:True) would "
                        "have fitted, and it did not.\n"));
  EXPECT_EQ(
      nlohmann::json::parse(weir("report --json " + cut).out)["verdict"][2],
      "What helps: PyTorch without PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would hold "
      "136 MiB, Weir (python -m weir run SCRIPT) 136 MiB, with this request (201 MiB were "
      "available). Caution: by replay your own setting (expandable_segments:True) would have "
      "fitted, and it did not.");
  // Where fit finds no setting, neither does the verdict.
  const std::string split = write("split.json", split_memory(16, kFree, true, true));
  const auto split_ways =
      nlohmann::json::parse(weir("fit --json --gpu 201MiB " + split).out)["allocators"];
  for (const auto& way : split_ways) {
    EXPECT_EQ(way["fits"].get<bool>(), way["allocator"] == "Weir") << way;
  }
  EXPECT_EQ(
      nlohmann::json::parse(weir("report --json " + split).out)["verdict"][2],
      "What helps: Weir (python -m weir run SCRIPT) would hold 200 MiB, with this request (201 "
      "MiB were available). Replays can't judge the others: by replay your own setting "
      "(expandable_segments:True) would have fitted, and it did not.");
}

TEST_F(LookCommands, ADeviceIsRefusedWhereAFileHasOne) {
  const std::string trace = write("small.trace", kSmallTrace);
  for (const std::string& command :
       {std::string("report "), std::string("fit "), "convert -o " + path("x") + " "}) {
    const Finished refused = weir(command + "--device 3 " + trace);
    EXPECT_EQ(refused.code, 2) << command;
    EXPECT_THAT(refused.err,
                HasSubstr("small.trace: only PyTorch's snapshots have several devices: "
                          "leave --device out"));
  }
}

TEST_F(LookCommands, PytorchsFormatKeepsTheDeviceAndWhatWasFreeOnIt) {
  const std::string file = write("ran_out.json", kRanOut);
  const Finished viz = weir("timeline " + file + " --to memory_viz -o " + path("viz.json"));
  EXPECT_EQ(viz.code, 0) << viz.err;
  const auto json = nlohmann::json::parse(std::ifstream(path("viz.json")));
  ASSERT_EQ(json["device_traces"].size(), 2U);
  EXPECT_THAT(json["device_traces"][0], IsEmpty());
  for (const auto& segment : json["segments"]) EXPECT_EQ(segment["device"], 1);
  const auto& events = json["device_traces"][1];
  const auto oom = std::find_if(events.begin(), events.end(),
                                [](const auto& event) { return event["action"] == "oom"; });
  ASSERT_NE(oom, events.end());
  EXPECT_EQ((*oom)["device_free"], 1 << 20);
}

TEST_F(LookCommands, WhatPyTorchHeldWithoutABlockHasACause) {
  const std::string file = write("causes.json", R"({"device_traces": [[]], "segments": [
    {"address": 1073741824, "total_size": 41943040, "stream": 0, "segment_type": "large", "blocks": [
      {"size": 31457280, "state": "active_allocated"}, {"size": 10485760, "state": "inactive"}]},
    {"address": 2147483648, "total_size": 20971520, "stream": 0, "segment_type": "large", "blocks": [
      {"size": 20971520, "state": "inactive"}]},
    {"address": 3221225472, "total_size": 20971520, "stream": 7, "segment_type": "large", "blocks": [
      {"size": 15728640, "state": "active_pending_free"}, {"size": 5242880, "state": "inactive"}]},
    {"address": 4294967296, "total_size": 2097152, "stream": 0, "segment_type": "small", "blocks": [
      {"size": 1048576, "state": "inactive"}, {"size": 1048576, "state": "active_allocated"}]},
    {"address": 5368709120, "total_size": 20971520, "stream": 0, "segment_type": "large",
     "segment_pool_id": [0, 1], "blocks": [
      {"size": 12582912, "state": "active_allocated"}, {"size": 8388608, "state": "inactive"}]}]})");
  const auto json = nlohmann::json::parse(weir("report --json " + file).out);
  const nlohmann::json& held = json["pytorch"];
  EXPECT_EQ(held["reserved_bytes"], 102 << 20);
  EXPECT_EQ(held["live_bytes"], 58 << 20);
  EXPECT_EQ(held["largest_inactive_bytes"], 20 << 20);
  EXPECT_EQ(held["inactive"], nlohmann::json({{"graph_pool_bytes", 8 << 20},
                                              {"small_pool_bytes", 1 << 20},
                                              {"other_stream_bytes", 5 << 20},
                                              {"remainder_bytes", 10 << 20},
                                              {"cached_bytes", 20 << 20}}));
}

// A history that was cut: of three blocks without an allocation one is freed, one stays; the third
// was freed before, and waits for another stream.
constexpr const char* kCut = R"json({"segments": [
  {"device": 0, "address": 1073741824, "total_size": 41943040, "stream": 0, "segment_type": "large",
   "blocks": [{"size": 10485760, "state": "active_allocated", "frames": []},
              {"size": 4194304, "state": "active_pending_free", "frames": []},
              {"size": 27262976, "state": "inactive"}]}],
 "device_traces": [[
  {"action": "free_completed", "addr": 1090519040, "size": 16777216, "stream": 0, "time_us": 5},
  {"action": "alloc", "addr": 1107296256, "size": 1048576, "stream": 0, "time_us": 7, "frames": [
    {"name": "at::_ops::relu::call()", "filename": "??", "line": 0},
    {"name": "forward", "filename": "/x/net/model.py", "line": 7}]},
  {"action": "free_completed", "addr": 1107296256, "size": 1048576, "stream": 0, "time_us": 9}]]})json";

TEST_F(LookCommands, OnlyWhatStaysThroughTheRecordingIsTakenForWeights) {
  const std::string file = write("cut.json", kCut);
  const auto json = nlohmann::json::parse(weir("report --json " + file).out);
  std::map<std::string, std::uint64_t> purposes;
  for (const auto& each : json["peak_live"]["by_purpose"]) {
    purposes[each["name"]] = each["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(purposes,
            (std::map<std::string, std::uint64_t>{{"weights", 10 << 20}, {"unknown", 16 << 20}}));
  EXPECT_THAT(weir("report " + file).out,
              HasSubstr("\nMost of it: 16.0 MiB (61.5 %) from before the recording.\n"));
}

TEST_F(LookCommands, ASnapshotWithoutTheSegmentsOfItsDeviceSaysSo) {
  std::string snapshot = kRanOut;
  snapshot.replace(snapshot.find("{\"device\": 1,"), 13, "{\"device\": 3,");
  const std::string file = write("no_segments.json", snapshot);
  const Finished report = weir("report " + file);
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(report.out, StartsWith("Out of memory on device 1 of 4: "));
  EXPECT_THAT(report.out, AllOf(ContainsRegex("The file lacks segments of device 1: what PyTorch "
                                              "held is not\\s+known"),
                                Not(ContainsRegex("PyTorch held [0-9]")), Not(HasSubstr("WEIR_"))));
  const Finished beyond = weir("report --device 3 " + file);  // it has no history
  EXPECT_EQ(beyond.code, 0) << beyond.err;
  EXPECT_THAT(
      beyond.out,
      StartsWith("At the moment of the snapshot 10.0 MiB was live in 1 block on device 3 of "
                 "4, which held most."));
}

TEST_F(LookCommands, AMomentIsWrittenInFormatsThatHaveOne) {
  const std::string trace = write("small.trace", kSmallTrace);
  const auto rows = [&](const std::string& options) {
    const Finished run = weir("timeline --to csv -o=- " + options + " " + trace);
    EXPECT_EQ(run.code, 0) << run.err;
    return std::count(run.out.begin(), run.out.end(), '\n') - 1;
  };
  EXPECT_EQ(rows("--at begin"), 0);
  EXPECT_EQ(rows("--at peak-live"), 2);
  EXPECT_EQ(rows("--at end"), 1);
  for (const std::string to : {"html", "perfetto"}) {
    const Finished run = weir("timeline --at end --to " + to + " -o /dev/null " + trace);
    EXPECT_EQ(run.code, 2) << to;
    EXPECT_THAT(run.err, HasSubstr("a moment has none: use memory_viz or csv"));
  }
}

TEST_F(LookCommands, LookSaysItInThreeLinesAndMakesAPage) {
  const Finished look = in_own_folder("look --no-open " + write("ran_out.json", kRanOut));
  if (look.err.find("without D3") != std::string::npos) GTEST_SKIP() << look.err;
  EXPECT_EQ(look.code, 0) << look.err;
  EXPECT_THAT(look.out, StartsWith("Out of memory on device 1 of 3: 20.0 MiB wanted"));
  const std::string says = "\nOpen this page in a browser: ";
  const std::size_t at = look.out.find(says);
  ASSERT_NE(at, std::string::npos) << look.out;
  const std::string page =
      look.out.substr(at + says.size(), look.out.find('\n', at + 1) - at - says.size());
  EXPECT_THAT(page, testing::EndsWith("-ran_out.json.html"));
  EXPECT_TRUE(std::filesystem::file_size(page) > 100'000);
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(page).permissions(), perms::owner_read | perms::owner_write);
}

// Some openers end when the browser does.
TEST_F(LookCommands, LookDoesNotWaitForTheBrowser) {
  const std::string file = write("small.trace", kSmallTrace);
  const std::string opener = write("xdg-open", "#!/bin/sh\necho $1 > $0.asked; sleep 20\n");
  std::filesystem::permissions(opener, std::filesystem::perms::owner_all);
  const auto begin = std::chrono::steady_clock::now();
  const Finished look = in_own_folder("look " + file, "DISPLAY=:9 PATH=" + path("") + ":$PATH ");
  if (look.err.find("without D3") != std::string::npos) GTEST_SKIP() << look.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  EXPECT_THAT(look.out, HasSubstr("\nOpening in a browser: "));
}

TEST_F(LookCommands, LookSaysWhereThePageIsIfNoBrowserOpens) {
  const std::string file = write("small.trace", kSmallTrace);
  for (const auto& [display, exit_code] : {std::pair{"", 0}, std::pair{":9", 3}}) {
    const std::string opener =
        write("xdg-open", "#!/bin/sh\nexit " + std::to_string(exit_code) + "\n");
    std::filesystem::permissions(opener, std::filesystem::perms::owner_all);
    const Finished look =
        in_own_folder("look " + file, "WAYLAND_DISPLAY= BROWSER= DISPLAY=" + std::string(display) +
                                          " PATH=" + path("") + ":$PATH ");
    if (look.err.find("without D3") != std::string::npos) GTEST_SKIP() << look.err;
    EXPECT_EQ(look.code, 0) << look.err;
    EXPECT_THAT(
        look.out,
        testing::AllOf(
            HasSubstr("\nNo browser opened. Open this page in a browser: /"),
            testing::EndsWith("\nTo keep a page: weir timeline FILE --to html -o PAGE.html\n")));
  }
}

TEST_F(LookCommands, LookLeavesNothingBehindWhenItIsKilledOrFails) {
  const std::string file = write("small.trace", kSmallTrace), folder = path("pages");
  std::filesystem::create_directory(folder);
  // A file of more than 8 blocks is a signal that kills.
  const Finished killed =
      shell("ulimit -c 0; ulimit -f 8; TMPDIR=" + folder + " " WEIR_TOOL " look --no-open " + file,
            ">" + path("out"));
  EXPECT_NE(killed.code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

// As PyTorch 2.0 writes it: stacks are in the history of a block, and no time is known.
TEST_F(LookCommands, ASnapshotOfPyTorch20HasItsStacksAndNoInventedTimes) {
  const Finished report = weir("report " + write("old.json", R"({"segments": [
      {"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "blocks": [
        {"size": 2097152, "state": "active_allocated", "history": [
          {"addr": 4096, "real_size": 2000000, "frames": [
            {"name": "make", "filename": "C:\\Users\\somebody\\net\\model.py", "line": 3}]}]}]}],
      "device_traces": [[]]})"));
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(
      report.out,
      StartsWith("At the moment of the snapshot 1.91 MiB was live in 1 block on device 0.\n"
                 "Most of it: 1.91 MiB (100.0 %) by make (model.py:3).\n"
                 "No setting helps: of the 2.00 MiB held at most 94.5 KiB is to gain, all else "
                 "is in use.\n\n"));
  EXPECT_THAT(report.out, AllOf(HasSubstr("make (model.py:3)"), HasSubstr("the file has no times"),
                                Not(ContainsRegex("[0-9] [mu]?s\\b")), Not(HasSubstr("somebody"))));
}

TEST_F(LookCommands, DiffPrintsWhatChangedAndTheFirstCallThatDiffers) {
  const std::string small = write("small.trace", kSmallTrace),
                    larger = write("larger.trace", kLarger);
  const std::string both = small + " " + larger, said = "differs (bytes";
  const Finished text = weir("diff " + both);
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("peak live"), HasSubstr("+3.00 MiB"), HasSubstr(said)));
  const auto json = nlohmann::json::parse(weir("diff --json " + both).out);
  EXPECT_EQ(json["peaks"][0]["change"], 3145728);
  EXPECT_THAT(weir("diff " + small + " " + write("ran_out.json", kRanOut)).out,
              HasSubstr("peaks; reserved by Weir, replayed"));
  const Finished same = weir("diff " + small + " " + small);
  EXPECT_EQ(same.code, 0);
  EXPECT_THAT(same.out, HasSubstr("Nothing that a report counts has changed."));

  EXPECT_THAT(weir("diff --calls " + both).out,
              AllOf(HasSubstr(said), Not(HasSubstr("peak live"))));
  const auto calls = nlohmann::json::parse(weir("diff --calls --json " + both).out);
  EXPECT_EQ(calls["calls"]["differs"][0], "bytes");
  EXPECT_FALSE(calls.contains("peaks"));
  EXPECT_THAT(weir("diff --calls " + small + " " + small).out, HasSubstr("at the same addresses."));
}

TEST_F(LookCommands, ARunningProgramsRecordingIsReportedAsFarAsItIs) {
  auto recorder = Recorder::open(path("run.weir"), {.program = "train"});
  ASSERT_TRUE(recorder.ok()) << recorder.error().message();
  (*recorder)->on_start({});
  (*recorder)->on_event({.kind = EventKind::create, .page = {0}, .bytes = 2_MiB});
  ASSERT_TRUE((*recorder)->flush().ok());
  const Finished while_it_runs = weir("report --json " + path("run.weir"));
  EXPECT_EQ(while_it_runs.code, 3);
  EXPECT_THAT(while_it_runs.err, HasSubstr("the program was killed or still records"));
  const nlohmann::json report = nlohmann::json::parse(while_it_runs.out);
  EXPECT_EQ(report["program"], "train");
  EXPECT_EQ(report["end"]["reserved_bytes"], 2 << 20);
  ASSERT_TRUE((*recorder)->close().ok());
  EXPECT_EQ(weir("report " + path("run.weir")).code, 0);
}

// A recording of three blocks of events.
std::string recorded(const std::string& path) {
  auto recorder = Recorder::open(path, {.program = "train"});
  EXPECT_TRUE(recorder.ok());
  (*recorder)->on_start({});
  for (std::uint32_t page = 0; page < 3; ++page) {
    const Address at{(page + 1) * (2_MiB).count};
    (*recorder)->on_event({.kind = EventKind::create, .page = {page}, .bytes = 2_MiB});
    (*recorder)->on_event({.kind = EventKind::map, .page = {page}, .address = at, .bytes = 2_MiB});
    (*recorder)->on_event({.kind = EventKind::allocate,
                           .stream = 1,
                           .address = at,
                           .bytes = 2_MiB,
                           .requested = 2_MiB});
    EXPECT_TRUE((*recorder)->flush().ok());
  }
  EXPECT_TRUE((*recorder)->close().ok());
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(LookCommands, EveryReaderOfADamagedRecordingNamesItAndReturnsThree) {
  const std::string sound = recorded(path("sound.weir"));
  const std::size_t middle = sound.find("WBLK", sound.size() / 2);
  std::string flipped = sound;
  flipped[middle + 30] = static_cast<char>(flipped[middle + 30] ^ 0x41);
  const std::string cut = write("cut.weir", sound.substr(0, middle + 30)),
                    damaged = write("damaged.weir", flipped);
  for (const std::string& file : {cut, damaged}) {
    for (const std::string& command :
         {std::string("report "), std::string("fit "), std::string("look --no-open "),
          "convert -o " + path("x.trace") + " ", "timeline --to csv -o " + path("x.csv") + " ",
          "timeline --at end --to csv -o " + path("x.csv") + " ",
          "diff " + path("sound.weir") + " "}) {
      const Finished run = in_own_folder(command + file);
      if (run.err.find("without D3") != std::string::npos) continue;
      EXPECT_EQ(run.code, 3) << command << run.err;
      EXPECT_THAT(run.err, AllOf(HasSubstr(file + ": the "), HasSubstr("record again"),
                                 Not(HasSubstr("/dev/fd"))))
          << command;
      EXPECT_THAT(run.out, Not(HasSubstr("snapshot"))) << command;
    }
  }
}

TEST_F(LookCommands, ReplayRunsWhateverConvertMakesATraceOf) {
  (void)recorded(path("sound.weir"));
  for (const std::string& file : {path("sound.weir"), write("ran_out.json", kRanOut)}) {
    EXPECT_EQ(weir("convert -o " + path("made.trace") + " " + file).code, 0);
    const Finished own = weir("replay --json " + file);
    const Finished made = weir("replay --json " + path("made.trace"));
    EXPECT_EQ(own.code, made.code) << own.err;
    nlohmann::json own_json = nlohmann::json::parse(own.out);
    nlohmann::json made_json = nlohmann::json::parse(made.out);
    EXPECT_GT(own_json["blocks"], 0);
    own_json.erase("trace"), made_json.erase("trace");
    EXPECT_EQ(own_json, made_json);
  }
}

TEST_F(LookCommands, RecordingWithoutAnEventIsRefused) {
  const std::string file = write("begun.weir", recorded(path("sound.weir")).substr(0, 16));
  for (const std::string command : {"report ", "fit ", "look --no-open "}) {
    const Finished run = in_own_folder(command + file);
    EXPECT_EQ(run.code, 3) << command;
    EXPECT_THAT(run.out, IsEmpty()) << command;
    EXPECT_THAT(run.err,
                AllOf(HasSubstr(file + ": no event can be read"), HasSubstr("record again")));
  }
}

}  // namespace
}  // namespace weir
