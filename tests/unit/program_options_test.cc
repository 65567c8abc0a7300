// SPDX-License-Identifier: Apache-2.0
// What the programs beside `weir` refuse: numbers that make no sense, which several of them would
// take for 2^64 less something and go on for ever. None of this needs a GPU.
//
// kPrograms lists every option of the programs that read them with CLI11; an option that it lacks
// fails TheTableListsEveryOption. Scripts show no such list, and are tested with what is named
// here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/temporary_folder.h"
#include "tests/unit/command_help.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Number {
  std::string option, range;
  std::vector<std::string> bad;  // besides kNoNumbers
};

struct Program {
  std::string path;
  std::string needs;  // what the program can't do without
  std::vector<Number> numbers;
  std::vector<std::string> others = {};
  bool lists_options = true;
};

const std::vector<std::string> kNoNumbers = {"-3",   "3junk", "junk", "nan",
                                             "0x10", "''",    "-1e9", "99999999999999999999999999"};
const std::string kAny = "from 0 to 18446744073709551615";

std::vector<Program> programs() {
  std::vector<Program> all;
#ifdef WEIR_SOAK
  all.push_back({.path = WEIR_SOAK,
                 .needs = "--threads 1",
                 .numbers = {{"--seed", kAny, {"1.5"}},
                             {"--seconds", "from 0 to 1000000", {"inf", "1000001"}},
                             {"--threads", "from 1 to 16", {"0", "17", "1.5"}},
                             {"--streams-per-minute", "from 0 to 1000000", {"inf", "1000001"}},
                             {"--ordinal", "from 0 to 1023", {"1024", "1.5"}}},
                 .others = {"--cuda", "--fixed-addresses", "--lend-scratch", "--without",
                            "--omit-fences", "--plant-leak", "--judge"}});
#endif
#ifdef WEIR_SLEEP
  all.push_back({.path = WEIR_SLEEP,
                 .needs = "--sim",
                 .numbers = {{"--gib", "from 1 to 1024", {"0", "1025", "1.5"}},
                             {"--cycles", "from 1 to 1000000", {"0", "1000001", "1.5"}},
                             {"--small", "from 1 to 10000000", {"0", "10000001", "1.5"}}},
                 .others = {"--sim"}});
#endif
#ifdef WEIR_GRAPH_POOL
  all.push_back({.path = WEIR_GRAPH_POOL,
                 .needs = "serve",
                 .numbers = {{"--layers", "from 1 to 1000", {"0", "1001", "1.5"}},
                             {"--mib", "from 1 to 4096", {"0", "4097", "1.5"}},
                             {"--side-streams", "from 0 to 16", {"17", "1.5"}},
                             {"--replays", "from 1 to 100000000", {"0", "100000001", "1.5"}},
                             {"--delay-us", "from 0 to 1000000", {"1000001", "1.5"}},
                             {"--seed", kAny, {"1.5"}}},
                 .others = {"parts", "--warm-up", "--mode", "--json"}});
#endif
#ifdef WEIR_IRREGULAR
  all.push_back({.path = WEIR_IRREGULAR,
                 .needs = "--families 1K-200K",
                 .numbers = {{"--phases", "from 2 to 10000", {"1", "10001", "1.5"}},
                             {"--pairs", "from 1 to 1000000", {"0", "1000001", "1.5"}},
                             {"--seed", kAny, {"1.5"}}},
                 .others = {"--families", "--trust"}});
#endif
#ifdef WEIR_PEERS
  all.push_back({.path = WEIR_PEERS,
                 .needs = "--no-gpu --peers malloc",
                 .numbers = {{"--threads", "from 1 to 16", {"0", "17", "1,0", "1,-3", "1.5"}},
                             {"--seconds", "from 0.001 to 60", {"0", "61", "inf"}},
                             {"--phases", "from 2 to 10000", {"1", "10001", "1.5"}},
                             {"--pairs", "from 1 to 1000000", {"0", "1000001", "1.5"}},
                             {"--seed", kAny, {"1.5"}}},
                 .others = {"--no-gpu", "--peers", "--torch-backend", "--loops", "--traces"}});
#endif
#ifdef WEIR_SCRIPTS
  const std::string scripts = WEIR_SCRIPTS;
  const auto script = [&](const std::string& name, std::vector<Number> numbers) {
    all.push_back({.path = scripts + name, .numbers = std::move(numbers), .lists_options = false});
  };
  script("graph_pool/bounds", {{"--orders", "from 1 to 1000000", {"0", "1000001"}}});
  script("graph_pool/run", {{"--layers", "from 1 to 1000", {"0", "1001"}},
                            {"--mib", "from 1 to 4096", {"0", "4097"}},
                            {"--replays", "from 1 to 100000000", {"0", "100000001"}}});
  script("fragmentation/run", {{"--passes", "from 1 to 1000000", {"0", "1000001"}},
                               {"--phases", "from 2 to 10000", {"1", "10001"}},
                               {"--pairs", "from 1 to 1000000", {"0", "1000001"}},
                               {"--seed", kAny, {"1.5"}},
                               {"--scaled", kAny, {"1.5", "1,,2", "1,-3"}}});
  script("peers/run", {{"--rounds", "from 1 to 1000000", {"0", "1000001"}},
                       {"--seconds", "from 0.001 to 60", {"0", "61", "inf"}},
                       {"--phases", "from 2 to 10000", {"1", "10001"}},
                       {"--pairs", "from 1 to 1000000", {"0", "1000001"}},
                       {"--seed", kAny, {"1.5"}}});
  script("torch/run", {{"--rounds", "from 1 to 1000000", {"0", "1000001"}},
                       {"--steps", "from 1 to 1000000", {"0", "1000001"}}});
  script("frameworks/run", {{"--rounds", "from 1 to 1000000", {"0", "1000001"}}});
#endif
  return all;
}

struct Finished {
  int code = -1;
  std::string text;  // of both outputs
};

// Ends what would go on for ever: its code is 124.
Finished run(const std::string& command) {
  FILE* const pipe = ::popen(("timeout 60 " + command + " 2>&1 </dev/null").c_str(), "r");
  Finished finished;
  if (pipe == nullptr) return finished;
  std::array<char, 4096> piece{};
  while (const std::size_t size = std::fread(piece.data(), 1, piece.size(), pipe)) {
    finished.text.append(piece.data(), size);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) finished.code = WEXITSTATUS(status);
  return finished;
}

TEST(ProgramOptions, TheTableListsEveryOption) {
  for (const Program& program : programs()) {
    if (!program.lists_options) continue;
    const std::string help = run(program.path + " --help").text;
    std::set<std::string> shown;
    for (const char* const section : {"Positionals", "Options"}) {
      for (const std::string& name : test::names_in_help(help, section)) shown.insert(name);
    }
    std::set<std::string> known(program.others.begin(), program.others.end());
    for (const Number& number : program.numbers) known.insert(number.option);
    EXPECT_EQ(shown, known) << "add the option of " << program.path << " to programs()";
  }
}

TEST(ProgramOptions, NumbersThatMakeNoSenseAreRefused) {
  for (const Program& program : programs()) {
    for (const Number& number : program.numbers) {
      // A script takes a tenth of a second to begin.
      std::vector<std::string> bad =
          program.lists_options ? kNoNumbers : std::vector<std::string>{"-3", "3junk", "nan"};
      bad.insert(bad.end(), number.bad.begin(), number.bad.end());
      for (const std::string& value : bad) {
        const std::string command = program.path + " " + program.needs + " " + number.option +
                                    (value == "''" ? " " : "=") +
                                    value;  // an empty value counts as none after "="
        const Finished finished = run(command);
        EXPECT_EQ(finished.code, 2) << command << "\n" << finished.text;
        EXPECT_THAT(finished.text, AllOf(HasSubstr(number.option), HasSubstr(number.range)))
            << command;
      }
    }
  }
}

TEST(ProgramOptions, InstructionsCountsPairsOnlyOfANumberOfThem) {
  for (const char* const pairs : {"-3", "0", "3junk", "junk", "''", "99999999999999999999999999"}) {
    const Finished finished = run(std::string(WEIR_INSTRUCTIONS " hot_pair/512B ") + pairs);
    EXPECT_EQ(finished.code, 2) << pairs;
    EXPECT_THAT(finished.text, HasSubstr("PAIRS")) << pairs;
  }
  EXPECT_EQ(run(WEIR_INSTRUCTIONS " hot_pair/512B 1").code, 0);
}

#ifdef WEIR_SOAK
TEST(ProgramOptions, AnInterruptedSoakSaysWhatItFound) {
  for (const auto& [signal, code] : {std::pair{"INT", 130}, std::pair{"TERM", 143}}) {
    const Finished finished =
        run(std::string("timeout --foreground --preserve-status --kill-after 20 -s ") + signal +
            " 1.5 " WEIR_SOAK " --seconds 600");
    EXPECT_EQ(finished.code, code) << finished.text;
    EXPECT_THAT(finished.text, AllOf(HasSubstr("allocated KiB at rest"), HasSubstr("verdict: "),
                                     HasSubstr(", interrupted after ")));
  }
}
#endif

#ifdef WEIR_SCRIPTS
TEST(ProgramOptions, TheJsonOfAScriptReplacesNoTrace) {
  const test::TemporaryFolder folder;
  for (const char* const script : {"fragmentation/run ", "peers/run --traces "}) {
    const std::string trace = folder.write("options.trace", "a 0 1 0 0\n");
    const Finished finished = run(std::string(WEIR_SCRIPTS) + script + trace + " --json " + trace);
    EXPECT_EQ(finished.code, 2) << finished.text;
    EXPECT_THAT(finished.text, AllOf(HasSubstr("--json"), HasSubstr("are the same file")));
    EXPECT_EQ(test::content_of(trace), "a 0 1 0 0\n");
  }
}
#endif

}  // namespace
}  // namespace weir
