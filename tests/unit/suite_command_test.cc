// SPDX-License-Identifier: Apache-2.0
// `weir bench`: what it prints and writes, and the allocators that it loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/unit/command_fixture.h"

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
using Json = nlohmann::json;

class BenchCommand : public test::WeirCommand {
 protected:
  Json json_of(const Finished& finished) const {
    EXPECT_EQ(finished.code, 0) << finished.err;
    return Json::parse(finished.out, nullptr, false);
  }
  std::string faulty(const std::string& fault) const {
    return WEIR_FAULTY_FOLDER "/weir_suite_" + fault + ".so";
  }
  Finished run_faulty(const std::string& fault) const {
    return weir("bench --memory-only --allocator " + faulty(fault) + " " +
                write("small.trace",
                      "a 0 3145728 0 0\n"
                      "a 1 1000 1 10\n"
                      "u 1 0 15\n"
                      "a 2 5000000 0 20\n"));
  }
};

TEST_F(BenchCommand, ShowsEveryAllocatorOnEveryProgram) {
  const Finished run = weir("bench --family phases,pools --phases 2 --pairs 100 " +
                            write("small.trace", kSmallTrace));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("small: recorded"), HasSubstr("phases:1: "), HasSubstr("pools:1: "),
                    HasSubstr("driver-alone"), HasSubstr("best-fit"), HasSubstr("All 3 programs")));
  EXPECT_THAT(run.err, IsEmpty());
}

TEST_F(BenchCommand, JsonHasTheFiguresOfEach) {
  const Json json = json_of(weir("bench --json " + write("small.trace", kSmallTrace)));
  ASSERT_EQ(json["programs"].size(), 1u);
  const Json program = json["programs"][0];
  EXPECT_EQ(program["program"], "small");
  EXPECT_EQ(program["kind"], "recorded");
  EXPECT_TRUE(program["seed"].is_null());
  EXPECT_EQ(program["peak_live_bytes"], 3145728 + 1024);
  EXPECT_EQ(program["lower_bound_bytes"], 4 << 20);
  ASSERT_EQ(json["results"].size(), 3u);
  for (const Json& result : json["results"]) {
    EXPECT_GE(result["peak_held_bytes"], program["lower_bound_bytes"]);
    EXPECT_GE(result["ratio_over_time"], 1.0);
    EXPECT_EQ(result["host"].is_null(), result["allocator"] == "driver-alone");
  }
}

TEST_F(BenchCommand, TwoRunsGiveTheSameMemoryFiguresToTheByte) {
  const std::string command =
      "bench bench/traces/unet_like.trace.gz --family all --phases 3 "
      "--pairs 300 --seed 1,2 --allocator weir,best-fit,driver-alone "
      "--allocator " WEIR_EXAMPLE_ALLOCATOR;
  const Finished one = weir(command + " --memory-only --json"),
                 two = weir(command + " --memory-only --json");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_GT(Json::parse(one.out)["results"].size(), 60u);
  EXPECT_EQ(one.out, two.out);
  // With host time, which is another in each run, the rest is the same.
  Json timed = json_of(weir(command + " --json"));
  for (Json& result : timed["results"]) result["host"] = nullptr;
  EXPECT_EQ(timed, Json::parse(one.out));
}

TEST_F(BenchCommand, SeveralSeedsGiveAProgramEach) {
  const Json json =
      json_of(weir("bench --memory-only --json --family phases --seed 7,8 --phases 2 --pairs 60"));
  ASSERT_EQ(json["programs"].size(), 2u);
  EXPECT_EQ(json["programs"][0]["program"], "phases:7");
  EXPECT_EQ(json["programs"][1]["seed"], 8);
}

TEST_F(BenchCommand, OptionsOfGeneratedProgramsNeedOne) {
  const std::string bench = "bench --memory-only " + write("small.trace", kSmallTrace);
  for (const std::string option : {"--seed", "--phases", "--pairs"}) {
    const Finished refused = weir(bench + " " + option + " 2");
    EXPECT_EQ(refused.code, 2) << option;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("weir: " + option + ": "), HasSubstr("--family")));
  }
  EXPECT_EQ(weir(bench + " --family phases --seed 2 --phases 2 --pairs 60").code, 0);
}

TEST_F(BenchCommand, AFolderGivesItsTraces) {
  std::filesystem::create_directory(path("traces"));
  write("traces/b.trace", kSmallTrace);
  write("traces/a.trace", kSmallTrace);
  write("traces/notes.json", "{}");
  write("traces/README.md", "# Traces\n");
  std::filesystem::create_symlink("nowhere", path("traces/gone.trace"));
  const Json json = json_of(
      weir("bench --memory-only --json " + path("traces") + " " + write("a.trace", kSmallTrace)));
  ASSERT_EQ(json["programs"].size(), 3u);
  EXPECT_EQ(json["programs"][0]["program"], "a");
  EXPECT_EQ(json["programs"][1]["program"], "b");
  EXPECT_EQ(json["programs"][2]["program"], "a#2");
  std::filesystem::create_directory(path("empty"));
  const Finished none = weir("bench " + path("empty"));
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr(path("empty") + ": no file in this folder is a trace"));
}

TEST_F(BenchCommand, NoOutputReplacesATraceOfAFolderOrAnotherOutput) {
  std::filesystem::create_directory(path("traces"));
  write("traces/t.trace", kSmallTrace);
  const std::string bench = "bench --memory-only --allocator best-fit " + path("traces");
  for (const std::string& options :
       {"--json=" + path("traces/t.trace"), "-o " + path("traces/t.trace")}) {
    const Finished refused = weir(bench + " " + options);
    EXPECT_EQ(refused.code, 2) << options << refused.err;
    EXPECT_EQ(read("traces/t.trace"), kSmallTrace);
  }
}

// Twenty blocks of 12 MiB, every other one freed, and then one of 90 MiB that failed.
std::string fragmented() {
  std::string text;
  const auto line = [&text](const char* kind, int block, int time_us) {
    text += kind + std::to_string(block) + " 12582912 0 " + std::to_string(time_us) + "\n";
  };
  for (int i = 0; i < 20; ++i) line("a ", i, i);
  for (int i = 0; i < 20; i += 2) line("r ", i, 20), line("f ", i, 20);
  text += "m out of memory: 94371840 bytes on stream 0\n";
  line("r ", 1, 30);
  return text;
}

TEST_F(BenchCommand, FitSaysWithWhichAllocatorAProgramFits) {
  const std::string trace = write("fragmented.trace", fragmented());
  const Json fits = json_of(weir("fit --gpu 240MiB --json " + trace));
  ASSERT_EQ(fits["allocators"].size(), 4U);
  for (const Json& each : fits["allocators"]) {
    const std::string name = each["allocator"];
    // Segments of 12 MiB go back one by one; each 20 MiB of an expandable one have a block.
    EXPECT_EQ(each["fits"].get<bool>(), name != "PyTorch, expandable_segments:True") << name;
  }
  EXPECT_EQ(fits["allocators"][0]["peak_held_bytes"], (240 + 90) << 20);
  EXPECT_EQ(fits["peak_live_bytes"], 240 << 20);
  EXPECT_EQ(fits["going_bytes"], 120 << 20);
  // Where more is held than there is, it is said how the program fits.
  EXPECT_THAT(
      weir("fit --gpu 240MiB " + trace).out,
      AllOf(HasSubstr("without a limit"), ContainsRegex("PyTorch +330 MiB +fits, cache freed")));
  EXPECT_EQ(weir("fit --gpu 240mib " + trace).out, weir("fit --gpu 240MiB " + trace).out);
  const Json larger = json_of(weir("fit --gpu 360MiB --json " + trace));
  for (const Json& each : larger["allocators"]) {  // (360 - 240 + 120) / 120
    EXPECT_GT(each["may_grow"], 1) << each;
    EXPECT_LE(each["may_grow"], 2) << each;
  }
  EXPECT_GT(larger["allocators"][3]["may_grow"], 1.9);
  const Finished none = weir("fit --gpu 200MiB " + trace);
  EXPECT_EQ(none.code, 1) << none.err;
  EXPECT_THAT(none.out, AllOf(HasSubstr("fragmented needs 240 MiB at its peak"),
                              HasSubstr("PyTorch, expandable_segments:True"),
                              HasSubstr("out of memory"), Not(HasSubstr("fits"))));
  const Finished any = weir("fit " + trace);
  EXPECT_EQ(any.code, 0);
  EXPECT_THAT(any.out, AllOf(HasSubstr("330 MiB"), Not(HasSubstr("may grow"))));
}

// More than any GPU has: the answer is no, not an error.
TEST_F(BenchCommand, FitAnswersForProgramsOfAnySize) {
  const std::string trace = write("large.trace",
                                  "a 0 214748364800 0 0\n"
                                  "a 1 214748364800 0 10\n"
                                  "f 0 214748364800 0 20\n");
  const Finished none = weir("fit --gpu 80GiB " + trace);
  EXPECT_EQ(none.code, 1) << none.err;
  const Json fits = json_of(weir("fit --gpu 1TiB --json " + trace));
  for (const Json& each : fits["allocators"]) {
    EXPECT_TRUE(each["fits"].get<bool>()) << each;
  }
  for (const char* bytes : {"0", "24", "1023KiB"}) {
    const Finished bare = weir(std::string("fit --gpu ") + bytes + " " + trace);
    EXPECT_EQ(bare.code, 2) << bytes;
    EXPECT_THAT(bare.err, HasSubstr("less than any GPU has; give a unit too, such as 24GiB"));
  }
}

// One block of 10 MiB in a segment of 40 MiB, on the second of two devices; a request failed there.
constexpr const char* kHeldMore = R"json({"segments": [
  {"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
   "blocks": [{"size": 2097152, "state": "inactive"}]},
  {"device": 1, "address": 1073741824, "total_size": 41943040, "stream": 0, "segment_type": "large",
   "blocks": [{"size": 10485760, "state": "active_allocated"},
              {"size": 31457280, "state": "inactive"}]}],
 "device_traces": [[], [{"action": "oom", "size": 33554432, "device_free": 1048576, "stream": 0,
                         "time_us": 5}]],
 "allocator_settings": {"expandable_segments": SETTING, "max_split_size": -1}})json";

// The model knows nothing of what PyTorch cached before the file begins; the file does.
TEST_F(BenchCommand, FitClaimsNoLessThanTheFileShowsForTheSameSettings) {
  for (const bool expandable : {false, true}) {
    std::string snapshot = kHeldMore;
    snapshot.replace(snapshot.find("SETTING"), 7, expandable ? "true" : "false");
    const std::string file = write("held.json", snapshot);
    const Json fits = Json::parse(weir("fit --gpu 41MiB --json " + file).out);
    EXPECT_EQ(fits["recorded_held_bytes"], 40 << 20);
    EXPECT_EQ(fits["device_in_file"], 1);
    ASSERT_EQ(fits["allocators"].size(), 4U);
    for (const Json& each : fits["allocators"]) {
      const std::string name = each["allocator"];
      const bool same = name.ends_with(" (recorded so)");
      EXPECT_EQ(same, name.starts_with(expandable ? "PyTorch, expandable" : "PyTorch (")) << name;
      if (!same) continue;
      // It held 40 MiB, and 32 MiB more were wanted; an expandable segment ended with 30 MiB free.
      EXPECT_GE(each["peak_held_bytes"].get<std::uint64_t>(), (expandable ? 42U : 72U) << 20)
          << name;
      EXPECT_FALSE(each["fits"].get<bool>()) << "it failed there, with 41 MiB";
    }
    EXPECT_THAT(
        weir("fit " + file).out,
        AllOf(StartsWith("held (device 1 of 2, which ran out of memory; device 0 held 2.00 MiB"),
              HasSubstr("\nRecorded so: the program ran with these settings")));
  }
  std::string snapshot = kHeldMore;  // settings that no row has by default
  snapshot.replace(snapshot.find("SETTING"), 7, "true");
  snapshot.replace(snapshot.find("-1}"), 2, "209715200");
  const Json fits = json_of(weir("fit --json " + write("own.json", snapshot)));
  EXPECT_THAT(weir("fit --gpu 41MiB " + path("own.json")).out, Not(HasSubstr("...")));
  ASSERT_EQ(fits["allocators"].size(), 5U);
  EXPECT_EQ(fits["allocators"][3]["allocator"],
            "PyTorch, expandable_segments:True,max_split_size_mb:200 (recorded so)");
}

TEST_F(BenchCommand, FitOfOneMomentClaimsNoPeak) {
  std::string snapshot = kHeldMore;
  snapshot.replace(snapshot.find("SETTING"), 7, "false");
  const std::size_t failure = snapshot.find("{\"action\"");
  snapshot.erase(failure, snapshot.find("}", failure) + 1 - failure);
  const std::string file = write("moment.json", snapshot);
  EXPECT_EQ(json_of(weir("fit --json " + file))["shows_peak"], false);
  EXPECT_THAT(weir("fit " + file).out,
              AllOf(HasSubstr("(device 1 of 2, which held most; "),
                    HasSubstr("has 10.0 MiB live\nat the file's"), Not(HasSubstr("peak"))));
}

TEST_F(BenchCommand, AFileThatCannotBeReadEndsNothing) {
  const std::string bad = write("bad.trace", "a 0\n"), good = write("good.trace", kSmallTrace);
  const Finished run = weir("bench --memory-only --allocator weir " + bad + " " + good);
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.err, HasSubstr("bad.trace"));
  EXPECT_THAT(run.out, HasSubstr("good"));
}

TEST_F(BenchCommand, ReadsWhatOthersRecorded) {
  const std::string log = write("rmm.csv",
                                "Thread,Time,Action,Pointer,Size,Stream\n"
                                "1,10:00:00.000001,allocate,0xa0,3145728,0x1\n"
                                "1,10:00:00.000009,free,0xa0,3145728,0x1\n");
  EXPECT_EQ(json_of(weir("bench --json --memory-only " + log))["programs"][0]["peak_live_bytes"],
            3145728);
  EXPECT_EQ(json_of(weir("replay --json " + log))["peak_live_bytes"], 3145728);
  const Finished converted = weir("convert " + log + " -o " + path("rmm.trace"));
  EXPECT_EQ(converted.code, 0) << converted.err;
  EXPECT_THAT(read("rmm.trace"), HasSubstr("\na 0 3145728 1 36000000001\n"));
  const Finished report = weir("report " + log);
  EXPECT_EQ(report.code, 0) << report.err;
}

TEST_F(BenchCommand, WhatAnAllocatorDoesWrongIsFoundAndSaid) {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"crash", "its process ended by signal 6"},
      {"exit", "its process ended with exit code 7"},
      {"refuse", "call 4: as the test wants it"},
      {"use", "call 3: as the test wants it"},
      {"create", "as the test wants it"},
      {"overlap", "call 4: it gave out memory that another live block has"},
      {"unaligned", "call 1: it gave out a block that is not aligned to 256 bytes"},
      {"less", "call 1: it says that it holds 1.50 MiB, and 3.00 MiB is live"}};
  for (const auto& [fault, says] : faults) {
    const Finished run = run_faulty(fault);
    EXPECT_EQ(run.code, 1) << fault << ": " << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("failed"), HasSubstr(says))) << fault;
    EXPECT_THAT(run.out, HasSubstr("All 1 programs")) << fault;
  }
  EXPECT_EQ(run_faulty("none").code, 0);
}

TEST_F(BenchCommand, AProgramThatFailsLeavesTheOthers) {
  const Finished run = weir("bench --memory-only --json --allocator weir,best-fit --allocator " +
                            faulty("crash") + " " + write("short.trace", "a 0 1 0 0\n") + " " +
                            write("long.trace", "a 0 1 0 0\na 1 1 0 0\na 2 1 0 0\n"));
  EXPECT_EQ(run.code, 1);
  const Json results = Json::parse(run.out)["results"];
  ASSERT_EQ(results.size(), 6u);
  EXPECT_EQ(results[2]["peak_held_bytes"], 2 << 20);
  EXPECT_THAT(std::string(results[5]["error"]), HasSubstr("signal"));
  EXPECT_TRUE(results[3].contains("peak_held_bytes"));
}

TEST_F(BenchCommand, ALibraryThatDoesNotAnswerIsNamed) {
  const Finished hangs =
      weir("bench --memory-only --json --timeout 1 --allocator best-fit --allocator " +
           faulty("hang") + " " + write("short.trace", "a 0 1 0 0\n") + " " +
           write("long.trace", "a 0 1 0 0\na 1 1 0 0\na 2 1 0 0\n"));
  EXPECT_EQ(hangs.code, 1) << hangs.err;
  const Json results = Json::parse(hangs.out)["results"];
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[1]["peak_held_bytes"], 2 << 20);
  EXPECT_EQ(results[3]["error"], faulty("hang") + ": no answer within 1 s (--timeout)");

  const Finished loads = weir("bench --timeout 1 --allocator " + faulty("hang_load"));
  EXPECT_EQ(loads.code, 3);
  EXPECT_THAT(loads.err, HasSubstr(faulty("hang_load") +
                                   ": can't be loaded: no answer within 1 s (--timeout)"));
}

TEST_F(BenchCommand, LibrariesThatAreNoneAreExitCode3) {
  const std::string text = write("text.so", "no library\n");
  const std::vector<std::pair<std::string, std::string>> libraries = {
      {path("none.so"), path("none.so") + ": can't be loaded: "},
      {text, text + ": can't be loaded: "},
      {faulty("no_symbol"), ": no allocator: it has no function weir_suite_allocator"},
      {faulty("version"), ": it is of version 99 of the interface, and this is version 1"},
      {faulty("name"), ": its name is not of 1 to 40 letters"},
      {faulty("function"), ": a function is missing"},
      {faulty("unavailable"), ": can't be used here: there is no moon"}};
  for (const auto& [library, says] : libraries) {
    const Finished run = weir("bench --allocator " + library);
    EXPECT_EQ(run.code, 3) << library;
    EXPECT_THAT(run.out, IsEmpty()) << library;
    EXPECT_THAT(run.err, AllOf(HasSubstr("weir: "), HasSubstr(says))) << library;
  }
}

TEST_F(BenchCommand, WhatIsNotThereIsNamed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"--family phase", "--family: unknown value 'phase'; did you mean 'phases'?"},
      {"--allocator wier", "--allocator: unknown value 'wier'; did you mean 'weir'?"},
      {"--allocator weir,weir", "--allocator: two are called 'weir'"},
      {"--seed 1,x", "--seed: 'x' is not a whole number"},
      {"--phases 0", "--phases: '0' is not a whole number from 1 to 10000"}};
  for (const auto& [arguments, says] : wrong) {
    const Finished run = weir("bench " + arguments);
    EXPECT_EQ(run.code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr(says)) << arguments;
  }
  const Finished missing = weir("bench " + path("none.trace"));
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr(path("none.trace")));
}

}  // namespace
}  // namespace weir
