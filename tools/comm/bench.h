// SPDX-License-Identifier: Apache-2.0
// `weir comm bench`: nccl-tests' measurements of five operations, through Weir, through NCCL alone,
// or both in turn. docs/comm-bench.md defines every option and column.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/bench_shape.h"
#include "comm/ranks.h"

namespace weir {

// What a row is measured through. `both`: Weir's, and NCCL's after it.
enum class BenchPath { weir, raw, both };

// Most operations of each kind, and most in one group, of which memory holds several: the command
// line takes no more.
inline constexpr int kMostTimes = 100'000'000;
inline constexpr int kMostInGroup = 10'000;

struct BenchOptions {
  std::vector<BenchOperation> operations{BenchOperation::all_reduce};
  Bytes least = 32_MiB, most = 32_MiB;
  Bytes step = 1_MiB;        // added from size to size; or, where it is more than 1,
  std::uint64_t factor = 1;  // the size is multiplied
  int iterations = 20;       // one at least
  int checks = 1;
  int aggregated = 1;       // operations in one group; one at least
  int graph_launches = 0;   // 0: eager
  bool registered = false;  // buffers of a RegisteredPool
  bool overlap = false;     // on the communication stream; otherwise on the caller's
  BenchPath path = BenchPath::weir;
};

// As typed. Errors: invalid_argument (the name of the option, what was typed, and what it takes).
Result<Bytes> parse_size(const std::string& option, const std::string& text);  // "8", "64K", "1.5G"
Result<std::vector<BenchOperation>> parse_operations(const std::string& text);  // or "all"
Status check(const BenchOptions& options);

std::vector<Bytes> sizes_of(const BenchOptions& options);

// One measurement. Times are of one operation, and means over ranks.
struct Timed {
  double seconds = 0;       // host's clock, from the first call to the end of all work
  double host_seconds = 0;  // of it, in the calls that queue
  Bandwidth bandwidth;
};
struct Place {
  Timed timed;                         // through `path`
  std::optional<Timed> raw;            // NCCL alone, for BenchPath::both
  std::optional<std::uint64_t> wrong;  // nothing: not looked at
};
struct BenchRow {
  BenchOperation operation = BenchOperation::all_reduce;
  BenchShape shape;
  Place out_of_place, in_place;
};

struct BenchReport {
  BenchOptions options;
  int ranks = 0;
  std::string device;  // Ranks::describe()
  std::vector<BenchRow> rows;
  std::vector<std::string> problems;  // what Ranks::close() found
  bool is_rank_0 = true;              // the process has rank 0, which alone has rows

  // Mean of the bus bandwidth of `operation`'s rows, in place and out.
  double average_bus_bandwidth(BenchOperation operation) const;
  std::uint64_t wrong() const;
  bool sound() const { return wrong() == 0 && problems.empty(); }
};

// Called while it runs, where the process has rank 0, in that rank's thread: before the first row,
// when there is none, and after each. An error ends the run.
using BenchWatcher = std::function<Status(const BenchReport&)>;

// Errors: those of check(), `open`, `watcher`, and what fails while it runs.
Result<BenchReport> run_bench(const OpenRanks& open, const BenchOptions& options,
                              const BenchWatcher& watcher = {});

// The table that people read, in pieces: after each call of the watcher what that one adds, and the
// end of a report.
std::string bench_text_so_far(const BenchReport& report);
std::string bench_text_end(const BenchReport& report);
std::string bench_json(const BenchReport& report);

}  // namespace weir
