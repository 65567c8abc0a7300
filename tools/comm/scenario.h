// SPDX-License-Identifier: Apache-2.0
// `weir comm scenario`: faults that programs meet with collectives, and what Weir makes of them, as
// programs that say so in numbers. docs/comm-scenarios.md says what each runs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks.h"

namespace weir {

enum class Bound { at_most, at_least, exactly };

// What a scenario is to reach, and what it did.
struct Aim {
  std::string what;
  std::string unit;
  Bound bound = Bound::exactly;
  double aim = 0;
  double reached = 0;

  bool held() const;
};

std::string percent(double value);  // "12.3 %"; what rounds to nothing has no sign

struct ScenarioTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

struct ScenarioReport {
  std::string name;   // "A"
  std::string title;  // in a line
  std::string device;
  std::vector<ScenarioTable> tables;
  std::vector<Aim> aims;
  std::vector<std::string> notes;     // how it was measured, what it can't show
  std::vector<std::string> problems;  // what Ranks::close() found, and what failed
  // The process has rank 0, which alone has figures: of the others the problems count, no more.
  bool is_rank_0 = true;

  // Runs `work` on new ranks. What they found wrong is a problem; what failed is returned. Throws
  // what `open` throws.
  Status run(const OpenRanks& open, const RanksOptions& wanted,
             const std::function<void(BenchRank&)>& work);
  // The same, for one cell of a table: one case of `aim`, which counts those in which all was well.
  // Returns `well`, or what was not.
  std::string run_case(const OpenRanks& open, const RanksOptions& wanted, Aim& aim,
                       const std::string& well, const std::function<void(BenchRank&)>& work);
  bool holds() const;
};

// C. Sizes are of one rank.
struct OverlapOptions {
  int layers = 8;
  std::uint64_t width = 8192;    // of a layer; its weights are width * width of bfloat16
  Bytes output = 64_MiB;         // of a layer
  Nanoseconds compute = 850_us;  // of a layer
  int steps = 10;
  int runs = 5;
  Bytes aim = 480_MiB;
};

// E.
struct BucketsOptions {
  struct Model {
    std::uint64_t hidden = 0;
    int layers = 0;
  };
  std::vector<Model> models{{256, 8}, {512, 12}, {1024, 16}, {2048, 16}};
  int kernels_forward = 20, kernels_backward = 40;  // of a layer
  std::uint64_t tokens = 4096;                      // in a step, on each rank
  double flops_per_nanosecond = 400'000;
  Nanoseconds shortest_kernel = 1500_ns;
  Nanoseconds launch = 3_us;  // of a kernel, on the host
  Bytes bucket = 25_MiB;
  int steps = 5;
};

// Throw what `open` throws, and what fails; what fails in a case is a cell of its table, and a
// problem.
ScenarioReport run_scenario_a(const OpenRanks& open);
ScenarioReport run_scenario_c(const OpenRanks& open, const OverlapOptions& options);
ScenarioReport run_scenario_d(const OpenRanks& open);
ScenarioReport run_scenario_e(const OpenRanks& open, const BucketsOptions& options);

std::string table_text(const ScenarioTable& table);
std::string scenario_text(const ScenarioReport& report);
std::string scenario_json(const ScenarioReport& report);

}  // namespace weir
