// SPDX-License-Identifier: Apache-2.0
#include "look/top.h"
#include "replay/json.h"

namespace weir {
namespace {

Json counts_json(const TopCounts& counts) {
  return {{"blocks", counts.blocks},
          {"live_bytes", counts.live.count},
          {"leased_bytes", counts.leased.count},
          {"allocations", counts.allocations},
          {"deallocations", counts.deallocations},
          {"allocated_bytes", counts.allocated.count},
          {"fences", counts.fences},
          {"waits", counts.waits}};
}

Json list_json(const char* name, const std::map<std::uint64_t, TopCounts>& all) {
  Json list = Json::array();
  for (const auto& [id, counts] : all) {
    Json& row = list.emplace_back(Json{{name, id}});
    row.update(counts_json(counts));
  }
  return list;
}

}  // namespace

std::string top_json(const TopView& view, const TopNumbers& now) {
  Json json = {{"program", view.program},
               {"device", view.device},
               {"device_bytes", view.device_bytes.count},
               {"dropped", view.dropped},
               {"ended", view.ended},
               {"recorded_us", microseconds(now.end - now.begin)},
               {"requested_bytes", now.requested.count},
               {"reserved_bytes", now.reserved.count},
               {"idle_bytes", now.idle.count},
               {"peak_live_bytes", now.peak_live.count},
               {"peak_reserved_bytes", now.peak_reserved.count},
               {"pages", now.pages},
               {"mappings", now.mappings},
               {"pages_created", now.created},
               {"pages_released", now.released},
               {"host_waits", now.host_waits},
               {"host_wait_time_us", microseconds(now.host_wait_time)},
               {"out_of_memory", now.out_of_memory}};
  if (view.damaged_at) json["damaged_at_byte"] = *view.damaged_at;
  json.update(counts_json(now.all));
  json["streams"] = list_json("stream", now.streams);
  json["pools"] = list_json("pool", now.pools);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
