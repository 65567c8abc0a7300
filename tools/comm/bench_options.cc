// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "comm/bench.h"
#include "weir/config.h"

namespace weir {
namespace {

constexpr std::int64_t kMostInGraph = 100'000;  // of which memory holds all
constexpr std::uint64_t kMostSizes = 100'000;   // each a row, of which memory holds all

Error bad(const std::string& option, const std::string& text, const std::string& remedy) {
  return {ErrorCode::invalid_argument, fmt::format("{} {}: {}", option, text, remedy)};
}

}  // namespace

Result<Bytes> parse_size(const std::string& option, const std::string& text) {
  constexpr Bytes kMost{1'000'000'000'000'000'000};
  Result<Bytes> size = parse_bytes(text);
  if (size && *size < kMost) return size;
  return bad(option, "'" + text + "'", "a size is a number of bytes, such as 8, 64K, 32M or 4G");
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
  const std::int64_t in_graph = std::int64_t{options.iterations} * options.aggregated;
  if (options.graph_launches > 0 && in_graph > kMostInGraph) {
    return bad("--cudagraph", std::to_string(options.graph_launches),
               fmt::format("a graph would hold --iters {} times --agg_iters {} operations: at most "
                           "{}; lower these, and launch it more often",
                           options.iterations, options.aggregated, kMostInGraph));
  }
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
