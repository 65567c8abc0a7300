// SPDX-License-Identifier: Apache-2.0
// What a run of the benchmark found: as a table with nccl-tests' columns, and as JSON, whose
// members docs/comm-bench.md defines.
#include <fmt/format.h>

#include "comm/bench.h"
#include "replay/json.h"
#include "replay/units.h"

namespace weir {
namespace {

std::string place_text(const Place& place) {
  const Timed& timed = place.timed;
  return fmt::format(" {:>8} {:>7} {:>7} {:>6}", three_digits(timed.seconds * 1e6),
                     three_digits(timed.bandwidth.algorithm), three_digits(timed.bandwidth.bus),
                     place.wrong ? std::to_string(*place.wrong) : "N/A");
}

// No operation has a root; the column is nccl-tests'.
std::string row_text(const BenchRow& row) {
  return fmt::format("{:>12} {:>13} {:>11} {:>7} {:>6}{}{}\n", row.shape.size().count,
                     row.shape.count, "float32", reduces(row.operation) ? "sum" : "none", -1,
                     place_text(row.out_of_place), place_text(row.in_place));
}

std::string columns_text() {
  std::string text =
      fmt::format("#\n#{:>53}{:^31}{:^31}\n#{:>11} {:>13} {:>11} {:>7} {:>6}", "", "out-of-place",
                  "in-place", "size", "count", "type", "redop", "root");
  for (int place = 0; place < 2; ++place) {
    text += fmt::format(" {:>8} {:>7} {:>7} {:>6}", "time", "algbw", "busbw", "#wrong");
  }
  text += fmt::format("\n#{:>11} {:>13} {:>27}", "(B)", "(elements)", "");
  for (int place = 0; place < 2; ++place) {
    text += fmt::format("{}{:>8} {:>7} {:>7} {:>6}", place == 0 ? "" : " ", "(us)", "(GB/s)",
                        "(GB/s)", "");
  }
  return text + "\n";
}

// Host time of one operation, and its time, through Weir and through NCCL alone.
std::string comparison(const BenchRow& row) {
  std::string text = "#";
  for (const Place* const place : {&row.out_of_place, &row.in_place}) {
    const double weir = place->timed.host_seconds * 1e9, raw = place->raw->host_seconds * 1e9;
    text += fmt::format("{} host ns: Weir {:.0f}, NCCL {:.0f}, added {:.0f}; us: Weir {}, NCCL {}",
                        place == &row.in_place ? "; in-place" : " out-of-place", weir, raw,
                        weir - raw, three_digits(place->timed.seconds * 1e6),
                        three_digits(place->raw->seconds * 1e6));
  }
  return text + "\n";
}

std::string head_text(const BenchReport& report) {
  const BenchOptions& options = report.options;
  std::string through = options.path == BenchPath::raw ? "NCCL alone" : "Weir's collectives";
  if (options.registered) through += ", buffers of a registered pool";
  if (options.overlap) through += ", on the communication stream";
  through += options.graph_launches == 0
                 ? ", eager"
                 : fmt::format(", one graph of {} operations launched {} times",
                               options.iterations * options.aggregated, options.graph_launches);
  return fmt::format(
      "# {}\n# through {}; minbytes {} maxbytes {} step {} iterations {} in a group {} checks {}\n",
      report.device, through, options.least.count, options.most.count,
      options.factor > 1 ? fmt::format("x{}", options.factor)
                         : fmt::format("+{}", options.step.count),
      options.iterations, options.aggregated, options.checks);
}

std::string average_text(const BenchReport& report, BenchOperation operation) {
  return fmt::format("# {}: average bus bandwidth {} GB/s\n", name_of(operation),
                     three_digits(report.average_bus_bandwidth(operation)));
}

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

double BenchReport::average_bus_bandwidth(BenchOperation operation) const {
  double sum = 0;
  int places = 0;
  for (const BenchRow& row : rows) {
    if (row.operation != operation) continue;
    sum += row.out_of_place.timed.bandwidth.bus + row.in_place.timed.bandwidth.bus;
    places += 2;
  }
  return places == 0 ? 0 : sum / places;
}

std::uint64_t BenchReport::wrong() const {
  std::uint64_t all = 0;
  for (const BenchRow& row : rows) {
    all += row.out_of_place.wrong.value_or(0) + row.in_place.wrong.value_or(0);
  }
  return all;
}

std::string bench_text_so_far(const BenchReport& report) {
  if (report.rows.empty()) return head_text(report);
  const BenchRow& row = report.rows.back();
  const BenchRow* const before =
      report.rows.size() > 1 ? &report.rows[report.rows.size() - 2] : nullptr;
  std::string text;
  if (before == nullptr || before->operation != row.operation) {
    if (before != nullptr) text = average_text(report, before->operation);
    text += fmt::format("#\n# {}\n", name_of(row.operation)) + columns_text();
  }
  text += row_text(row);
  return report.options.path == BenchPath::both ? text + comparison(row) : text;
}

std::string bench_text_end(const BenchReport& report) {
  std::string text;
  if (!report.rows.empty()) text = average_text(report, report.rows.back().operation);
  for (const std::string& problem : report.problems) text += "# WRONG: " + problem + "\n";
  return text;
}

std::string bench_json(const BenchReport& report) {
  const BenchOptions& options = report.options;
  constexpr const char* kPaths[] = {"weir", "raw", "both"};
  Json json{{"ranks", report.ranks},
            {"device", report.device},
            {"through", kPaths[static_cast<int>(options.path)]},
            {"minbytes", options.least.count},
            {"maxbytes", options.most.count},
            {"iters", options.iterations},
            {"agg_iters", options.aggregated},
            {"check", options.checks},
            {"cudagraph", options.graph_launches},
            {"local_register", options.registered},
            {"overlap", options.overlap},
            {"rows", Json::array()},
            {"average_busbw_gbs", Json::object()},
            {"problems", report.problems}};
  for (const BenchRow& row : report.rows) {
    json["rows"].push_back({{"operation", name_of(row.operation)},
                            {"size", row.shape.size().count},
                            {"count", row.shape.count},
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
