// The table that people read: nccl-tests' columns.
#include <fmt/format.h>

#include "comm/bench.h"

namespace weir {
namespace {

std::string fixed(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string place_text(const Place& place) {
  const Timed& timed = place.timed;
  return fmt::format(" {:>8} {:>7} {:>7} {:>6}", fixed(timed.seconds * 1e6),
                     fixed(timed.bandwidth.algorithm), fixed(timed.bandwidth.bus),
                     place.wrong ? std::to_string(*place.wrong) : "N/A");
}

std::string head_text(const BenchRow& row) {
  const BenchCase& of = row.of;
  return fmt::format("{:>12} {:>13} {:>11} {:>7} {:>6}", row.shape.size().count, row.shape.count,
                     name_of(of.type), reduces(of.operation) ? name_of(of.reduction) : "none",
                     has_root(of.operation) ? of.root : -1);
}

std::string table(const BenchReport& report, BenchOperation operation) {
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
  text += "\n";
  for (const BenchRow& row : report.rows) {
    if (row.of.operation != operation) continue;
    text += head_text(row) + place_text(row.out_of_place) + place_text(row.in_place) + "\n";
  }
  return text;
}

std::string comparison(const BenchReport& report, BenchOperation operation) {
  std::string text = fmt::format(
      "# Host time of one operation (ns), and time (us), through Weir and through NCCL alone\n"
      "#{:>53}{:^46}{:^46}\n#{:>11} {:>13} {:>11} {:>7} {:>6}",
      "", "out-of-place", "in-place", "size", "count", "type", "redop", "root");
  for (int place = 0; place < 2; ++place) {
    text +=
        fmt::format(" {:>8} {:>8} {:>8} {:>9} {:>8}", "Weir", "NCCL", "added", "Weir (us)", "NCCL");
  }
  text += "\n";
  for (const BenchRow& row : report.rows) {
    if (row.of.operation != operation) continue;
    text += head_text(row);
    for (const Place* const place : {&row.out_of_place, &row.in_place}) {
      const double weir = place->timed.host_seconds * 1e9, raw = place->raw->host_seconds * 1e9;
      text += fmt::format(" {:>8.0f} {:>8.0f} {:>8.0f} {:>9} {:>8}", weir, raw, weir - raw,
                          fixed(place->timed.seconds * 1e6), fixed(place->raw->seconds * 1e6));
    }
    text += "\n";
  }
  return text;
}

std::string through(const BenchOptions& options) {
  std::string text = options.path == BenchPath::raw ? "NCCL alone" : "Weir's collectives";
  if (options.registered) text += ", buffers of a registered pool";
  if (options.graph_launches == 0) return text + ", eager";
  return text + fmt::format(", one graph of {} operations launched {} times",
                            options.iterations * options.aggregated, options.graph_launches);
}

}  // namespace

std::string bench_text(const BenchReport& report) {
  const BenchOptions& options = report.options;
  std::string text = fmt::format(
      "# {}\n# through {}; minbytes {} maxbytes {} step {} warm-ups {} iterations {} in a group {} "
      "checks {}\n",
      report.device, through(options), options.least.count, options.most.count,
      options.factor > 1 ? fmt::format("x{}", options.factor)
                         : fmt::format("+{}", options.step.count),
      options.warm_ups, options.iterations, options.aggregated, options.checks);
  for (const BenchOperation operation : options.operations) {
    text += fmt::format("#\n# {}\n", name_of(operation)) + table(report, operation);
    if (options.path == BenchPath::both) text += comparison(report, operation);
    text += fmt::format("# {}: average bus bandwidth {} GB/s\n", name_of(operation),
                        fixed(report.average_bus_bandwidth(operation)));
  }
  for (const std::string& problem : report.problems) text += "# WRONG: " + problem + "\n";
  return text;
}

}  // namespace weir
