#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "comm/bench.h"

namespace weir {
namespace {

constexpr std::int64_t kMostInGraph = 100'000;  // of which memory holds all
constexpr std::uint64_t kMostSizes = 100'000;   // each a row, of which memory holds all

Error bad(const std::string& option, const std::string& text, const std::string& remedy) {
  return {ErrorCode::invalid_argument, fmt::format("{} {}: {}", option, text, remedy)};
}

Status check_counts(const BenchOptions& options) {
  struct Count {
    const char* option;
    int value, least, most;
  };
  const Count counts[] = {{"--iters", options.iterations, 1, kMostTimes},
                          {"--agg_iters", options.aggregated, 1, kMostInGroup},
                          {"--check", options.checks, 0, kMostTimes},
                          {"--cudagraph", options.graph_launches, 0, kMostTimes}};
  for (const Count& count : counts) {
    if (count.value >= count.least && count.value <= count.most) continue;
    return bad(count.option, std::to_string(count.value),
               fmt::format("{} to {}", count.least == 0 ? "0 (none)" : "1", count.most));
  }
  const std::int64_t in_graph = std::int64_t{options.iterations} * options.aggregated;
  if (options.graph_launches > 0 && in_graph > kMostInGraph) {
    return bad("--cudagraph", std::to_string(options.graph_launches),
               fmt::format("a graph would hold --iters {} times --agg_iters {} operations: at most "
                           "{}; lower these, and launch it more often",
                           options.iterations, options.aggregated, kMostInGraph));
  }
  return {};
}

}  // namespace

Result<Bytes> parse_size(const std::string& option, const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  const std::string unit(rest, end);
  double scale = 1;
  if (unit == "K" || unit == "k") scale = 1 << 10;
  if (unit == "M" || unit == "m") scale = 1 << 20;
  if (unit == "G" || unit == "g") scale = 1 << 30;
  const bool good = problem == std::errc() && (unit.empty() || scale > 1) &&
                    std::isfinite(number) && number >= 0 && number * scale < 1e18;
  if (!good) {
    return bad(option, "'" + text + "'", "a size is a number of bytes, such as 8, 64K, 32M or 4G");
  }
  return Bytes{static_cast<std::uint64_t>(number * scale)};
}

Result<std::vector<BenchOperation>> parse_operations(const std::string& text) {
  std::vector<BenchOperation> chosen;
  std::string known;
  for (int number = 0; number < kBenchOperations; ++number) {
    const auto operation = static_cast<BenchOperation>(number);
    if (text == "all" || text == name_of(operation)) chosen.push_back(operation);
    known += std::string(name_of(operation)) + ", ";
  }
  if (chosen.empty()) {
    return bad("--operation", "'" + text + "'",
               "one of " + known + "all; nccl-tests measures the others");
  }
  return chosen;
}

Status check(const BenchOptions& options) {
  if (Status counts = check_counts(options); !counts) return counts;
  if (options.least > options.most) {
    return bad(
        "--minbytes", std::to_string(options.least.count),
        fmt::format("more than --maxbytes, {}: raise that, or lower this", options.most.count));
  }
  if (options.factor <= 1 && options.step == 0_B) {
    return bad("--stepbytes", "0", "sizes would never grow: give bytes to add, or --stepfactor 2");
  }
  if (options.factor <= 1 && (options.most - options.least) / options.step >= kMostSizes) {
    return bad("--stepbytes", std::to_string(options.step.count),
               fmt::format("that is more than {} sizes: add more at a time, or use --stepfactor",
                           kMostSizes));
  }
  if (options.factor > 1 && options.least == 0_B) {
    return bad("--minbytes", "0", "no factor makes it grow: begin with 8, or use --stepbytes");
  }
  return {};
}

std::vector<Bytes> sizes_of(const BenchOptions& options) {
  std::vector<Bytes> sizes;
  for (Bytes size = options.least; size <= options.most;) {
    sizes.push_back(size);
    const Bytes last = options.factor > 1 ? options.most / options.factor
                                          : options.most - std::min(options.step, options.most);
    if (size > last) break;
    size = options.factor > 1 ? size * options.factor : size + options.step;
  }
  return sizes;
}

}  // namespace weir
