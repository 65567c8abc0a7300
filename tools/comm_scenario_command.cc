// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cctype>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/scenario.h"
#include "comm_ranks_options.h"
#include "command.h"

namespace weir {
namespace {

struct Scenario {
  std::string_view letter, name;
  ScenarioReport (*run)(const OpenRanks& open);
};

constexpr std::array<Scenario, 4> kScenarios = {
    {{"A", "captured-first-operation", [](const OpenRanks& open) { return run_scenario_a(open); }},
     {"C", "long-lived-inputs", [](const OpenRanks& open) { return run_scenario_c(open, {}); }},
     {"D", "every-operation", [](const OpenRanks& open) { return run_scenario_d(open); }},
     {"E", "small-kernels", [](const OpenRanks& open) { return run_scenario_e(open, {}); }}}};

struct ScenarioCommand {
  RanksCommand ranks;
  std::string name;
  ResultOptions result;
};

bool is_letter_of(const std::string& word, const Scenario& scenario) {
  return word.size() == 1 &&
         std::toupper(static_cast<unsigned char>(word.front())) == scenario.letter.front();
}

// A letter as its scenario's name.
CLI::Validator letter_as_name() {
  const auto replace = [](std::string& word) -> std::string {
    for (const Scenario& scenario : kScenarios) {
      if (is_letter_of(word, scenario)) word = scenario.name;
    }
    return {};
  };
  return {replace, ""};
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Scenario& scenario : kScenarios) all.emplace_back(scenario.name);
  return all;
}

ExitCode run(const ScenarioCommand& command) {
  std::size_t which = 0;
  while (kScenarios[which].name != command.name) ++which;  // one_of() allows no other name
  return run_and_print(command.ranks, command.result, "comm scenario " + command.name,
                       kScenarios[which].run);
}

constexpr const char* kCommScenarioFooter = R"(
  A  captured-first-operation  a captured all-reduce that fails
  C  long-lived-inputs         all-reduce inputs that live too long
  D  every-operation           everything NCCL lets one capture
  E  small-kernels             a step that drowns in launches

Examples:
  weir comm scenario captured-first-operation
  weir comm scenario C --ranks 4 --json

docs/comm-scenarios.md says what each runs and aims at, docs/command.md what all commands have in
common. Exit codes: 0 every aim holds; 1 one does not; 2 a bad command line; 3 the ranks can't run, or
a file can't be written.)";

}  // namespace

void add_comm_scenario_command(CLI::App& comm, ExitCode& exit_code) {
  auto command = std::make_shared<ScenarioCommand>();
  CLI::App* scenario = comm.add_subcommand(
      "scenario", "Run a fault that programs meet with collectives, and what Weir makes of it");
  scenario->add_option("SCENARIO", command->name, "A name or a letter of the list below")
      ->required()
      ->transform(letter_as_name())
      ->check(one_of(names()));
  add_ranks_options(*scenario, command->ranks);
  add_result_options(*scenario, command->result);
  scenario->footer(kCommScenarioFooter);
  scenario->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
