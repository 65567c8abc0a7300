// SPDX-License-Identifier: Apache-2.0
#include "suite/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "suite/loaded_allocator.h"

namespace weir::suite {
namespace {

using Json = nlohmann::json;

Outcome measure(const AllocatorKind& kind, const Program& program, const SuiteOptions& options) {
  Outcome outcome = measure_memory(kind, program);
  if (!outcome.failure.empty() || !options.host_time || !kind.has_host_time) return outcome;
  const Result<HostTime> time = measure_host_time(kind, program);
  if (time) {
    outcome.host = *time;
  } else {
    outcome.failure = "while host time was measured: " + time.error().message();
  }
  return outcome;
}

std::optional<std::uint64_t> count_in(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return json.get<std::uint64_t>();
}

// Of a line of outcome_json(). False: it is no whole one, as of a process that ended within it.
bool unpack(const std::string& line, Outcome& outcome) {
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) return false;
  if (json.contains("error")) return outcome.failure = json["error"], true;
  outcome.peak_held = json["peak_held_bytes"];
  outcome.ratio = json["ratio"];
  outcome.weighted_ratio = json["ratio_over_time"];
  outcome.driver_calls = count_in(json["driver_calls"]);
  outcome.waits = count_in(json["waits"]);
  const Json& host = json["host"];
  if (!host.is_null()) outcome.host = {host["median_ns_per_pair"], host["slowest_call_us"]};
  return true;
}

Result<std::vector<Outcome>> measure_apart(const ChosenAllocator& allocator,
                                           const std::vector<Program>& programs,
                                           const SuiteOptions& options) {
  const Result<ApartResult> apart = run_apart(options.timeout, [&](const Send& send) {
    const Result<AllocatorKind> kind = load_allocator(allocator.file);
    for (const Program& program : programs) {
      Outcome failed;
      if (!kind) failed.failure = kind.error().message();
      send(outcome_json(kind ? measure(*kind, program, options) : failed) + "\n");
    }
  });
  if (!apart) return apart.error();
  std::vector<Outcome> outcomes;
  std::istringstream lines(apart->text);
  for (const Program& program : programs) {
    Outcome& outcome = outcomes.emplace_back();
    std::string line;
    if (!std::getline(lines, line) || !unpack(line, outcome)) {
      outcome.failure = apart->ended.empty() ? "its process ended early" : apart->ended;
      if (apart->timed_out) outcome.failure = allocator.file + ": " + outcome.failure;
    }
    outcome.allocator = allocator.name;
    outcome.program = program.name;
  }
  return outcomes;
}

}  // namespace

bool is_library(std::string_view name) {
  return name.find('/') != std::string_view::npos || name.ends_with(".so");
}

Result<ChosenAllocator> choose_allocator(const std::string& name, std::chrono::seconds timeout) {
  for (const AllocatorKind& kind : built_in_allocators()) {
    if (kind.name == name) return ChosenAllocator{kind.name, kind.title, &kind, ""};
  }
  if (!is_library(name)) {
    return Error(ErrorCode::invalid_argument, fmt::format("no allocator is called '{}'", name));
  }
  const Result<ApartResult> apart = run_apart(timeout, [&](const Send& send) {
    const Result<AllocatorKind> kind = load_allocator(name);
    send(kind ? Json{{"name", kind->name}}.dump()
              : Json{{"error", kind.error().message()},
                     {"unavailable", kind.error().code() == ErrorCode::unavailable}}
                    .dump(-1, ' ', false, Json::error_handler_t::replace));
  });
  if (!apart) return apart.error();
  const Json said = Json::parse(apart->text, nullptr, false);
  if (said.is_discarded() || !apart->ended.empty()) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: can't be loaded: {}", name, apart->ended));
  }
  if (said.contains("error")) {
    return Error(said["unavailable"] ? ErrorCode::unavailable : ErrorCode::invalid_input,
                 said["error"]);
  }
  return ChosenAllocator{said["name"], "of " + name, nullptr, name};
}

bool SuiteResult::any_failed() const {
  return std::ranges::any_of(outcomes,
                             [](const Outcome& outcome) { return !outcome.failure.empty(); });
}

Result<SuiteResult> run_suite(std::vector<Program> programs,
                              std::vector<ChosenAllocator> allocators,
                              const SuiteOptions& options) {
  SuiteResult result{std::move(programs), std::move(allocators), {}};
  const std::size_t width = result.allocators.size();
  result.outcomes.resize(result.programs.size() * width);
  std::uint64_t done = 0;
  for (std::size_t column = 0; column < width; ++column) {
    const ChosenAllocator& allocator = result.allocators[column];
    if (allocator.built_in != nullptr) {
      for (std::size_t row = 0; row < result.programs.size(); ++row) {
        result.outcomes[row * width + column] =
            measure(*allocator.built_in, result.programs[row], options);
        if (options.progress) options.progress(++done, result.outcomes.size());
      }
      continue;
    }
    Result<std::vector<Outcome>> outcomes = measure_apart(allocator, result.programs, options);
    if (!outcomes) return std::move(outcomes).error();
    for (std::size_t row = 0; row < result.programs.size(); ++row) {
      result.outcomes[row * width + column] = std::move((*outcomes)[row]);
    }
    done += result.programs.size();
  }
  return result;
}

}  // namespace weir::suite
