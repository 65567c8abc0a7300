#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "comm/scenario.h"
#include "comm_ranks_options.h"
#include "command.h"

namespace weir {
namespace {

struct ScenarioCommand {
  RanksCommand ranks;
  std::string name, json;
};

ExitCode run(const ScenarioCommand& command) {
  Result<JsonTarget> json = JsonTarget::open(command.json);
  if (!json) return complain("comm scenario " + command.name, json.error());
  const auto run_named = [&]() -> Result<ScenarioReport> {
    const Result<OpenRanks> open = open_as(command.ranks);
    if (!open) return open.error();
    if (command.name == "A") return run_scenario_a(*open);
    if (command.name == "C") return run_scenario_c(*open, {});
    if (command.name == "D") return run_scenario_d(*open);
    return run_scenario_e(*open, {});
  };
  const Result<ScenarioReport> report = run_named();
  if (!report) return complain("comm scenario " + command.name, report.error());
  if (report->is_rank_0) {
    const Status written = json->write(scenario_text(*report), scenario_json(*report));
    if (!written) return complain("comm scenario " + command.name, written.error());
  }
  return report->holds() ? ExitCode::ok : ExitCode::failed;
}

constexpr const char* kFooter = R"(
  A  a captured all-reduce that fails          C  all-reduce inputs that live too long
  D  everything NCCL lets one capture          E  a step that drowns in launches

Examples:
  weir comm scenario A
  weir comm scenario C --ranks 4 --json -

docs/comm-scenarios.md says what each runs and aims at. Exit codes: 0 the cure holds; 1 it does not,
or a failure; 2 a bad command line.)";

}  // namespace

void add_comm_scenario_command(CLI::App& comm, ExitCode& exit_code) {
  auto command = std::make_shared<ScenarioCommand>();
  CLI::App* scenario = comm.add_subcommand(
      "scenario", "Run a fault that programs meet with collectives, and what Weir makes of it");
  scenario->add_option("SCENARIO", command->name, "A, C, D or E")
      ->required()
      ->transform(CLI::IsMember({"A", "C", "D", "E"}, CLI::ignore_case));
  add_ranks_options(*scenario, command->ranks);
  add_json_option(*scenario, command->json);
  scenario->footer(kFooter);
  scenario->callback([command, &exit_code] { exit_code = run(*command); });
}

}  // namespace weir
