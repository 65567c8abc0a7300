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

struct Program {
  std::string path;
  std::string needs;                 // what the program can't do without
  std::vector<std::string> numbers;  // options that take one
  std::vector<std::string> others = {};
  bool lists_options = true;
};

const std::vector<std::string> kNoNumbers = {"-3",   "3junk", "junk", "nan",
                                             "0x10", "''",    "-1e9", "99999999999999999999999999"};

std::vector<Program> programs() {
  std::vector<Program> all;
#ifdef WEIR_SOAK
  all.push_back(
      {.path = WEIR_SOAK,
       .needs = "--threads 1",
       .numbers = {"--seed", "--seconds", "--threads", "--streams-per-minute", "--ordinal"},
       .others = {"--cuda", "--fixed-addresses", "--lend-scratch", "--without", "--omit-fences",
                  "--plant-leak", "--judge"}});
#endif
#ifdef WEIR_SLEEP
  all.push_back({.path = WEIR_SLEEP,
                 .needs = "--sim",
                 .numbers = {"--gib", "--cycles", "--small"},
                 .others = {"--sim"}});
#endif
#ifdef WEIR_GRAPH_POOL
  all.push_back(
      {.path = WEIR_GRAPH_POOL,
       .needs = "serve",
       .numbers = {"--layers", "--mib", "--side-streams", "--replays", "--delay-us", "--seed"},
       .others = {"parts", "--warm-up", "--mode", "--json"}});
#endif
#ifdef WEIR_IRREGULAR
  all.push_back({.path = WEIR_IRREGULAR,
                 .needs = "--families 1K-200K",
                 .numbers = {"--phases", "--pairs", "--seed"},
                 .others = {"--families", "--trust"}});
#endif
#ifdef WEIR_PEERS
  all.push_back({.path = WEIR_PEERS,
                 .needs = "--no-gpu --peers malloc",
                 .numbers = {"--threads", "--seconds", "--phases", "--pairs", "--seed"},
                 .others = {"--no-gpu", "--peers", "--torch-backend", "--loops", "--traces"}});
#endif
#ifdef WEIR_SCRIPTS
  const std::pair<std::string, std::vector<std::string>> scripts[] = {
      {"graph_pool/bounds", {"--orders"}},
      {"graph_pool/run", {"--layers", "--mib", "--replays"}},
      {"fragmentation/run", {"--passes", "--phases", "--pairs", "--seed", "--scaled"}},
      {"peers/run", {"--rounds", "--seconds", "--phases", "--pairs", "--seed"}},
      {"torch/run", {"--rounds", "--steps"}},
      {"frameworks/run", {"--rounds"}}};
  for (const auto& [name, numbers] : scripts) {
    all.push_back({.path = WEIR_SCRIPTS + name, .numbers = numbers, .lists_options = false});
  }
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
    known.insert(program.numbers.begin(), program.numbers.end());
    EXPECT_EQ(shown, known) << "add the option of " << program.path << " to programs()";
  }
}

TEST(ProgramOptions, NumbersThatMakeNoSenseAreRefused) {
  for (const Program& program : programs()) {
    // A script takes a tenth of a second to begin.
    const std::vector<std::string> bad =
        program.lists_options ? kNoNumbers : std::vector<std::string>{"-3", "3junk", "nan"};
    for (const std::string& option : program.numbers) {
      for (const std::string& value : bad) {
        // (An empty value counts as none after "=".)
        const std::string command =
            program.path + " " + program.needs + " " + option + (value == "''" ? " " : "=") + value;
        const Finished finished = run(command);
        EXPECT_EQ(finished.code, 2) << command << "\n" << finished.text;
        EXPECT_THAT(finished.text, HasSubstr(option)) << command;
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
