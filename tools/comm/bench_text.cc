// The table that people read: nccl-tests' columns.
#include <fmt/format.h>

#include "comm/bench.h"
#include "replay/units.h"

namespace weir {
namespace {

std::string place_text(const Place& place) {
  const Timed& timed = place.timed;
  return fmt::format(" {:>8} {:>7} {:>7} {:>6}", three_digits(timed.seconds * 1e6),
                     three_digits(timed.bandwidth.algorithm), three_digits(timed.bandwidth.bus),
                     place.wrong ? std::to_string(*place.wrong) : "N/A");
}

std::string head_text(const BenchRow& row) {
  const BenchCase& of = row.of;
  return fmt::format("{:>12} {:>13} {:>11} {:>7} {:>6}", row.shape.size().count, row.shape.count,
                     name_of(of.type), reduces(of.operation) ? name_of(of.reduction) : "none",
                     has_root(of.operation) ? of.root : -1);
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

std::string through(const BenchOptions& options) {
  std::string text = options.path == BenchPath::raw ? "NCCL alone" : "Weir's collectives";
  if (options.registered) text += ", buffers of a registered pool";
  if (options.overlap) text += ", on the communication stream";
  if (options.graph_launches == 0) return text + ", eager";
  return text + fmt::format(", one graph of {} operations launched {} times",
                            options.iterations * options.aggregated, options.graph_launches);
}

}  // namespace

std::string BenchTable::begin(const BenchReport& report) const {
  const BenchOptions& options = report.options;
  return fmt::format(
      "# {}\n# through {}; minbytes {} maxbytes {} step {} warm-ups {} iterations {} in a group {} "
      "checks {}\n",
      report.device, through(options), options.least.count, options.most.count,
      options.factor > 1 ? fmt::format("x{}", options.factor)
                         : fmt::format("+{}", options.step.count),
      options.warm_ups, options.iterations, options.aggregated, options.checks);
}

std::string BenchTable::row(const BenchReport& report, const BenchRow& row) {
  std::string text;
  if (operation_ != row.of.operation) {
    text = end_operation(report);
    operation_ = row.of.operation;
    text += fmt::format("#\n# {}\n", name_of(*operation_)) + columns_text();
  }
  text += head_text(row) + place_text(row.out_of_place) + place_text(row.in_place) + "\n";
  if (report.options.path == BenchPath::both) text += comparison(row);
  return text;
}

std::string BenchTable::end(const BenchReport& report) {
  std::string text = end_operation(report);
  for (const std::string& problem : report.problems) text += "# WRONG: " + problem + "\n";
  return text;
}

std::string BenchTable::end_operation(const BenchReport& report) {
  if (!operation_) return "";
  return fmt::format("# {}: average bus bandwidth {} GB/s\n", name_of(*operation_),
                     three_digits(report.average_bus_bandwidth(*operation_)));
}

std::string bench_text(const BenchReport& report) {
  BenchTable table;
  std::string text = table.begin(report);
  for (const BenchRow& row : report.rows) text += table.row(report, row);
  return text + table.end(report);
}

}  // namespace weir
