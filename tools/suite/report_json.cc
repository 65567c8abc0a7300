// SPDX-License-Identifier: Apache-2.0
#include "replay/json.h"
#include "suite/suite.h"

namespace weir::suite {
namespace {

weir::Json program_json(const Program& program) {
  weir::Json json{{"program", program.name},
                  {"kind", program.family.empty() ? "recorded" : "generated"},
                  {"family", nullptr},
                  {"seed", or_null(program.seed)},
                  {"title", program.title},
                  {"streams", program.streams},
                  {"pools", program.pools},
                  {"blocks", program.blocks},
                  {"calls", program.calls.size()},
                  {"time_us", program.end_us},
                  {"peak_live_bytes", program.needs.peak_live.count},
                  {"lower_bound_bytes", program.needs.lower_bound.count}};
  if (!program.family.empty()) json["family"] = program.family;
  return json;
}

weir::Json json_of(const Outcome& outcome) {
  weir::Json json{{"program", outcome.program}, {"allocator", outcome.allocator}};
  if (!outcome.failure.empty()) {
    json["error"] = outcome.failure;
    return json;
  }
  json["peak_held_bytes"] = outcome.peak_held;
  json["ratio"] = outcome.ratio;
  json["ratio_over_time"] = outcome.weighted_ratio;
  json["driver_calls"] = or_null(outcome.driver_calls);
  json["waits"] = or_null(outcome.waits);
  if (outcome.host) {
    json["host"] = {{"median_ns_per_pair", outcome.host->median_ns_per_pair},
                    {"slowest_call_us", outcome.host->slowest_call_us}};
  } else {
    json["host"] = nullptr;
  }
  return json;
}

}  // namespace

std::string suite_json(const SuiteResult& result) {
  weir::Json json{{"programs", weir::Json::array()},
                  {"allocators", weir::Json::array()},
                  {"results", weir::Json::array()}};
  for (const Program& program : result.programs) json["programs"].push_back(program_json(program));
  for (const ChosenAllocator& each : result.allocators) {
    json["allocators"].push_back({{"allocator", each.name}, {"title", each.title}});
  }
  for (const Outcome& outcome : result.outcomes) json["results"].push_back(json_of(outcome));
  return json_text(json);
}

std::string outcome_json(const Outcome& outcome) {
  return json_of(outcome).dump(-1, ' ', false, weir::Json::error_handler_t::replace);
}

}  // namespace weir::suite
