// SPDX-License-Identifier: Apache-2.0
// weir_irregular: the memory and driver calls of programs that never repeat, on the simulated
// device. bench/fragmentation/run --irregular runs it, and makes the table.
//
// Prints one line of JSON a family and kind of trust. Exit: 0; 1 if a call failed; 2 for wrong
// arguments.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/irregular/simulated_history.h"
#include "suite/irregular_families.h"
#include "tools/option_checks.h"

namespace weir::bench {
namespace {

struct Options {
  std::vector<std::string> families;  // empty: every one
  std::vector<std::string> trust = {"told", "context"};
  std::uint64_t seed = kIrregularSeed;
  HistoryLength length;
};

nlohmann::ordered_json per_pair(const HeapCounts& counts, Nanoseconds driver_time, double pairs) {
  return {{"maps", static_cast<double>(counts.maps) / pairs},
          {"unmaps", static_cast<double>(counts.unmaps) / pairs},
          {"waits", static_cast<double>(counts.waits) / pairs},
          {"context_events", static_cast<double>(counts.context_events) / pairs},
          {"driver_ns", static_cast<double>(driver_time.count) / pairs}};
}

nlohmann::ordered_json line_of(const Family& family, const std::string& trust,
                               const Options& options) {
  const SimulatedFigures figures = run_simulated(
      family, trust == "told" ? Trust::told : Trust::context, options.seed, options.length);
  return {{"family", family.name},
          {"title", family.title},
          {"trust", trust},
          {"seed", options.seed},
          {"phases", options.length.phases},
          {"pairs", options.length.pairs},
          {"ratio", figures.ratio},
          {"first_ratio", figures.first_ratio},
          {"first", per_pair(figures.first, figures.first_driver_time, figures.first_pairs)},
          {"later", per_pair(figures.later, figures.later_driver_time, figures.later_pairs)},
          {"driver_share", static_cast<double>(figures.later_driver_time.count) /
                               static_cast<double>(figures.later_least_time.count)},
          {"host_waits", figures.host_waits},
          {"races", figures.races}};
}

void run(const Options& options) {
  for (const Family& family : families()) {
    if (!options.families.empty() &&
        std::ranges::find(options.families, family.name) == options.families.end()) {
      continue;
    }
    for (const std::string& trust : options.trust) {
      std::puts(line_of(family, trust, options).dump().c_str());
      std::fflush(stdout);
    }
  }
}

int parse_and_run(int argc, char** argv) {
  Options options;
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.name);
  CLI::App app("Memory and driver calls of programs that never repeat, on the simulated device.");
  app.add_option("--families", options.families, "only these")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--trust", options.trust, "told, context (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"told", "context"}));
  app.add_option("--seed", options.seed, "of the programs")->transform(any_whole_number());
  app.add_option("--phases", options.length.phases, "measured ones")
      ->transform(whole_number(2, 10'000));
  app.add_option("--pairs", options.length.pairs, "allocations and frees of a phase")
      ->transform(whole_number(1, 1'000'000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  run(options);
  return 0;
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) {
  try {
    return weir::bench::parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weir_irregular: %s\n", error.what());
    return 1;
  }
}
