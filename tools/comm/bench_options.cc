#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "comm/bench.h"

namespace weir {
namespace {

Error bad(const std::string& option, const std::string& text, const std::string& remedy) {
  return {ErrorCode::invalid_argument, fmt::format("{} {}: {}", option, text, remedy)};
}

// The premultiplier of "mulsum", a sum of multiples.
constexpr double kPremul = 2;

struct NamedReduction {
  std::string_view name;
  Reduction reduction;
};
const std::array<NamedReduction, 6>& reductions() {
  static const std::array<NamedReduction, 6> all{{{"sum", {ReduceOp::sum}},
                                                  {"prod", {ReduceOp::product}},
                                                  {"max", {ReduceOp::max}},
                                                  {"min", {ReduceOp::min}},
                                                  {"avg", {ReduceOp::average}},
                                                  {"mulsum", Reduction::premul_sum(kPremul)}}};
  return all;
}

// nccl-tests' own names for some types.
DataType type_of(const std::string& name, bool& found) {
  constexpr std::array<std::pair<std::string_view, DataType>, 6> kNames{
      {{"float", DataType::float32},
       {"double", DataType::float64},
       {"half", DataType::float16},
       {"f8e4m3", DataType::float8_e4m3},
       {"f8e5m2", DataType::float8_e5m2},
       {"bf16", DataType::bfloat16}}};
  found = true;
  for (const auto& [theirs, type] : kNames) {
    if (name == theirs) return type;
  }
  for (int type = 0; type < kDataTypes; ++type) {
    if (name == name_of(static_cast<DataType>(type))) return static_cast<DataType>(type);
  }
  found = false;
  return DataType::float32;
}

bool has_premul(const BenchOptions& options) {
  for (const Reduction& reduction : options.reductions) {
    if (reduction.premul) return true;
  }
  return false;
}

constexpr std::int64_t kMostInGraph = 100'000;  // of which memory holds all

struct Count {
  const char* option;
  int value, least, most;
};

Status check_counts(const BenchOptions& options) {
  const Count counts[] = {{"--iters", options.iterations, 1, kMostTimes},
                          {"--agg_iters", options.aggregated, 1, kMostInGroup},
                          {"--warmup_iters", options.warm_ups, 0, kMostTimes},
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
  if (chosen.empty()) return bad("--operation", "'" + text + "'", "one of " + known + "all");
  return chosen;
}

Result<std::vector<DataType>> parse_types(const std::string& text) {
  std::vector<DataType> chosen;
  std::string known;
  for (int type = 0; type < kDataTypes; ++type) {
    if (text == "all") chosen.push_back(static_cast<DataType>(type));
    known += std::string(name_of(static_cast<DataType>(type))) + ", ";
  }
  if (!chosen.empty()) return chosen;
  bool found = false;
  const DataType type = type_of(text, found);
  if (!found) return bad("--datatype", "'" + text + "'", "one of " + known + "all");
  return std::vector{type};
}

Result<std::vector<Reduction>> parse_reductions(const std::string& text) {
  std::vector<Reduction> chosen;
  std::string known;
  for (const NamedReduction& each : reductions()) {
    if (text == each.name || (text == "all" && !each.reduction.premul)) {
      chosen.push_back(each.reduction);
    }
    known += std::string(each.name) + ", ";
  }
  if (chosen.empty()) {
    return bad("--op", "'" + text + "'", "one of " + known + "or all (but for mulsum)");
  }
  return chosen;
}

Result<int> parse_root(const std::string& text) {
  if (text == "all") return -1;
  int root = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, root);
  if (problem != std::errc() || rest != end || root < 0) {
    return bad("--root", "'" + text + "'", "the number of a rank, from 0, or all");
  }
  return root;
}

// What is left to measure is listed beforehand.
constexpr std::uint64_t kMostSizes = 1'000'000;

Status check(const BenchOptions& options, int ranks) {
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
  if (options.root >= ranks) {
    return bad("--root", std::to_string(options.root), fmt::format("ranks are 0 to {}", ranks - 1));
  }
  for (const DataType type : options.types) {
    const std::string name(name_of(type));
    if (has_premul(options) && !name.starts_with("float") && !name.starts_with("bfloat")) {
      return bad("--op", "mulsum", "of floating-point types alone, not of " + name);
    }
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

std::string name_of(const Reduction& reduction) {
  for (const NamedReduction& each : reductions()) {
    if (each.reduction == reduction) return std::string(each.name);
  }
  return "mulsum";
}

}  // namespace weir
