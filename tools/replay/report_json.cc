// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "replay/json.h"
#include "replay/report.h"
#include "weir/config.h"

namespace weir {
namespace {

// To a millionth: enough to compare, and short to read.
double rounded(double value) { return std::round(value * 1e6) / 1e6; }

Json calls_json(const ReplayFigures& figures) {
  return {{"create", figures.calls(DeviceCall::create)},
          {"map", figures.calls(DeviceCall::map)},
          {"set_access", figures.calls(DeviceCall::set_access)},
          {"unmap", figures.calls(DeviceCall::unmap)},
          {"release", figures.calls(DeviceCall::release)},
          {"record", figures.calls(DeviceCall::record)},
          {"wait", figures.calls(DeviceCall::wait)},
          {"query", figures.calls(DeviceCall::query)},
          {"sync", figures.calls(DeviceCall::synchronize)},
          {"record_context", figures.calls(DeviceCall::record_context)}};
}

// Adds `figures` to `into`, under the names that the whole and each pass share.
void add_figures(Json& into, const ReplayReport& report, const ReplayFigures& figures) {
  const auto traced = static_cast<double>(figures.trace_time.count);
  const auto driver = static_cast<double>(figures.driver_time.count);
  into["peak_live_bytes"] = report.peak_live.count;
  into["peak_reserved_bytes"] = figures.peak_reserved.count;
  into["ratio"] = rounded(report.ratio(figures));
  into["trace_time_us"] = microseconds(figures.trace_time);
  into["driver_time_us"] = microseconds(figures.driver_time);
  into["driver_time_percent"] = traced > 0 ? rounded(100 * driver / traced) : 0;
  into["driver_calls"] = calls_json(figures);
  into["fences"] = figures.fences;
  into["stream_waits"] = figures.stream_waits;
  into["host_waits"] = figures.host_waits;
  into["races"] = or_null(figures.races);
  into["reserved_bytes"] = figures.reserved.count;
  into["pages"] = figures.pages;
  into["mappings"] = figures.mappings;
}

std::string_view name_of(ReplayFailure::Kind kind) {
  switch (kind) {
    case ReplayFailure::Kind::out_of_memory:
      return "out_of_memory";
    case ReplayFailure::Kind::unsound:
      return "unsound";
    case ReplayFailure::Kind::device:
      return "device";
  }
  return "unknown";
}

Json failure_json(const ReplayFailure& failure) {
  return {{"kind", name_of(failure.kind)},
          {"line", failure.line},
          {"pass", failure.pass},
          {"message", failure.message},
          {"held", failure.held}};
}

Json outcome_json(const ReplayOutcome& outcome) {
  Json json;
  json["trace"] = outcome.trace;
  json["exit_code"] = static_cast<int>(outcome.exit_code());
  if (!outcome.report) {
    json["error"] = {{"kind", name_of(outcome.error->code())},
                     {"message", outcome.error->message()}};
    return json;
  }
  const ReplayReport& report = *outcome.report;
  const ReplayOptions& options = report.options;
  json["device"] = report.device;
  json["policy"] = name_of(options.policy);
  json["trust"] = name_of(options.trust);
  json["memory"] = name_of(options.memory);
  json["addresses"] = name_of(options.addresses);
  json["limit_bytes"] = options.limit == 0_B ? Json(nullptr) : Json(options.limit.count);
  json["repeat"] = options.passes;
  json["blocks"] = report.blocks;
  json["streams"] = report.streams;
  json["late_uses"] = report.late_uses;
  json["graphs"] = report.graphs;
  add_figures(json, report, report.all);
  json["trace_time_us"] = microseconds(report.trace_time);  // of one pass, here too
  json["driver_reserved_bytes"] =
      report.driver_reserved ? Json(report.driver_reserved->count) : Json(nullptr);
  json["passes"] = Json::array();
  for (const ReplayFigures& figures : report.passes) {
    Json pass;
    add_figures(pass, report, figures);
    json["passes"].push_back(std::move(pass));
  }
  json["layouts"] = Json::array();
  for (const PoolLayout& each : report.layouts) {
    json["layouts"].push_back({{"pool", each.pool},
                               {"placements", each.placements},
                               {"hash", fmt::format("{:016x}", each.hash)}});
  }
  if (!report.first_race.empty()) json["first_race"] = report.first_race;
  if (report.failure) json["error"] = failure_json(*report.failure);
  return json;
}

}  // namespace

std::string report_json(std::span<const ReplayOutcome> outcomes) {
  Json json = Json::array();
  for (const ReplayOutcome& outcome : outcomes) json.push_back(outcome_json(outcome));
  return json_text(outcomes.size() == 1 ? json.front() : json);
}

}  // namespace weir
