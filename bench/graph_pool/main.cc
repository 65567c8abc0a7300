// SPDX-License-Identifier: Apache-2.0
// weir_graph_pool: Weir's graph pools with real kernels, on a GPU. bench/graph_pool/run runs all
// parts, beside PyTorch.
//
// Prints a line for each result, or with --json JSON too. Exit: 0; 1 where a part failed or data
// was wrong; 2 for wrong arguments; 3 where there is no GPU to run on.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/graph_pool/scenarios.h"
#include "tools/option_checks.h"

namespace weir::graph_pool {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongArguments = 2;
constexpr int kNoGpu = 3;

struct Part {
  const char* name;
  const char* what;
  std::function<std::vector<Row>(Gpu&, const Options&)> run;
};

const std::vector<Part>& parts() {
  static const std::vector<Part> all = {
      {"scenario_b", "a training step, warmed up on one stream or another", scenario_b},
      {"serve", "13 batch sizes in one pool, outputs kept",
       [](Gpu& gpu, const Options&) { return serve(gpu); }},
      {"two_stream", "200 steps with a consumer on a side stream",
       [](Gpu& gpu, const Options&) { return two_stream(gpu); }},
      {"capture_cost", "time of captures with many allocations",
       [](Gpu& gpu, const Options&) { return capture_cost(gpu); }},
      {"replay_speed", "time of launches, pool against cudaMalloc", replay_speed},
  };
  return all;
}

// One value for a person: sizes in MiB, times and ratios with three decimals.
std::string shown(const std::string& name, const Row& value) {
  char text[64];
  if (name.ends_with("_bytes") && name != "eager_wrong_bytes") {
    std::snprintf(text, sizeof(text), "%.1f MiB",
                  static_cast<double>(value.get<std::uint64_t>()) / (1 << 20));
    return text;
  }
  if (value.is_number_float()) {
    std::snprintf(text, sizeof(text), "%.3f", value.get<double>());
    return text;
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print_row(const Row& row) {
  std::printf("%-13s", row.at("part").get<std::string>().c_str());
  for (const auto& [name, value] : row.items()) {
    if (name == "part") continue;
    const std::string label = name.ends_with("_bytes") && name != "eager_wrong_bytes"
                                  ? name.substr(0, name.size() - 6)
                                  : name;
    std::printf("  %s %s", label.c_str(), shown(name, value).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

bool is_wrong(const Row& row) {
  return row.value("mismatches", 0u) != 0 || row.value("eager_wrong_bytes", 0u) != 0 ||
         row.contains("error");
}

std::vector<Row> run_part(const Part& part, Gpu& gpu, const Options& options) {
  try {
    return part.run(gpu, options);
  } catch (const std::exception& error) {
    return std::vector<Row>{Row::object({{"part", part.name}, {"error", error.what()}})};
  }
}

int run(const std::vector<std::string>& chosen, const Options& options, const std::string& file) {
  Gpu gpu;
  std::printf("%s\n", gpu.description().c_str());
  Row results = Row::array();
  bool wrong = false;
  for (const Part& part : parts()) {
    if (std::find(chosen.begin(), chosen.end(), part.name) == chosen.end()) continue;
    for (const Row& row : run_part(part, gpu, options)) {
      print_row(row);
      wrong = wrong || is_wrong(row);
      results.push_back(row);
    }
  }
  if (!file.empty()) {
    const Row report = {{"device", gpu.description()}, {"results", results}};
    std::ofstream out(file);
    out << report.dump(2) << "\n";
    if (!out.flush()) throw std::runtime_error(file + ": can't be written");
  }
  return wrong ? kFailed : 0;
}

void add_step_options(CLI::App& app, Options& options, std::uint64_t& mib) {
  app.add_option("--warm-up", options.warm_up, "of scenario_b: none, capture, current, all")
      ->check(CLI::IsMember({"none", "capture", "current", "all"}));
  app.add_option("--mode", options.mode, "of its capture: global, thread_local, relaxed, all")
      ->check(CLI::IsMember({"global", "thread_local", "relaxed", "all"}));
  app.add_option("--layers", options.step.layers)->transform(whole_number(1, 1000));
  app.add_option("--mib", mib, "an activation of a layer")->transform(whole_number(1, 4096));
  app.add_option("--side-streams", options.step.side_streams)->transform(whole_number(0, 16));
  app.add_option("--replays", options.replays)->transform(whole_number(1, 100'000'000));
  app.add_option("--delay-us", options.step.most_delay_us, "most, before side streams' kernels")
      ->transform(whole_number(0, 1'000'000));
  app.add_option("--seed", options.seed, "of the eager work beside the replays")
      ->transform(any_whole_number());
}

int parse_and_run(int argc, char** argv) {
  Options options;
  options.step.most_delay_us = 100;
  std::uint64_t mib = 128;
  std::string file;
  std::vector<std::string> chosen;
  CLI::App app("Weir's graph pools with real kernels: memory, data, time. Needs a GPU.");
  std::vector<std::string> names = {"all"};
  std::string help;
  for (const Part& part : parts()) {
    names.emplace_back(part.name);
    help += std::string(help.empty() ? "" : "; ") + part.name + ": " + part.what;
  }
  app.add_option("parts", chosen, help + "; all")->required()->check(CLI::IsMember(names));
  add_step_options(app, options, mib);
  app.add_option("--json", file, "write the results there");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongArguments;
  }
  options.step.activation = 1_MiB * mib;
  if (std::find(chosen.begin(), chosen.end(), "all") != chosen.end()) chosen = names;
  return run(chosen, options, file);
}

}  // namespace
}  // namespace weir::graph_pool

int main(int argc, char** argv) {
  try {
    return weir::graph_pool::parse_and_run(argc, argv);
  } catch (const weir::graph_pool::NoGpu& error) {
    std::fprintf(stderr, "weir_graph_pool: %s\n", error.what());
    return weir::graph_pool::kNoGpu;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weir_graph_pool: %s\n", error.what());
    return weir::graph_pool::kFailed;
  }
}
