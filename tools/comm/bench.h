// `weir comm bench`: nccl-tests' measurements, through Weir's collectives, through NCCL alone, or
// both in turn. docs/comm-bench.md defines every option and column.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/bench_shape.h"
#include "comm/ranks.h"

namespace weir {

enum class Average { rank_0, mean, least, most };  // over ranks; as nccl-tests' -a

// What a row is measured through. `both`: Weir's, and NCCL's after it.
enum class BenchPath { weir, raw, both };

// Most operations of each kind, and most in one group, which memory holds as a whole.
inline constexpr int kMostTimes = 100'000'000;
inline constexpr int kMostInGroup = 100'000;

struct BenchOptions {
  std::vector<BenchOperation> operations{BenchOperation::all_reduce};
  std::vector<DataType> types{DataType::float32};
  std::vector<Reduction> reductions{Reduction{}};
  int root = 0;  // -1: every rank in turn
  Bytes least = 32_MiB, most = 32_MiB;
  Bytes step = 1_MiB;        // added from size to size; or, where it is more than 1,
  std::uint64_t factor = 1;  // the size is multiplied
  int iterations = 20;
  int warm_ups = 1;
  int checks = 1;
  int aggregated = 1;       // operations in one group
  int graph_launches = 0;   // 0: eager
  bool registered = false;  // buffers of a RegisteredPool
  bool overlap = false;     // on the communication stream; otherwise on the caller's
  Average average = Average::mean;
  BenchPath path = BenchPath::weir;
  bool keep_rows = true;  // in the report; else only who watches sees them
};

// As typed. Errors: invalid_argument (the name of the option, what was typed, and what it takes).
Result<Bytes> parse_size(const std::string& option, const std::string& text);  // "8", "64K", "1.5G"
Result<std::vector<BenchOperation>> parse_operations(const std::string& text);  // or "all"
Result<std::vector<DataType>> parse_types(const std::string& text);
Result<std::vector<Reduction>> parse_reductions(const std::string& text);
Result<int> parse_root(const std::string& text);
Status check(const BenchOptions& options, int ranks);

std::vector<Bytes> sizes_of(const BenchOptions& options);

// One measurement. Times are of one operation.
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
  BenchCase of;
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

  void add(const BenchRow& row);
  // Mean of the bus bandwidth of `operation`'s rows, in place and out.
  double average_bus_bandwidth(BenchOperation operation) const;
  std::uint64_t wrong() const { return wrong_; }
  bool sound() const { return wrong() == 0 && problems.empty(); }

 private:
  struct Sum {
    double bus = 0;
    std::uint64_t places = 0;
  };
  std::map<BenchOperation, Sum> sums_;
  std::uint64_t wrong_ = 0;
};

// Called while it runs, where the process has rank 0, in that rank's thread: once before the first
// row, and for each as soon as it is measured. An error ends the run.
struct BenchWatcher {
  std::function<Status(const BenchReport&)> begin = {};
  std::function<Status(const BenchReport&, const BenchRow&)> row = {};
};

// Errors: those of check(), `open`, `watcher`, and what fails while it runs.
Result<BenchReport> run_bench(const OpenRanks& open, const BenchOptions& options,
                              const BenchWatcher& watcher = {});

// The table that people read, piece by piece: row by row, in the order of their measuring.
class BenchTable {
 public:
  std::string begin(const BenchReport& report) const;
  // With the head of its operation, where it is the first, after the end of the one before.
  std::string row(const BenchReport& report, const BenchRow& row);
  std::string end(const BenchReport& report);

 private:
  std::string end_operation(const BenchReport& report);
  std::optional<BenchOperation> operation_;
};

std::string name_of(const Reduction& reduction);    // "sum", "mulsum"
std::string bench_text(const BenchReport& report);  // of a report that kept its rows
std::string bench_json(const BenchReport& report);

}  // namespace weir
