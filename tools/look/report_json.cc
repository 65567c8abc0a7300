// SPDX-License-Identifier: Apache-2.0
#include "look/report.h"
#include "replay/json.h"

namespace weir {
namespace {

Json shares(const std::vector<Share>& shares, const char* id) {
  Json list = Json::array();
  for (const Share& share : shares) {
    Json row;
    if (share.rest)
      row["others"] = true;
    else
      row[id] = share.id;
    row["name"] = share.name;
    row["blocks"] = share.blocks;
    row["bytes"] = share.bytes.count;
    row["requested_bytes"] = share.requested.count;
    list.push_back(std::move(row));
  }
  return list;
}

template <class Part, std::size_t kParts>
Json parts_json(const std::array<Bytes, kParts>& bytes) {
  Json parts;
  for (std::size_t i = 0; i < kParts; ++i) {
    parts[std::string(name_of(static_cast<Part>(i))) + "_bytes"] = bytes[i].count;
  }
  return parts;
}

Json moment_json(const Moment& moment) {
  Json fragmentation = parts_json<Cause>(moment.causes);
  fragmentation["unplaced_bytes"] = moment.unplaced.count;
  return {{"event", moment.events},
          {"time_us", microseconds(moment.time)},
          {"blocks", moment.blocks},
          {"pages", moment.pages},
          {"requested_bytes", moment.requested.count},
          {"live_bytes", moment.live.count},
          {"leased_bytes", moment.leased.count},
          {"reserved_bytes", moment.reserved.count},
          {"plain",
           {{"segments", moment.plain.segments},
            {"live_bytes", moment.plain.live.count},
            {"leased_bytes", moment.plain.leased.count},
            {"reserved_bytes", moment.plain.reserved.count}}},
          {"fragmentation", std::move(fragmentation)},
          {"by_stream", shares(moment.by_stream, "stream")},
          {"by_pool", shares(moment.by_pool, "pool")},
          {"by_size", shares(moment.by_size, "largest_bytes")},
          {"by_stack", shares(moment.by_stack, "stack")},
          {"by_purpose", shares(moment.by_purpose, "purpose")}};
}

Json totals_json(const Totals& totals) {
  Json lost = Json::array();
  for (const ContextEventsLost why : totals.context_events_lost) lost.push_back(name_of(why));
  return {{"allocations", totals.allocations},
          {"deallocations", totals.deallocations},
          {"allocated_bytes", totals.allocated.count},
          {"fences", totals.fences},
          {"stream_waits", totals.stream_waits},
          {"context_waits", totals.context_waits},
          {"context_events_lost", std::move(lost)},
          {"host_waits", totals.host_waits.count},
          {"host_wait_time_us", microseconds(totals.host_waits.time)},
          {"longest_host_wait_us", microseconds(totals.host_waits.longest)},
          {"pages_created", totals.pages_created},
          {"created_bytes", totals.created.count},
          {"created_again_bytes", totals.created_again.count},
          {"pages_released", totals.pages_released},
          {"released_bytes", totals.released.count},
          {"trimmed_bytes", totals.trimmed.count},
          {"maps", totals.maps},
          {"unmaps", totals.unmaps},
          {"peak_mappings", totals.mappings_peak},
          {"captures", totals.captures},
          {"out_of_memory", totals.out_of_memory}};
}

Json held_json(const Held& held) {
  return {{"reserved_bytes", held.reserved.count},
          {"live_bytes", held.live.count},
          {"inactive", parts_json<Inactive>(held.inactive)},
          {"largest_inactive_bytes", held.largest_inactive.count},
          {"segments", held.segments.size()}};
}

Json failure_json(const Report& report) {
  const FailedRequest& failure = *report.origin.failure;
  Json json = {{"requested_bytes", failure.wanted.count},
               {"count", failure.count},
               {"allocated_in", report.failed_in},
               {"at", moment_json(*report.failed)}};
  if (failure.free) json["free_bytes"] = failure.free->count;
  return json;
}

}  // namespace

// Of these there are lists.
static void to_json(Json& json, const WaitPair& pair) {
  json = {{"stream", pair.waiter},
          {"waits_for", pair.awaited},
          {"waits", pair.waits},
          {"fences", pair.fences}};
}
static void to_json(Json& json, const CostlyBlocks& costly) {
  json = {{"requested_bytes", costly.requested.count},
          {"stream", costly.stream},
          {"stack", costly.stack},
          {"waits", costly.waits}};
}
static void to_json(Json& json, const LentScratch& lent) {
  json = {{"pool", lent.pool}, {"most_bytes", lent.most.count}};
  if (lent.to) json.update({{"stream", lent.to->stream}, {"stack", lent.to->stack}});
}
static void to_json(Json& json, const Growth& growth) {
  json = {{"blocks", growth.blocks},
          {"requested_bytes", growth.requested.count},
          {"bytes", growth.bytes.count},
          {"stream", growth.stream},
          {"stack", growth.stack},
          {"parts_that_grew", growth.grew},
          {"parts", growth.parts},
          {"first_us", microseconds(growth.first)},
          {"last_us", microseconds(growth.last)}};
}
static void to_json(Json& json, const Advice& advice) {
  json = {{"evidence", advice.evidence}, {"remedy", advice.remedy}};
}

std::string report_json(const Report& report) {
  Json json = {{"source", report.source},
               {"program", report.program},
               {"device", report.device},
               {"device_bytes", report.device_bytes.count},
               {"length_us", microseconds(report.length)},
               {"events", report.events},
               {"dropped", report.dropped},
               {"damage", report.damage},
               {"streams", report.streams},
               {"pools", report.pools},
               {"totals", totals_json(report.totals)},
               {"peak_live", moment_json(report.peak_live)},
               {"peak_reserved", moment_json(report.peak_reserved)},
               {"end", moment_json(report.end)},
               {"late_peak_live_bytes", report.late_peak_live.count}};
  if (report.pytorch_peak_reserved) {
    json["pytorch_peak_reserved_bytes"] = report.pytorch_peak_reserved->count;
  }
  json["verdict"] = verdict_of(report);
  json["shows_peak"] = report.shows_peak;
  json["has_times"] = report.origin.has_times;
  if (!report.origin.devices.empty()) json["device_in_file"] = report.origin.device;
  if (report.failed) json["failed_request"] = failure_json(report);
  if (report.origin.held) json["pytorch"] = held_json(*report.origin.held);
  if (report.at) json["at"] = moment_json(*report.at);
  json["waits"] = report.waits;
  json["waited_for"] = report.costly;
  json["time_dependence"] = nullptr;
  if (const auto& first = report.time_dependence) {
    json["time_dependence"] = {{"call", first->call},
                               {"time_us", microseconds(first->time)},
                               {"why", name_of(first->why)}};
  }
  json["driver_calls"] = Json::object();
  for (const DeviceCallCount& each : report.driver_calls) {
    json["driver_calls"][std::string(each.call)] = {{"calls", each.calls}, {"ns", each.time.count}};
  }
  json["growth"] = report.growth;
  json["lent"] = report.lent;
  json["advice"] = report.advice;
  json["stacks"] = report.stacks;
  return json_text(json);
}

}  // namespace weir
