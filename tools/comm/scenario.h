// SPDX-License-Identifier: Apache-2.0
// `weir comm scenario`: faults that programs meet with collectives, and what Weir makes of them, as
// programs that say so in numbers. docs/comm-scenarios.md says what each runs. `weir comm bench`,
// whose options and columns docs/comm.md defines, is one more.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "weir/comm/operation.h"

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

struct ScenarioTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows = {};
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

struct OverlapOptions {
  Nanoseconds compute = 850_us;  // of a layer
  int runs = 5;
  Bytes aim = 480_MiB;
};

struct BucketsOptions {
  struct Model {
    std::uint64_t hidden = 0, layers = 0;
  };
  std::vector<Model> models{{256, 8}, {512, 12}, {1024, 16}, {2048, 16}};
  Nanoseconds launch = 3_us;  // of a kernel, on the host
};

struct OverheadOptions {
  std::vector<OperationKind> kinds = {OperationKind::all_reduce};  // or all_gather, reduce_scatter
  Bytes least = 32_MiB, most = 32_MiB;
  std::uint64_t factor = 2;  // from size to size; two at least
  int operations_a_round = 50;
  int rounds = 31;        // through each
  bool captured = false;  // a round is one launch of a graph of them
  bool overlap = false;   // on the communication stream; otherwise on the caller's
};
// 10^9 bytes a second that a link carries, as nccl-tests defines it. `size`: of the larger buffer.
double bus_bandwidth(OperationKind kind, Bytes size, double seconds, int ranks);

// Throw what `open` throws, and what fails; what fails in a case is a cell of its table, and a
// problem.
ScenarioReport run_scenario_a(const OpenRanks& open);
ScenarioReport run_scenario_c(const OpenRanks& open, const OverlapOptions& options);
ScenarioReport run_scenario_d(const OpenRanks& open);
ScenarioReport run_scenario_e(const OpenRanks& open, const BucketsOptions& options);
// Throws invalid_argument too: `least` is nothing, or more than `most`.
ScenarioReport run_overhead(const OpenRanks& open, const OverheadOptions& options);

std::string scenario_text(const ScenarioReport& report);
std::string scenario_json(const ScenarioReport& report);

}  // namespace weir
