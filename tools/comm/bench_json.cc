// docs/comm-bench.md defines the members.
#include "comm/bench.h"
#include "replay/json.h"

namespace weir {
namespace {

Json timed_json(const Timed& timed) {
  return {{"time_us", timed.seconds * 1e6},
          {"host_ns", timed.host_seconds * 1e9},
          {"algbw_gbs", timed.bandwidth.algorithm},
          {"busbw_gbs", timed.bandwidth.bus}};
}

Json place_json(const Place& place) {
  Json json = timed_json(place.timed);
  json["wrong"] = place.wrong ? Json(*place.wrong) : Json();
  if (place.raw) {
    json["raw"] = timed_json(*place.raw);
    json["added_host_ns"] = (place.timed.host_seconds - place.raw->host_seconds) * 1e9;
  }
  return json;
}

}  // namespace

std::string bench_json(const BenchReport& report) {
  const BenchOptions& options = report.options;
  constexpr const char* kPaths[] = {"weir", "raw", "both"};
  constexpr const char* kAverages[] = {"rank 0", "mean", "least", "most"};
  Json json{{"ranks", report.ranks},
            {"device", report.device},
            {"through", kPaths[static_cast<int>(options.path)]},
            {"minbytes", options.least.count},
            {"maxbytes", options.most.count},
            {"iters", options.iterations},
            {"agg_iters", options.aggregated},
            {"warmup_iters", options.warm_ups},
            {"check", options.checks},
            {"cudagraph", options.graph_launches},
            {"local_register", options.registered},
            {"overlap", options.overlap},
            {"average", kAverages[static_cast<int>(options.average)]},
            {"rows", Json::array()},
            {"average_busbw_gbs", Json::object()},
            {"problems", report.problems}};
  for (const BenchRow& row : report.rows) {
    json["rows"].push_back(
        {{"operation", name_of(row.of.operation)},
         {"size", row.shape.size().count},
         {"count", row.shape.count},
         {"type", name_of(row.of.type)},
         {"redop", reduces(row.of.operation) ? name_of(row.of.reduction) : "none"},
         {"root", has_root(row.of.operation) ? row.of.root : -1},
         {"out_of_place", place_json(row.out_of_place)},
         {"in_place", place_json(row.in_place)}});
  }
  for (const BenchOperation operation : options.operations) {
    json["average_busbw_gbs"][std::string(name_of(operation))] =
        report.average_bus_bandwidth(operation);
  }
  return json_text(json);
}

}  // namespace weir
