// SPDX-License-Identifier: Apache-2.0
#include "weir/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/temporary_folder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Result<Config> with(std::string_view name, std::string_view value) {
  return Config::from_pairs(std::array{Config::Pair{name, value}});
}

std::string why_not(std::string_view name, std::string_view value) {
  const Result<Config> config = with(name, value);
  if (config.ok()) return "it is allowed";
  EXPECT_EQ(config.error().code(), ErrorCode::invalid_argument);
  return config.error().message();
}

TEST(Config, WithoutAVariableOrWithAnEmptyOneItGivesTheDefaults) {
  const char* const block[] = {"PATH=/bin", "WEIR_LIMIT=", "WEIR_LOG", "WEIR_DEVICE=", nullptr};
  const Result<Config> config = Config::from_environment(block);
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(*config, Config{});
}

TEST(Config, TrustIsToldOrContextOrLeftToWhoOpensTheHeap) {
  EXPECT_EQ(Config{}.trust, std::nullopt);
  EXPECT_EQ(with("WEIR_TRUST", "told").value().trust, Trust::told);
  EXPECT_EQ(with("WEIR_TRUST", "context").value().trust, Trust::context);
  EXPECT_EQ(with("WEIR_TRUST", "").value().trust, std::nullopt);
  Config config = with("WEIR_TRUST", "told").value();
  EXPECT_TRUE(config.set("WEIR_TRUST", "").ok());
  EXPECT_EQ(config.trust, std::nullopt);
  EXPECT_THAT(why_not("WEIR_TRUST", "all"), AllOf(HasSubstr("WEIR_TRUST"), HasSubstr("`told`")));
}

TEST(Config, VariablesOfTheCommunicationLayerAreLetPass) {
  const char* const block[] = {"WEIR_RANK=1", "WEIR_MEET=node0:29501", "WEIR_LOG=debug", nullptr};
  const Result<Config> config = Config::from_environment(block);
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->log, LogLevel::debug);
  const char* const misspelt[] = {"WEIR_RANKS=1", nullptr};
  EXPECT_FALSE(Config::from_environment(misspelt).ok());
  EXPECT_FALSE(with("WEIR_RANK", "1").ok());  // asked for by name, it is no setting
}

TEST(Config, ALimitIsBytesOrAShareOfTheDevice) {
  EXPECT_EQ(with("WEIR_LIMIT", "1000000").value().limit.bytes, 1000000_B);
  EXPECT_EQ(with("WEIR_LIMIT", "512 MiB").value().limit.bytes, 512_MiB);
  EXPECT_EQ(with("WEIR_LIMIT", "1.5G").value().limit.bytes, 1536_MiB);
  EXPECT_EQ(with("WEIR_LIMIT", "none").value().limit, MemoryLimit{});
  EXPECT_EQ(with("WEIR_LIMIT", "80%").value().limit.on_device_with(10_GiB), 8_GiB);
  EXPECT_EQ(with("WEIR_LIMIT", "0.25").value().limit.on_device_with(8_GiB), 2_GiB);
  EXPECT_EQ(with("WEIR_LIMIT", "1.0").value().limit.on_device_with(8_GiB), 8_GiB);
}

TEST(Config, AShareOfAlmostNothingIsStillALimit) {
  EXPECT_EQ((MemoryLimit{.bytes = {}, .share = 1e-12}).on_device_with(1_GiB), 1_B);
  EXPECT_EQ(MemoryLimit{}.on_device_with(1_GiB), 0_B);
}

TEST(Config, AMalformedValueIsAnErrorThatSaysWhatIsAllowed) {
  for (const char* const value : {"lots", "-1", "0", "0%", "101%", "1.5", "12XiB", "1e9", "%",
                                  " 5GiB", "99999999999TiB", "0x10", "1.2.3MiB"}) {
    EXPECT_THAT(why_not("WEIR_LIMIT", value),
                AllOf(HasSubstr("WEIR_LIMIT"), HasSubstr(value), HasSubstr("80%")));
  }
  EXPECT_THAT(why_not("WEIR_REUSE", "never"),
              AllOf(HasSubstr("WEIR_REUSE"), HasSubstr("never"), HasSubstr("balanced")));
  EXPECT_THAT(why_not("WEIR_LOG", "WARN"), HasSubstr("`warn`"));
  EXPECT_THAT(why_not("WEIR_VALIDATE", "yes"), HasSubstr("`0` or `1`"));
  EXPECT_THAT(why_not("WEIR_DEVICE", "gpu"), HasSubstr("`cuda` or `sim`"));
}

TEST(Config, AnUnknownVariableIsAnErrorThatNamesTheNearest) {
  EXPECT_THAT(why_not("WEIR_LIMITS", "1"),
              AllOf(HasSubstr("WEIR_LIMITS"), HasSubstr("did you mean WEIR_LIMIT?")));
  EXPECT_THAT(why_not("WEIR_VALIDTE", "1"), HasSubstr("WEIR_VALIDATE"));
  EXPECT_THAT(why_not("WEIR_RECORD_FILE", "x"), HasSubstr("did you mean WEIR_"));
  const char* const block[] = {"WEIR_LGO=debug", nullptr};
  const Result<Config> config = Config::from_environment(block);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.error().message(), HasSubstr("did you mean WEIR_LOG?"));
}

TEST(Config, ANameWithoutThePrefixIsIgnoredInTheEnvironmentOnly) {
  const char* const block[] = {"LIMIT=lots", "weir_limit=lots", nullptr};
  EXPECT_TRUE(Config::from_environment(block).ok());
  EXPECT_FALSE(with("LIMIT", "1GiB").ok());
}

TEST(Config, PlainMemoryHasNoFixedAddresses) {
  for (const Addresses addresses : {Addresses::fixed, Addresses::prefer}) {
    Config config{.memory = MemoryKind::plain, .addresses = addresses};
    const Status status = config.check();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(), HasSubstr("WEIR_MEMORY=pages"));
    config.memory = MemoryKind::pages;
    EXPECT_TRUE(config.check().ok());
  }
}

template <class Choice>
void expect_choices(std::string_view variable, Choice Config::*member,
                    const std::vector<std::pair<std::string_view, Choice>>& choices) {
  for (const auto& [name, choice] : choices) {
    const Result<Config> config = with(variable, name);
    ASSERT_TRUE(config.ok()) << config.error().message();
    EXPECT_EQ((*config).*member, choice) << variable << "=" << name;
    EXPECT_EQ(name_of(choice), name);
  }
  EXPECT_THAT(why_not(variable, "other"), HasSubstr("allowed is `"));
}

TEST(Config, EveryChoiceIsReadByItsName) {
  expect_choices("WEIR_DEVICE", &Config::device,
                 {{"cuda", DeviceKind::cuda}, {"sim", DeviceKind::sim}});
  expect_choices("WEIR_REUSE", &Config::reuse,
                 {{"wait", ReusePolicy::wait},
                  {"balanced", ReusePolicy::balanced},
                  {"no_wait", ReusePolicy::no_wait}});
  expect_choices("WEIR_MEMORY", &Config::memory,
                 {{"pages", MemoryKind::pages}, {"plain", MemoryKind::plain}});
  expect_choices(
      "WEIR_ADDRESSES", &Config::addresses,
      {{"any", Addresses::any}, {"fixed", Addresses::fixed}, {"prefer", Addresses::prefer}});
  expect_choices("WEIR_GRAPH_SCRATCH", &Config::graph_scratch,
                 {{"keep", GraphScratch::keep}, {"lend", GraphScratch::lend}});
  expect_choices("WEIR_LOG", &Config::log,
                 {{"off", LogLevel::off},
                  {"error", LogLevel::error},
                  {"warn", LogLevel::warn},
                  {"info", LogLevel::info},
                  {"debug", LogLevel::debug}});
  expect_choices(
      "WEIR_RECORD_SIGNAL", &Config::record_signal,
      {{"none", RecordSignal::none}, {"USR1", RecordSignal::usr1}, {"USR2", RecordSignal::usr2}});
  EXPECT_EQ(name_of(Trust::told), "told");
  EXPECT_EQ(name_of(Trust::context), "context");
  for (const RecordStacks stacks : {RecordStacks::none, RecordStacks::cpp, RecordStacks::python}) {
    EXPECT_EQ(with("WEIR_RECORD_STACKS", name_of(stacks)).value().record_stacks, stacks);
  }
  EXPECT_EQ(name_of(RecordStacks::cpp), "cpp");
  EXPECT_EQ(name_of(RecordStacks::python), "python");
  EXPECT_THAT(why_not("WEIR_RECORD_STACKS", "c"), HasSubstr("`none`, `cpp` or `python`"));
}

TEST(Config, SwitchesAndFilesAreRead) {
  for (const auto& [variable, member] :
       {std::pair{"WEIR_CONTEXT_EVENTS", &Config::context_events},
        std::pair{"WEIR_C10D", &Config::c10d}, std::pair{"WEIR_TIME_DRIVER", &Config::time_driver},
        std::pair{"WEIR_VALIDATE", &Config::validate}}) {
    EXPECT_FALSE(with(variable, "0").value().*member) << variable;
    EXPECT_TRUE(with(variable, "1").value().*member) << variable;
    EXPECT_THAT(why_not(variable, "2"), HasSubstr("`0` or `1`"));
  }
  EXPECT_EQ(with("WEIR_SNAPSHOT_ON_OOM", "/a/oom.json").value().snapshot_on_oom, "/a/oom.json");
  EXPECT_EQ(with("WEIR_RECORD_RING", "64MiB").value().record_ring, 64_MiB);
  EXPECT_THAT(why_not("WEIR_RECORD_RING", "much"), HasSubstr("a size (`64MiB`)"));
}

TEST(Config, AFailedSetChangesNothing) {
  Config config = with("WEIR_LIMIT", "50%").value();
  const Config before = config;
  EXPECT_FALSE(config.set("WEIR_LIMIT", "much").ok());
  EXPECT_EQ(config, before);
  EXPECT_TRUE(config.set("WEIR_LIMIT", "1GiB").ok());
  EXPECT_EQ(config.limit.bytes, 1_GiB);
  EXPECT_EQ(config.limit.share, 0);
}

TEST(Config, TheDocumentedDefaultsAreTheDefaults) {
  // Each row's default, read from the table itself and set by name, must leave a Config unchanged.
  const std::string table = Config::describe();
  int rows = 0;
  for (std::size_t at = table.find("| `WEIR_"); at != std::string::npos;
       at = table.find("| `WEIR_", at + 1)) {
    std::vector<std::string> cells;
    const std::string row = table.substr(at, table.find('\n', at) - at);
    for (std::size_t cell = 2; cell < row.size(); cell = row.find(" | ", cell) + 3) {
      const std::size_t end = row.find(" | ", cell);
      if (end == std::string::npos) break;
      cells.push_back(row.substr(cell, end - cell));
    }
    ASSERT_EQ(cells.size(), 3u) << row;  // the fourth, the text, ends with the row
    const auto bare = [](std::string s) { return std::erase(s, '`'), s; };
    const std::string value = cells[2] == "not set" ? "" : bare(cells[2]);
    const Result<Config> config = with(bare(cells[0]), value);
    ASSERT_TRUE(config.ok()) << config.error().message();
    EXPECT_EQ(*config, Config{}) << row;
    ++rows;
  }
  EXPECT_EQ(rows, 18);
}

TEST(Config, TheDocumentHasExactlyTheseRows) {
  const std::string document = test::content_of("docs/configuration.md");
  const std::string table = Config::describe();
  EXPECT_THAT(document, HasSubstr(table)) << "put this table into docs/configuration.md:\n"
                                          << table;
  const auto rows = [](const std::string& text) {
    std::size_t count = 0;
    for (std::size_t at = text.find("| `WEIR_"); at != std::string::npos;
         at = text.find("| `WEIR_", at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(rows(document), rows(table));
}

TEST(Config, TheDocumentHasTheVariablesThatOthersRead) {
  const std::string document = test::content_of("docs/configuration.md");
  for (const std::string name :
       {"WEIR_NCCL_LIBRARY", "WEIR_RANK", "WEIR_WORLD_SIZE", "WEIR_LOCAL_RANK",
        "WEIR_LOCAL_WORLD_SIZE", "WEIR_MEET", "WEIR_ENABLE"}) {
    const std::string line = name + "=1";
    const char* const block[] = {line.c_str(), nullptr};
    EXPECT_TRUE(Config::from_environment(block).ok()) << name;
    EXPECT_FALSE(with(name, "1").ok()) << name;
    EXPECT_THAT(document, HasSubstr("`" + name + "`"));
  }
}

TEST(ParseBytes, KnowsEveryUnit) {
  const std::uint64_t thousand = 1000;
  for (const auto& [unit, bytes] : {std::pair{"", std::uint64_t{1}},
                                    {"B", 1},
                                    {"K", 1 << 10},
                                    {"KiB", 1 << 10},
                                    {"KB", thousand},
                                    {"M", 1 << 20},
                                    {"MiB", 1 << 20},
                                    {"MB", thousand * thousand},
                                    {"G", 1 << 30},
                                    {"GiB", 1 << 30},
                                    {"GB", thousand * thousand * thousand},
                                    {"T", std::uint64_t{1} << 40},
                                    {"TiB", std::uint64_t{1} << 40},
                                    {"TB", thousand * thousand * thousand * thousand}}) {
    EXPECT_EQ(parse_bytes(std::string("3") + unit).value().count, 3 * bytes) << unit;
    EXPECT_EQ(parse_bytes(std::string("3 ") + unit).value().count, 3 * bytes) << unit;
  }
  EXPECT_EQ(parse_bytes("0.0006KiB").value(), 1_B);  // to the nearest byte
  EXPECT_EQ(parse_bytes("8388607TiB").value(), 8388607_TiB);
  EXPECT_EQ(parse_bytes("18446744073709551615").value().count, ~std::uint64_t{0});
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* const text :
       {"", "MiB", "1 2", "1mib", "-1", "1..5GiB", "18446744073709551616", "9999999999999TiB",
        "nan", "1.5", "1.5B", "8388608TiB", "1  MiB", "1MiB "}) {
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  }
}

}  // namespace
}  // namespace weir
