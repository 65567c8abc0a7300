// SPDX-License-Identifier: Apache-2.0
// What every command refuses before it does anything: words that it does not know, numbers that
// make no sense, and outputs that would overwrite an input or another output.
//
// kCommands lists every option of every command and says what it takes. A command or an option that
// the list lacks fails TheTableListsEveryOptionOfEveryCommand; in the list it is tested like the
// others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/command_fixture.h"
#include "tests/unit/command_help.h"
#include "weir/event.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using test::Finished;
using test::kSmallTrace;

// An option that takes a quantity: a number, a size, a limit or a moment.
struct Quantity {
  std::string names;                  // as the help shows them
  std::vector<std::string> bad = {};  // besides kNoQuantities
};

// Options and arguments are named as the help shows them.
struct Command {
  std::string name;
  std::string needs;                 // what the command can't do without, besides files
  std::vector<std::string> inputs;   // arguments that name a file to read, one for each file
  std::vector<std::string> outputs;  // options that name a file to write
  bool needs_output = false;
  std::vector<Quantity> quantities;
  std::vector<std::string> others;  // neither a file nor a quantity
};

// No option that takes a quantity takes one of these.
const std::vector<std::string> kNoQuantities = {
    "-3",    "-99999999999", "1.5",
    "3junk", "junk",         "nan",
    "0x10",  "''",           "99999999999999999999999999"};

const Quantity kMoment = {"--at", {"-1s", "1", "nans", "1e999s"}};
const Quantity kRanks = {"-t,--ranks,--nthreads", {"0"}};

const std::vector<Command> kCommands = {
    {.name = "look",
     .needs = "--no-open",
     .inputs = {"FILE"},
     .quantities = {{"--device"}},
     .others = {"--no-open", "--paths"}},
    {.name = "fit",
     .inputs = {"FILE"},
     .outputs = {"-o,--output", "--json"},
     .quantities = {{"--device"}, {"--gpu", {"1e99", "x"}}},
     .others = {"--to"}},
    {.name = "replay",
     .inputs = {"TRACE", "TRACE"},
     .outputs = {"-o,--output", "--json"},
     .quantities = {{"--limit", {"0", "0x", "-1x", "1e9x", "nanx"}},
                    {"--repeat", {"0"}},
                    {"--graph-orders"},
                    {"--seed", {"18446744073709551616"}}},
     .others = {"--device", "--policy", "--trust", "--memory", "--addresses", "--validate",
                "--verify", "--quiet", "--to"}},
    {.name = "report",
     .inputs = {"FILE"},
     .outputs = {"-o,--output", "--json"},
     .quantities = {{"--top", {"0"}}, {"--device"}, kMoment},
     .others = {"--to"}},
    {.name = "diff",
     .inputs = {"BEFORE", "AFTER"},
     .outputs = {"-o,--output", "--json"},
     .quantities = {{"--top", {"0"}}, {"--device"}},
     .others = {"--calls", "--to"}},
    {.name = "timeline",
     .needs = "--to html",
     .inputs = {"FILE", "FILE"},
     .outputs = {"-o,--output"},
     .needs_output = true,
     .quantities = {{"--device"}},
     .others = {"--at", "--paths", "--to"}},
    {.name = "timeline",
     .needs = "--to csv",
     .inputs = {"FILE"},
     .outputs = {"-o,--output"},
     .needs_output = true,
     .quantities = {{"--device"}, kMoment},
     .others = {"--paths", "--to"}},
    {.name = "convert",
     .inputs = {"FILE"},
     .outputs = {"-o,--output"},
     .needs_output = true,
     .quantities = {{"--device"}},
     .others = {"--to"}},
    {.name = "bench",
     .needs = "--memory-only",
     .inputs = {"TRACE", "TRACE"},
     .outputs = {"-o,--output", "--json"},
     .quantities = {{"--seed", {"18446744073709551616"}},
                    {"--phases", {"0"}},
                    {"--pairs", {"0"}},
                    {"--timeout", {"0"}}},
     .others = {"--allocator", "--family", "--memory-only", "--to"}},
    {.name = "comm check", .outputs = {"-o,--output", "--json"}, .others = {"--root", "--to"}},
    {.name = "comm bench",
     .needs = "--device sim",
     .outputs = {"-o,--output", "--json"},
     .quantities = {kRanks,
                    {"-b,--minbytes", {"1e18"}},
                    {"-e,--maxbytes", {"1e18"}},
                    {"-f,--stepfactor", {"1"}},
                    {"-n,--iters", {"0"}}},
     .others = {"--operation", "--device", "--overlap", "--captured", "--to"}},
    {.name = "comm scenario",
     .needs = "A --device sim",
     .outputs = {"-o,--output", "--json"},
     .quantities = {kRanks},
     .others = {"SCENARIO", "--device", "--to"}},
};

// "-o,--output": "--output".
std::string long_name(const std::string& names) {
  const std::size_t at = names.find("--");
  return names.substr(at, names.find(',', at) - at);
}

std::string first_name(const std::string& names) { return names.substr(0, names.find(',')); }

class CommandLines : public test::WeirCommand {
 protected:
  CommandLines() {
    write_trace("small.trace");
    write_trace("other.trace");
  }
  void write_trace(const std::string& name) const { write(name, kSmallTrace); }

  // Ends what would go on for ever: its code is 124.
  Finished run(const std::string& arguments, const std::string& into = "") const {
    // (`weir look` leaves its page in TMPDIR.)
    return shell("TMPDIR=" + path("") + " timeout 60 " WEIR_TOOL " " + arguments,
                 into.empty() ? ">" + path("out") : into);
  }

  // The file that the command reads where a test does not choose another.
  std::string usual_input() const { return path("other.trace"); }
  std::string inputs(const Command& command) const {
    std::string all;
    for (std::size_t i = 0; i < command.inputs.size(); ++i) all += " " + usual_input();
    return all;
  }
  // A whole command line, without options that it can do without.
  std::string line(const Command& command) const {
    return command.name + " " + command.needs + inputs(command) +
           (command.needs_output ? " -o /dev/null" : "");
  }

  std::vector<std::string> names_in(const std::string& section, const std::string& command) const {
    return test::names_in_help(run(command + " --help").out, section);
  }
  void collect_commands(const std::string& above, std::set<std::string>* commands) const {
    for (const std::string& name : names_in("Subcommands", above)) {
      const std::string command = above.empty() ? name : above + " " + name;
      if (names_in("Subcommands", command).empty()) commands->insert(command);
      collect_commands(command, commands);
    }
  }

  void expect_refused(const Finished& finished, const std::string& arguments,
                      const std::vector<std::string>& said) const {
    EXPECT_EQ(finished.code, 2) << arguments;
    EXPECT_THAT(finished.out, IsEmpty()) << arguments;
    for (const std::string& text : said) {
      EXPECT_THAT(finished.err, HasSubstr(text)) << arguments;
    }
  }
};

TEST_F(CommandLines, TheTableListsEveryOptionOfEveryCommand) {
  std::set<std::string> commands, listed;
  collect_commands("", &commands);
  for (const Command& command : kCommands) listed.insert(command.name);
  EXPECT_EQ(commands, listed) << "add the command to kCommands";
  for (const Command& command : kCommands) {
    std::set<std::string> shown;
    for (const char* const section : {"Positionals", "Options"}) {
      for (const std::string& name : names_in(section, command.name)) shown.insert(name);
    }
    std::set<std::string> known(command.others.begin(), command.others.end());
    known.insert(command.inputs.begin(), command.inputs.end());
    known.insert(command.outputs.begin(), command.outputs.end());
    for (const Quantity& quantity : command.quantities) known.insert(quantity.names);
    EXPECT_EQ(shown, known) << "add the option of " << command.name << " to kCommands";
  }
}

TEST_F(CommandLines, TheCommandLinesOfTheTableAreComplete) {
  for (const Command& command : kCommands) {
    if (command.name == "comm check") continue;  // it finds what it finds
    const Finished finished = run(line(command));
    const bool has_no_page = finished.err.find("without D3") != std::string::npos;
    EXPECT_EQ(finished.code, has_no_page ? 3 : 0) << line(command) << "\n" << finished.err;
  }
}

TEST_F(CommandLines, WhatIsUnknownOrMissingIsNamedWithTheRemedy) {
  const std::string trace = path("small.trace");
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"repaly", "weir: unknown command 'repaly'; did you mean 'replay'?\n"},
      {"help covnert", "weir: unknown command 'covnert'; did you mean 'convert'?\n"},
      {"reprot " + path("small.trace"), "weir: unknown command 'reprot'; did you mean 'report'?\n"},
      {"comm chek", "weir comm: unknown command 'chek'; did you mean 'check'?\n"},
      {"info", "weir: 'info' is a command of the Python package: python -m weir info\n"},
      {"bogus", "weir: unknown command 'bogus'; the commands are look, replay, report, diff, time"},
      {trace, "small.trace' is a file: say what to do with it, such as weir look "},
      {"comm bogus", "check, bench, scenario"},
      {"comm", "weir comm: a command is missing; the commands are check, bench, scenario"},
      {"look --open x", "unknown option '--open'; weir look FILE"},
      {"--open x", "unknown option '--open'; weir look FILE"},
      {"timeline --ouput x --to csv " + trace,
       "weir timeline: unknown option '--ouput'; did you mean '--output'?\n"},
      {"--bogus", "weir: unknown option '--bogus'\n"},
      {"comm --bogus", "weir comm: unknown option '--bogus'\n"},
      {"replay --device tpu " + trace, "--device"},
      {"replay", "TRACE is required"},
      {"diff " + trace, "is required"},
      {"diff " + trace + " " + trace + " third", "weir diff: unexpected argument 'third'\n"}};
  for (const auto& [arguments, says] : wrong) expect_refused(run(arguments), arguments, {says});
}

TEST_F(CommandLines, AnUnknownOptionSuggestsTheNearest) {
  for (const Command& command : kCommands) {
    std::vector<std::string> options = command.others;
    for (const Quantity& quantity : command.quantities) options.push_back(quantity.names);
    for (const std::string& names : options) {
      if (names.find("--") == std::string::npos) continue;
      const std::string option = long_name(names);
      // A letter too many, with and without a value.
      for (const std::string& word : {option + "x", option.substr(0, 4) + "x" + option.substr(4)}) {
        if (option.size() < 5) continue;
        const std::string says =
            "weir " + command.name + ": unknown option '" + word + "'; did you mean '";
        for (const std::string& end : {std::string(), std::string("=3")}) {
          const std::string arguments = line(command) + " " + word + end;
          expect_refused(run(arguments), arguments, {says + option + "'?\n"});
        }
      }
    }
  }
}

TEST_F(CommandLines, QuantitiesThatMakeNoSenseAreRefused) {
  for (const Command& command : kCommands) {
    for (const Quantity& quantity : command.quantities) {
      std::vector<std::string> bad = kNoQuantities;
      bad.insert(bad.end(), quantity.bad.begin(), quantity.bad.end());
      for (const std::string& value : bad) {
        const std::string option = long_name(quantity.names);
        const std::string arguments = line(command) + " " + option + " " + value;
        expect_refused(run(arguments), arguments, {option});
      }
      const std::string option = long_name(quantity.names);
      const std::string joined = line(command) + " " + option + "=-3";
      expect_refused(run(joined), joined, {option});
    }
  }
}

TEST_F(CommandLines, ZerosInFrontOfANumberMeanNothing) {
  const Finished finished = run("replay --json --repeat 010 " + path("small.trace"));
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("\"repeat\": 10"));
}

// Other names of the file `of`, which has to be there: each of them leads to it.
std::map<std::string, std::string> names_of_file(const std::string& folder, const std::string& of) {
  namespace fs = std::filesystem;
  for (const char* const name : {"/symbolic", "/hard", "/through"}) fs::remove(folder + name);
  fs::create_symlink(of, folder + "/symbolic");
  fs::create_hard_link(folder + "/" + of, folder + "/hard");
  fs::create_directory_symlink(".", folder + "/through");
  return {{"the same name", folder + "/" + of},
          {"a relative path", fs::relative(folder + "/" + of).string()},
          {"a symbolic link", folder + "/symbolic"},
          {"a hard link", folder + "/hard"},
          {"a linked folder", folder + "/through/./" + of}};
}

TEST_F(CommandLines, NoOutputReplacesAnInput) {
  for (const Command& command : kCommands) {
    for (const std::string& output : command.outputs) {
      for (std::size_t input = 0; input < command.inputs.size(); ++input) {
        for (const auto& [way, name] : names_of_file(path("."), "small.trace")) {
          std::string arguments = command.name + " " + command.needs;
          for (std::size_t i = 0; i < command.inputs.size(); ++i) {
            arguments += " " + (i == input ? path("small.trace") : usual_input());
          }
          arguments += " " + long_name(output) + "=" + name;
          expect_refused(run(arguments), way + ": " + arguments,
                         {"are the same file", first_name(output) + " '" + name + "'",
                          command.inputs[input] + " '" + path("small.trace") + "'",
                          "give " + first_name(output) + " another file name"});
          EXPECT_EQ(read("small.trace"), kSmallTrace) << way << ": " << arguments;
          write_trace("small.trace");
        }
      }
    }
  }
}

TEST_F(CommandLines, AnInputThatDoesNotExistIsNotCreated) {
  const std::string arguments = "replay --json=" + path("none.trace") + " " + path("none.trace");
  expect_refused(run(arguments), arguments, {"are the same file"});
  EXPECT_FALSE(std::filesystem::exists(path("none.trace")));
}

TEST_F(CommandLines, NoOutputReplacesAnother) {
  const auto expect_kept_apart = [this](const Command& command, const std::string& a,
                                        const std::string& b, const std::string& way) {
    for (std::size_t i = 0; i < command.outputs.size(); ++i) {
      for (std::size_t j = 0; j < command.outputs.size(); ++j) {
        if (i == j) continue;
        const std::string arguments = line(command) + " " + long_name(command.outputs[i]) + "=" +
                                      a + " " + long_name(command.outputs[j]) + "=" + b;
        expect_refused(
            run(arguments), way + ": " + arguments,
            {"are the same file", "'" + a + "'", "'" + b + "'", first_name(command.outputs[i]),
             first_name(command.outputs[j]), "another file name"});
      }
    }
  };
  write("before", "precious");
  std::filesystem::create_symlink("new", path("dangling"));
  std::filesystem::create_symlink("dangling", path("further"));
  for (const Command& command : kCommands) {
    for (const auto& [way, name] : names_of_file(path("."), "before")) {
      expect_kept_apart(command, path("before"), name, way);
    }
    EXPECT_EQ(read("before"), "precious");
    for (const char* const name : {"new", "./new", "dangling", "further", "through/new"}) {
      expect_kept_apart(command, path("new"), path(name), name);
      EXPECT_FALSE(std::filesystem::exists(path("new"))) << name;
      std::filesystem::remove(path("new"));
    }
  }
}

TEST_F(CommandLines, AnOutputInAFolderThatDoesNotExistNamesTheRemedy) {
  for (const Command& command : kCommands) {
    for (const std::string& output : command.outputs) {
      const std::string file = path("none/file"), arguments = command.name + " " + command.needs +
                                                              inputs(command) + " " +
                                                              long_name(output) + "=" + file;
      const Finished finished = run(arguments);
      if (finished.err.find("without D3") != std::string::npos) continue;
      EXPECT_EQ(finished.code, 3) << arguments;
      EXPECT_THAT(finished.err, HasSubstr(file + ": can't be written: there is no folder " +
                                          path("none") + ": make it"));
    }
  }
}

TEST_F(CommandLines, SeveralOutputsMayGoWhereNothingIsReplaced) {
  for (const char* const name : {"/dev/null", "/dev/stdout", "/dev/stderr"}) {
    for (const Command& command : kCommands) {
      if (command.outputs.empty() || command.name == "comm check") continue;
      std::string arguments = command.name + " " + command.needs + inputs(command);
      for (const std::string& output : command.outputs) {
        arguments += " " + long_name(output) + "=" + name;
      }
      const Finished finished = run(arguments);
      const bool has_no_page = finished.err.find("without D3") != std::string::npos;
      EXPECT_EQ(finished.code, has_no_page ? 3 : 0) << arguments << "\n" << finished.err;
    }
  }
}

// Standard output is a regular file here, and each part is written after the one before.
TEST_F(CommandLines, OutputsToStandardOutputFollowOneAnother) {
  const Finished finished = run("replay --json=/dev/stdout " + path("small.trace"));
  EXPECT_EQ(finished.code, 0) << finished.err;
  const std::size_t report = finished.out.find("Weir held at most");
  const std::size_t json = finished.out.find("\"peak_live_bytes\"");
  EXPECT_NE(json, std::string::npos) << finished.out;
  EXPECT_LT(report, json);
}

TEST_F(CommandLines, NothingIsPrintedIntoAnInput) {
  for (const Command& command : kCommands) {
    if (command.inputs.empty()) continue;
    const std::string before = std::string(read(std::filesystem::path(usual_input()).filename()));
    const Finished finished = run(line(command), ">>" + usual_input());
    EXPECT_EQ(finished.code, 2) << command.name;
    EXPECT_THAT(finished.err, HasSubstr("standard output and " + command.inputs.front() + " '"))
        << command.name;
    EXPECT_EQ(read(std::filesystem::path(usual_input()).filename()), before) << command.name;
  }
}

// run() redirects standard output to "out".
TEST_F(CommandLines, NoOutputReplacesStandardOutput) {
  for (const Command& command : kCommands) {
    for (const std::string& output : command.outputs) {
      const std::string arguments = command.name + " " + command.needs + inputs(command) + " " +
                                    long_name(output) + "=" + path("out");
      expect_refused(
          run(arguments), arguments,
          {"standard output", first_name(output) + " '" + path("out") + "'", "are the same file"});
    }
  }
}

TEST_F(CommandLines, AnEmptyNameOfAnOutputIsRefused) {
  for (const Command& command : kCommands) {
    for (const std::string& output : command.outputs) {
      for (const char* const form : {"=", " ''"}) {
        if (output == "--json" && std::string_view(form) == " ''") continue;  // a file to read
        const std::string arguments =
            command.name + " " + long_name(output) + form + " " + command.needs + inputs(command);
        expect_refused(run(arguments), arguments, {long_name(output), "empty"});
      }
    }
  }
}

// `weir comm check` reads files that no option names.
TEST_F(CommandLines, TheJsonOfACheckReplacesNoConfigurationFile) {
  std::filesystem::create_directories(path("root/etc"));
  const std::string file = write("root/etc/nccl.conf", "NCCL_DEBUG=INFO\n");
  const std::string arguments = "comm check --root " + path("root") + " --json=" + file;
  expect_refused(run(arguments), arguments, {"--json", "the configuration file", file});
  EXPECT_EQ(read("root/etc/nccl.conf"), "NCCL_DEBUG=INFO\n");
}

TEST_F(CommandLines, TheJsonOfARunReplacesNoLibrary) {
  const std::string library = write("libnccl.so", "library");
  ::setenv("WEIR_NCCL_LIBRARY", library.c_str(), 1);
  for (const Command& command : kCommands) {
    if (!command.name.starts_with("comm ")) continue;
    const std::string arguments = line(command) + " --json=" + library;
    expect_refused(run(arguments), arguments, {"--json", "WEIR_NCCL_LIBRARY", library});
    EXPECT_EQ(read("libnccl.so"), "library") << arguments;
  }
  ::unsetenv("WEIR_NCCL_LIBRARY");
}

}  // namespace
}  // namespace weir
