// SPDX-License-Identifier: Apache-2.0
// The programs of the suite: what is generated, what is read, and what each needs at least.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "suite/generated_programs.h"
#include "suite/trace_program.h"
#include "tests/temporary_folder.h"

namespace weir::suite {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Kind = ProgramCall::Kind;

constexpr bench::HistoryLength kShort{.phases = 4, .pairs = 256};

std::vector<Program> every_family(std::uint64_t seed = 1) {
  std::vector<Program> programs;
  for (const GeneratedFamily& family : generated_families()) {
    programs.push_back(generate(family, seed, kShort));
  }
  return programs;
}

TEST(SuitePrograms, CallsFollowFromTheSeed) {
  const std::vector<Program> programs = every_family(), again = every_family(),
                             others = every_family(2);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    SCOPED_TRACE(programs[i].name);
    EXPECT_TRUE(programs[i].calls == again[i].calls);
    EXPECT_FALSE(programs[i].calls == others[i].calls);
  }
}

TEST(SuitePrograms, EveryBlockIsAllocatedOnceThenUsedThenFreedOnce) {
  for (const Program& program : every_family()) {
    SCOPED_TRACE(program.name);
    std::vector<int> allocated(program.blocks), freed(program.blocks);
    std::int64_t time = 0;
    for (const ProgramCall& call : program.calls) {
      ASSERT_GE(call.time_us, time);
      time = call.time_us;
      if (call.kind == Kind::trim) continue;
      ASSERT_LT(call.block, program.blocks);
      ASSERT_LT(call.stream, program.streams);
      ASSERT_LE(call.pool, program.pools);
      ASSERT_GT(call.bytes, 0u);
      allocated[call.block] += call.kind == Kind::allocate;
      ASSERT_EQ(allocated[call.block], 1);
      ASSERT_EQ(freed[call.block], 0);
      freed[call.block] += call.kind == Kind::free;
      if (call.kind != Kind::use) continue;
      EXPECT_LT(call.user, program.streams);
      EXPECT_NE(call.user, call.stream);
      EXPECT_GE(call.until_us, call.time_us);
    }
    EXPECT_LE(time, program.end_us);
    EXPECT_EQ(std::count(freed.begin(), freed.end(), 1), program.blocks);
  }
}

// Another way than add_needs() has: the blocks that live at each call, and their sum.
TEST(SuitePrograms, TheLowerBoundIsWhatARecountFinds) {
  for (const Program& program : every_family()) {
    SCOPED_TRACE(program.name);
    std::map<std::uint32_t, std::uint64_t> live;  // bytes by block
    std::uint64_t peak = 0, least = 0;
    for (const ProgramCall& call : program.calls) {
      if (call.kind == Kind::allocate) live[call.block] = call.bytes;
      if (call.kind == Kind::free) live.erase(call.block);
      if (call.kind != Kind::allocate) continue;  // only then can there be more than before
      std::uint64_t grains = 0, aligned = 0;
      for (const auto& [block, bytes] : live) {
        grains += (bytes + 511) / 512;
        aligned += (bytes + 255) / 256;
      }
      peak = std::max(peak, grains * 512);
      least = std::max(least, aligned * 256);
    }
    EXPECT_EQ(program.needs.peak_live.count, peak);
    EXPECT_EQ(program.needs.lower_bound.count, (least + (2 << 20) - 1) / (2 << 20) * (2 << 20));
  }
}

TEST(SuitePrograms, APoolGoesAsAWhole) {
  const Program program = generate(
      *std::ranges::find(generated_families(), "pools", &GeneratedFamily::name), 3, kShort);
  EXPECT_EQ(program.pools, 8u);
  std::map<unsigned, std::set<std::uint32_t>> live;  // blocks by pool
  std::set<unsigned> going;                          // pools of which a block has been freed
  for (const ProgramCall& call : program.calls) {
    if (call.pool == 0) continue;
    if (call.kind == Kind::allocate) {
      EXPECT_FALSE(going.contains(call.pool)) << "allocated from a pool that goes";
      live[call.pool].insert(call.block);
    } else if (call.kind == Kind::free) {
      going.insert(call.pool);
      live[call.pool].erase(call.block);
      if (live[call.pool].empty()) going.erase(call.pool);
    }
  }
}

TEST(SuitePrograms, AnEngineThatSleepsKeepsLittle) {
  const Program program = generate(
      *std::ranges::find(generated_families(), "sleepers", &GeneratedFamily::name), 3, kShort);
  std::size_t trims = 0;
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    if (program.calls[i].kind != Kind::trim) continue;
    ++trims;
    EXPECT_LT(Bytes{program.live[i]}, program.needs.peak_live / 10);
  }
  EXPECT_EQ(trims, kShort.phases);
}

class SuiteTraces : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view text) const {
    return folder_.write(name, text);
  }

 private:
  const test::TemporaryFolder folder_;
};

TEST_F(SuiteTraces, ATraceBecomesItsCalls) {
  const Result<Program> program = read_program(write("two.blocks.trace",
                                                     "a 7 1000 3 100\n"
                                                     "a 8 0 3 105\n"
                                                     "u 7 9 110\n"
                                                     "a 9 600 9 120\n"
                                                     "r 7 1000 3 130\n"
                                                     "m next\n"
                                                     "f 7 1000 3 170\n"));
  ASSERT_TRUE(program.ok()) << program.error().message();
  EXPECT_EQ(program->name, "two");
  EXPECT_EQ(program->streams, 2u);
  EXPECT_EQ(program->end_us, 70);
  using C = ProgramCall;
  EXPECT_THAT(
      program->calls,
      ElementsAre(
          C{.kind = Kind::allocate, .stream = 0, .block = 0, .bytes = 1000, .time_us = 0},
          C{.kind = Kind::use, .user = 1, .block = 0, .bytes = 1000, .time_us = 10, .until_us = 10},
          C{.kind = Kind::allocate, .stream = 1, .block = 2, .bytes = 600, .time_us = 20},
          C{.kind = Kind::use, .user = 1, .block = 0, .bytes = 1000, .time_us = 30, .until_us = 70},
          C{.kind = Kind::free, .stream = 0, .block = 0, .bytes = 1000, .time_us = 30},
          C{.kind = Kind::free, .stream = 1, .block = 2, .bytes = 600, .time_us = 70}));
  EXPECT_THAT(program->live, ElementsAre(1024, 1024, 2048, 2048, 1024, 0));
  EXPECT_EQ(program->needs.peak_live, 2048_B);
  EXPECT_EQ(program->needs.lower_bound, 2_MiB);
}

constexpr const char* kRmmLog =
    "Thread,Time,Action,Pointer,Size,Stream\n"
    "12,23:59:59.999990,allocate,0x7f0000,1000,0x0\n"
    "12,23:59:59.999995,allocate,0x7f1000,3000,0x2\n"
    "13,23:59:59.999993,free,0x7f0000,1000,0x0\n"
    "12,00:00:00.000005,allocate failure,(nil),9999999,0x2\n"
    "12,00:00:00.000010,free,0x7f1000,3000,0x1\n"
    "12,00:00:00.000010,free,0x123,3000,0x1\n";

TEST_F(SuiteTraces, AnRmmLogIsATrace) {
  const Result<Program> program = read_program(write("rmm_log.csv", kRmmLog));
  ASSERT_TRUE(program.ok()) << program.error().message();
  using C = ProgramCall;
  EXPECT_THAT(
      program->calls,
      ElementsAre(C{.kind = Kind::allocate, .stream = 0, .block = 0, .bytes = 1000, .time_us = 0},
                  C{.kind = Kind::allocate, .stream = 1, .block = 1, .bytes = 3000, .time_us = 5},
                  C{.kind = Kind::free, .stream = 0, .block = 0, .bytes = 1000, .time_us = 5},
                  C{.kind = Kind::use,
                    .stream = 1,
                    .user = 2,
                    .block = 1,
                    .bytes = 3000,
                    .time_us = 20,
                    .until_us = 20},
                  C{.kind = Kind::free, .stream = 1, .block = 1, .bytes = 3000, .time_us = 20}));
}

TEST_F(SuiteTraces, OlderRmmLogsAndAFreeThatIsMissingAreReadToo) {
  const Result<Program> program = read_program(write("old.csv",
                                                     "Thread,Time,Action,Pointer,Size,Stream\r\n"
                                                     "1,10:00:00:000001,allocate,0xA0,8,0\r\n"
                                                     "1,2024-05-01T10:00:01.000001,allocate,a0,"
                                                     "16,0\r\n"));
  ASSERT_TRUE(program.ok()) << program.error().message();
  EXPECT_EQ(program->blocks, 2u);
  EXPECT_EQ(program->end_us, 1'000'000);
  EXPECT_EQ(program->needs.peak_live, 512_B);
}

TEST_F(SuiteTraces, WhatIsWrongWithAnRmmLogIsSaidWithFileAndLine) {
  const std::string head = "Thread,Time,Action,Pointer,Size,Stream\n";
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"1,10:00:00.000001,allocate,0xa0,8\n", ":2: 5 columns instead of 6"},
      {"1,10:00:00.000001,allocate,0xa0,8,0,0\n", ":2: 7 columns instead of 6"},
      {"1,10:00:00,allocate,0xa0,8,0\n", ":2: '10:00:00' is no time of day"},
      {"1,10:00:00.000001,allocate,xa0,8,0\n", ":2: 'xa0' is no pointer"},
      {"1,10:00:00.000001,allocate,0xa0,-8,0\n", ":2: '-8' is no size"},
      {"1,10:00:00.000001,allocate,0xa0,8,stream\n", ":2: 'stream' is no stream"},
      {"1,10:00:00.000001,resize,0xa0,8,0\n", ":2: 'resize' is no action"},
      {"1,10:00:00.000001,free,0xa0,8,0",
       ": line 2 is incomplete: the file was cut off; copy it again"}};
  for (const auto& [line, says] : wrong) {
    const std::string path = write("wrong.csv", head + line);
    const Result<Program> program = read_program(path);
    ASSERT_FALSE(program.ok()) << line;
    EXPECT_THAT(program.error().message(), HasSubstr(path + says));
  }
}

}  // namespace
}  // namespace weir::suite
