// SPDX-License-Identifier: Apache-2.0
// The grammar that all commands share (docs/command.md): where results go, what can be read, and
// what each command returns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/command_fixture.h"
#include "weir/event.h"
#include "weir/recorder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using test::Finished;
using test::kSmallTrace;

class Grammar : public test::WeirCommand {
 protected:
  Grammar() { write("small.trace", kSmallTrace); }

  // `line` is given to a shell, with "$weir" as the command and "$in" as the folder.
  Finished script(const std::string& line) const {
    const std::string set = "weir=" WEIR_TOOL "; in=" + path("") + "; ";
    write("script", set + line);
    return shell("timeout 60 bash " + path("script"), ">" + path("out"));
  }
  std::string gzip(const std::string& name, std::string_view text) const {
    const gzFile file = gzopen(path(name).c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    return read(name);
  }
  // Each command that reads a file, up to the file's name.
  static std::vector<std::string> readers() {
    return {"replay",
            "report",
            "diff small.trace",
            "timeline --to csv -o -",
            "timeline --at end --to csv -o -",
            "convert -o -"};
  }
  // `command` with the names of its own files in the test's folder.
  std::string line(const std::string& command, const std::string& file) const {
    std::string whole = "cd " + path("") + "; $weir " + command + " " + file;
    return whole;
  }
  void expect_unreadable(const std::string& file, const std::string& says) const {
    for (const std::string& command : readers()) {
      const Finished finished = script(line(command, file));
      EXPECT_EQ(finished.code, 3) << command << " " << file << "\n" << finished.err;
      EXPECT_THAT(finished.out, IsEmpty()) << command << " " << file;
      EXPECT_THAT(finished.err, AllOf(StartsWith("weir: "), HasSubstr(says)))
          << command << " " << file;
    }
  }
};

TEST_F(Grammar, EveryCommandReadsStandardInputAndPipes) {
  gzip("small.trace.gz", kSmallTrace);
  for (const std::string& command : readers()) {
    for (const std::string from : {"- <small.trace", "- < <(cat small.trace)",
                                   "<(zcat small.trace.gz)", "<(cat small.trace.gz)"}) {
      const Finished finished = script(line(command, from));
      EXPECT_EQ(finished.code, 0) << command << from << "\n" << finished.err;
      EXPECT_THAT(finished.out, Not(IsEmpty())) << command << from;
      EXPECT_THAT(finished.out, Not(HasSubstr("/proc/self"))) << command << from;
    }
  }
  // All but the header, which names the file.
  const std::string after_header = " | tail -n +2";
  EXPECT_EQ(script(line("convert -o -", "- <small.trace" + after_header)).out,
            script(line("convert -o -", "small.trace" + after_header)).out);
  EXPECT_THAT(script(line("report", "- <small.trace")).out, HasSubstr("\nstandard input\n"));
}

TEST_F(Grammar, ARecordingIsReadThroughAPipe) {
  auto recorder = Recorder::open(path("run.weir"), {.program = "train"});
  ASSERT_TRUE(recorder.ok());
  (*recorder)->on_start({});
  ASSERT_TRUE((*recorder)->close().ok());
  EXPECT_THAT(script("cat $in/run.weir | $weir report -").out, HasSubstr("train"));
  const Finished replay = script("$weir replay $in/run.weir");
  EXPECT_EQ(replay.code, 3);
  EXPECT_THAT(replay.err, HasSubstr("no block begins or ends in this recording"));
}

TEST_F(Grammar, AMistakeInAPipeIsNamedAfterIt) {
  for (const std::string& command : readers()) {
    const Finished finished = script(line(command, "- < <(printf 'a 0 1 0 0\\nzzz\\n')"));
    EXPECT_EQ(finished.code, 3) << command;
    EXPECT_THAT(finished.err, HasSubstr("standard input:2: ")) << command;
  }
}

TEST_F(Grammar, TwoFilesCannotBothBeStandardInput) {
  const Finished finished = script("$weir diff - - <$in/small.trace");
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.err, HasSubstr("both standard input"));
}

TEST_F(Grammar, DamagedCompressedFilesAreTold) {
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += "a " + std::to_string(i) + " " + std::to_string(7919 * i % 100'003 + 1) + " 0 " +
            std::to_string(i) + "\n";
  }
  const std::string whole = gzip("whole.gz", text);
  for (const std::size_t bytes : {std::size_t{2}, std::size_t{12}, whole.size() / 2}) {
    write("cut.gz", whole.substr(0, bytes));
    expect_unreadable("cut.gz", "cut off");
  }
  std::string damaged = whole;
  for (std::size_t i = damaged.size() / 2; i < damaged.size() / 2 + 64; ++i) damaged[i] ^= 0x55;
  write("damaged.gz", damaged);
  expect_unreadable("damaged.gz", "damaged");
  write("head.gz", whole.substr(0, 5) + "junk junk junk junk");
  expect_unreadable("head.gz", "damaged");
}

TEST_F(Grammar, FilesThatSayNothingAreTold) {
  write("empty", "");
  expect_unreadable("empty", "the file is empty");
  expect_unreadable("/dev/null", "the file is empty");
  expect_unreadable("- </dev/null", "standard input: the file is empty");
  std::filesystem::create_directory(path("folder"));
  expect_unreadable("folder", "it is a folder");
  expect_unreadable("- <folder", "it is a folder");
  expect_unreadable("none", "No such file");
  expect_unreadable("- <&-", "standard input: ");
}

TEST_F(Grammar, AFileOfNoKnownKindIsToldAndWhatItMayBe) {
  const std::string length("\x40\0\0\0\0\0\0\0", 8);
  const std::vector<std::pair<std::string, std::string>> files{
      {"\x7f"
       "ELF and more",
       "what: a file of no known kind"},
      {"hello, world\n", "what: text, such as"},
      {"\x1b[32mcaf\u00e9\x1b[0m\n", "what: text, such as"},
      {"metrics {\"loss\": 3.1}\n", "what: text, such as"},
      {"{\"a\": 1}\n", "what: "},
      {"PK\x03\x04\x14 archive/data.pkl", "what: a zip archive"},
      {length + "{\"a\": {\"dtype\": \"F32\"}}", "what: a safetensors file"}};
  for (const auto& [text, says] : files) {
    write("what", text);
    expect_unreadable("what", says);
  }
}

TEST_F(Grammar, AMisspeltFileIsToldWithTheNearest) {
  expect_unreadable("smal.trace", "No such file or directory; did you mean 'small.trace'?\n");
  expect_unreadable("xyz.weir", "No such file or directory; a recording begins as");
  expect_unreadable("xyz", "No such file or directory\n");
  std::filesystem::create_symlink("gone", path("link"));
  expect_unreadable("link", "No such file or directory\n");
}

TEST_F(Grammar, ResultsGoWhereTheyAreSent) {
  for (const std::string command :
       {"replay small.trace", "report small.trace", "diff small.trace small.trace", "comm check",
        "comm bench --device sim -b 8 -e 8 -n 1", "comm scenario E --device sim"}) {
    const std::string weir = "cd " + path("") + "; $weir " + command;
    const std::string json = script(weir + " --json").out;
    EXPECT_TRUE(nlohmann::json::accept(json)) << command;
    EXPECT_TRUE(nlohmann::json::accept(script(weir + " --to json").out)) << command;
    EXPECT_TRUE(nlohmann::json::accept(script(weir + " --json=-").out)) << command;
    EXPECT_THAT(script(weir + " -o text").out, IsEmpty()) << command;
    const std::string text = read("text");
    EXPECT_THAT(text, Not(IsEmpty())) << command;
    EXPECT_FALSE(nlohmann::json::accept(text)) << command;
    EXPECT_THAT(script(weir + " -o result --json").out, IsEmpty()) << command;
    EXPECT_TRUE(nlohmann::json::accept(read("result"))) << command;
    EXPECT_FALSE(nlohmann::json::accept(script(weir + " --json=file.json").out)) << command;
    EXPECT_TRUE(nlohmann::json::accept(read("file.json"))) << command;
    EXPECT_TRUE(nlohmann::json::accept(script(weir + " --json=- -o both").out)) << command;
    EXPECT_FALSE(nlohmann::json::accept(read("both"))) << command;
    const Finished twice = script(weir + " --json=- -o -");
    EXPECT_EQ(twice.code, 2) << command;
    EXPECT_THAT(twice.err, HasSubstr("-o and --json are both standard output")) << command;
  }
}

TEST_F(Grammar, ResultsThatCannotBeWrittenAreThree) {
  for (const std::string command :
       {"replay small.trace", "report small.trace", "diff small.trace small.trace",
        "timeline --to csv small.trace", "timeline --at end --to csv small.trace",
        "convert small.trace", "comm check", "comm bench --device sim -b 8 -e 8 -n 1"}) {
    const std::string weir = "cd " + path("") + "; $weir " + command;
    const bool is_file = command.starts_with("timeline") || command.starts_with("convert");
    for (const std::string to : {"-o /none/x", "-o /dev/full", "-o - >/dev/full", "-o - >&-"}) {
      const Finished finished = script(weir + " " + to);
      EXPECT_EQ(finished.code, 3) << command << " " << to << "\n" << finished.err;
      EXPECT_THAT(finished.err, HasSubstr("written")) << command << " " << to;
    }
    if (is_file) continue;
    for (const std::string to :
         {"--json=/none/x", "--json=/dev/full", "--json >/dev/full", ">&-"}) {
      EXPECT_EQ(script(weir + " " + to).code, 3) << command << " " << to;
    }
  }
}

TEST_F(Grammar, AnOutputIsNamedOnce) {
  for (const std::string command : {"replay small.trace", "report small.trace", "bench small.trace",
                                    "comm check", "comm bench --device sim -b 8 -e 8 -n 1"}) {
    for (const std::string twice : {"--json=a --json=b", "--json --json=a", "-o a --output b"}) {
      const Finished finished = script("cd " + path("") + "; $weir " + command + " " + twice);
      EXPECT_EQ(finished.code, 2) << command << " " << twice;
      EXPECT_THAT(finished.err, HasSubstr("At Most 1 required but received 2"))
          << command << " " << twice;
      EXPECT_FALSE(std::filesystem::exists(path("a"))) << command << " " << twice;
    }
  }
}

TEST_F(Grammar, HelpThatCannotBeWrittenIsThree) {
  for (const std::string command : {"help", "--version", "report --help"}) {
    const Finished finished = script("$weir " + command + " >/dev/full");
    EXPECT_EQ(finished.code, 3) << command;
    EXPECT_EQ(finished.err, "weir: standard output could not be written\n") << command;
  }
}

// A closed standard output must not become the file that is opened next.
TEST_F(Grammar, NothingIsPrintedIntoAFileThatIsOpened) {
  script("$weir replay --json=$in/r.json $in/small.trace >&-");
  if (std::filesystem::exists(path("r.json"))) {
    EXPECT_TRUE(nlohmann::json::accept(read("r.json"))) << read("r.json");
  }
  EXPECT_EQ(read("small.trace"), kSmallTrace);
}

TEST_F(Grammar, AReaderThatLeavesEndsTheCommand) {
  const Finished finished = script("$weir timeline --to csv -o - $in/small.trace | true; echo ok");
  EXPECT_EQ(finished.out, "ok\n");
}

TEST_F(Grammar, LinesAreAsWideAsTheTerminal) {
  const auto widest = [](const std::string& text) {
    std::istringstream lines(text);
    std::size_t most = 0;
    for (std::string line; std::getline(lines, line);) most = std::max(most, line.size());
    return most;
  };
  for (const std::string command : {"report --help", "replay --help", "comm bench --help"}) {
    const std::string help = script("COLUMNS=70 $weir " + command).out;
    const std::string options = help.substr(0, help.find("Examples:"));
    EXPECT_LE(widest(options), 70u) << command;
    EXPECT_GT(widest(script("COLUMNS=100 $weir " + command).out), 70u) << command;
  }
  const std::string report = "$weir report bench/traces/serve_multistream.trace.gz";
  EXPECT_LE(widest(script("COLUMNS=90 " + report).out), 90u);
  EXPECT_THAT(script("COLUMNS=60 $weir report --help").out,
              HasSubstr("\n  weir report --at 1.5s --top 20 run.weir\n"));
  for (const std::string command : {"help", "help report", "help top"}) {
    EXPECT_LE(widest(script("COLUMNS=76 $weir " + command).out), 76u) << command;
  }
  // All but the table of passes.
  const std::string replay = " $weir replay bench/traces/gnn.trace.gz | grep -v '^ '";
  EXPECT_LE(widest(script("COLUMNS=60" + replay).out), 60u);
  EXPECT_LE(widest(script("COLUMNS=1000" + replay).out), 100u);
  EXPECT_EQ(script("COLUMNS=junk " + report).out, script(report).out);
}

TEST_F(Grammar, ThereIsColourOnTerminalsOnly) {
  if (std::system("script --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no script(1) here";
  EXPECT_THAT(script("$weir report none").err, Not(HasSubstr("\x1b")));
  const std::string on_terminal = "script -qec '" WEIR_TOOL " report none' /dev/null";
  EXPECT_THAT(script("TERM=xterm " + on_terminal).out, HasSubstr("\x1b[1;31mweir:"));
  EXPECT_THAT(script("NO_COLOR=1 TERM=xterm " + on_terminal).out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(script("TERM=dumb " + on_terminal).out, Not(HasSubstr("\x1b")));
}

TEST_F(Grammar, ProgressIsShownOnATerminalAfterASecond) {
  if (std::system("script --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no script(1) here";
  const std::vector<std::string> commands = {"report -", "timeline --to csv -o /dev/null -",
                                             "timeline --at end --to csv -o /dev/null -",
                                             "convert -o /dev/null -"};
  const auto on_terminal = [this](const std::string& name, const std::string& command) {
    write(name, command + " >/dev/null\n");
    return "script -qec 'bash " + path(name) + "' /dev/null";
  };
  std::string all_slow;  // at once, each with a file for what is shown
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const std::string slow = "slow" + std::to_string(i);
    all_slow += on_terminal(slow, "{ sleep 2; cat " + path("small.trace") + "; } | " WEIR_TOOL " " +
                                      commands[i]) +
                " >" + path(slow + ".shown") + " & ";
  }
  script(all_slow + "wait");
  for (std::size_t i = 0; i < commands.size(); ++i) {
    EXPECT_THAT(read("slow" + std::to_string(i) + ".shown"), HasSubstr(" 1 s")) << commands[i];
    const std::string quick =
        on_terminal("quick", WEIR_TOOL " " + commands[i] + " <" + path("small.trace"));
    EXPECT_THAT(script(quick).out, IsEmpty()) << commands[i];
  }
}

TEST_F(Grammar, ATerminalActsOnNoFileName) {
  write("odd \x1b[31m\nname", "junk\n");
  for (const std::string& command : readers()) {
    const Finished finished = script(line(command, "$'odd \\e[31m\\nname'"));
    EXPECT_EQ(finished.code, 3) << command;
    EXPECT_THAT(finished.err, AllOf(HasSubstr("odd ?[31m"), Not(HasSubstr("\x1b")))) << command;
  }
}

TEST_F(Grammar, ASnapshotIsNothingToReplay) {
  write("snapshot.json", "{\"weir_snapshot\": 1}\n");
  const Finished finished = script("$weir replay $in/snapshot.json");
  EXPECT_EQ(finished.code, 3);
  EXPECT_THAT(finished.err, HasSubstr("nothing to replay"));
}

TEST_F(Grammar, AFileBehindJsonIsExplained) {
  const Finished finished = script("$weir report --json out.json $in/small.trace");
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.err, HasSubstr("small.trace'; the file for JSON is named by --json=FILE"));
  EXPECT_THAT(script("$weir report $in/small.trace two").err, Not(HasSubstr("JSON is named")));
}

TEST_F(Grammar, ScenariosHaveNames) {
  for (const auto& [letter, name] : std::vector<std::pair<std::string, std::string>>{
           {"A", "captured-first-operation"}, {"E", "small-kernels"}}) {
    const Finished finished = script("$weir comm scenario --device sim " + name);
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_THAT(finished.out, HasSubstr("\n" + letter + ": every aim holds"));
  }
  const Finished wrong = script("$weir comm scenario smal-kernels");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'small-kernels'?"));
}

}  // namespace
}  // namespace weir
