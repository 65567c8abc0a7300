// SPDX-License-Identifier: Apache-2.0
#include "comm/overhead.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "replay/units.h"
#ifdef WEIR_HAVE_NCCL
#include "comm/nccl/library.h"
#endif

namespace weir {
namespace {

double seconds(Nanoseconds time) { return static_cast<double>(time.count) / 1e9; }

double median(std::vector<double>& all) {
  const auto middle = all.begin() + std::ssize(all) / 2;
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

enum Path { weir, bare };
constexpr std::array kPaths = {Path::weir, Path::bare};

struct Row {
  OperationKind kind;
  Bytes size;                          // of the larger buffer
  double time[2] = {}, host[2] = {};   // of one operation, in seconds; by Path
  std::optional<std::uint64_t> wrong;  // elements; nothing: this device moves no data
};

// One rank's measurements, in its thread.
class OverheadOfRank {
 public:
  OverheadOfRank(BenchRank& rank, const OverheadOptions& options)
      : rank_(rank),
        options_(options),
        where_(options.overlap ? overlapped(rank.compute) : rank.compute) {}

  // Parts, where the operation has them, are whole multiples of 16 bytes.
  Row measure(OperationKind kind, void* send, void* receive, Bytes size) {
    operation_ = {.kind = kind, .send = send, .receive = receive, .count = size.count / 4};
    if (operation_.has_parts()) {
      operation_.count = operation_.count / static_cast<std::uint64_t>(rank_.ranks) / 4 * 4;
      size = Bytes{operation_.count * 4} * static_cast<std::uint64_t>(rank_.ranks);
    }
    Row row{.kind = kind, .size = size, .wrong = count_wrong()};
    GraphPool pool(*rank_.heap);
    Graph graphs[2];  // by Path
    for (const Path path : kPaths) {
      if (!options_.captured) break;
      graphs[path] = capture_graph(rank_, pool, CaptureMode::thread_local_, [&] { queue(path); });
    }
    if (options_.captured) last_ = Work();
    const auto run = [&](Path path) {
      if (!options_.captured) return queue(path);
      need(path == Path::weir
               ? rank_.comm->launch(graphs[path], rank_.compute)
               : rank_.device->launch_graph(graphs[path].executable(), rank_.compute));
    };
    warm_up(run);
    take_turns(run, row);
    return row;
  }

 private:
  double mean(double mine) {
    const std::vector<double> all = rank_.gather(mine);
    return std::accumulate(all.begin(), all.end(), 0.) / rank_.ranks;
  }

  // Of one operation through Weir, on all ranks.
  std::optional<std::uint64_t> count_wrong() {
    rank_.kernels->fill(rank_.compute, {&operation_, 1}, 1);
    last_ = need(rank_.comm->run(operation_, where_));
    complete();
    const auto wrong = rank_.kernels->count_wrong(rank_.compute, {&operation_, 1}, 1);
    const auto all = rank_.gather(wrong.value_or(0));
    if (!wrong) return {};
    return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
  }

  // Until the GPU has left its idle clocks.
  template <class Run>
  void warm_up(const Run& run) {
    const Nanoseconds begin = rank_.kernels->now();
    do {
      for (const Path path : kPaths) {
        run(path);
        complete();
      }
    } while (rank_.gather(rank_.kernels->now() - begin).front() < rank_.kernels->warm_up_time());
  }

  // In rounds of few operations, so that the host never waits for room in the GPU's queue. Medians;
  // each path is first in every second pair of rounds.
  template <class Run>
  void take_turns(const Run& run, Row& row) {
    std::vector<double> times[2], hosts[2];
    for (int i = 0; i < 2 * options_.rounds; ++i) {
      const Path path = kPaths[static_cast<std::size_t>((i + i / 2) % 2)];
      (void)rank_.gather(0);
      const Nanoseconds begin = rank_.kernels->now();
      run(path);
      const Nanoseconds queued = rank_.kernels->now();
      complete();
      hosts[path].push_back(seconds(queued - begin) / options_.operations_a_round);
      times[path].push_back(seconds(rank_.kernels->now() - begin) / options_.operations_a_round);
    }
    for (const Path path : kPaths) {
      row.time[path] = mean(median(times[path]));
      row.host[path] = mean(median(hosts[path]));
    }
  }

  // The operations of a round.
  void queue(Path path) {
    if (path == Path::bare) {
      return need(queue_bare(*rank_.nccl, rank_.raw, operation_, options_.operations_a_round,
                             rank_.compute));
    }
    for (int i = 0; i < options_.operations_a_round; ++i) {
      last_ = need(rank_.comm->run(operation_, where_));
    }
  }
  void complete() {
    need(std::exchange(last_, {}).wait(rank_.compute));
    rank_.kernels->finish(rank_.compute);
  }

  BenchRank& rank_;
  const OverheadOptions& options_;
  const Where where_;
  Operation operation_;
  Work last_;
};

std::vector<std::string> cells_of(const Row& row, int ranks) {
  const double weir = bus_bandwidth(row.kind, row.size, row.time[Path::weir], ranks);
  const double bare = bus_bandwidth(row.kind, row.size, row.time[Path::bare], ranks);
  return {std::string(name_of(row.kind)),
          std::to_string(row.size.count),
          three_digits(row.time[Path::weir] * 1e6),
          three_digits(row.time[Path::bare] * 1e6),
          three_digits(weir),
          three_digits(bare),
          fmt::format("{:.3f}", bare > 0 ? weir / bare : 1),
          fmt::format("{:.0f}", row.host[Path::weir] * 1e9),
          fmt::format("{:.0f}", row.host[Path::bare] * 1e9),
          fmt::format("{:.0f}", (row.host[Path::weir] - row.host[Path::bare]) * 1e9),
          row.wrong ? std::to_string(*row.wrong) : "N/A"};
}

}  // namespace

std::vector<Bytes> sizes_of(const OverheadOptions& options) {
  std::vector<Bytes> sizes;
  for (Bytes size = options.least; size <= options.most; size = size * options.factor) {
    sizes.push_back(size);
    if (size > options.most / options.factor) break;
  }
  return sizes;
}

double bus_bandwidth(OperationKind kind, Bytes size, double seconds, int ranks) {
  const double bytes =
      static_cast<double>(size.count) * (kind == OperationKind::all_reduce ? 2 : 1);
  return seconds > 0 ? bytes / 1e9 / seconds * (ranks - 1) / ranks : 0;
}

Status queue_bare(Nccl& nccl, CommHandle comm, const Operation& operation, int times,
                  Stream stream) {
#ifdef WEIR_HAVE_NCCL
  if (const NcclLibrary* const library = library_of(nccl)) {
    auto* const on = static_cast<CUstream>(stream.handle);
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < times && result == ncclSuccess; ++i) {
      result = library->call(operation, comm_of(comm), on);
    }
    return library->check("bare NCCL", result, comm_of(comm));
  }
#endif
  Status queued;
  for (int i = 0; i < times && queued; ++i) queued = nccl.enqueue(comm, {&operation, 1}, stream);
  return queued;
}

ScenarioReport run_overhead(const OpenRanks& open, const OverheadOptions& options) {
  if (options.least > options.most || options.least == 0_B || options.factor < 2) {
    throw Exception(
        ErrorCode::invalid_argument,
        fmt::format("--minbytes {} --maxbytes {} --stepfactor {}: sizes begin at one byte or more, "
                    "grow by 2 or more, and end at the last",
                    options.least.count, options.most.count, options.factor));
  }
  ScenarioReport report{.name = "bench", .title = "what Weir adds to NCCL"};
  ScenarioTable table{
      .title =
          fmt::format("{} rounds of {} operations through each, in turns; {}, {}", options.rounds,
                      options.operations_a_round,
                      options.captured ? "a round is the launch of a graph" : "eager",
                      options.overlap ? "on the communication stream" : "on the caller's stream"),
      .columns = {"operation", "bytes", "us, Weir", "NCCL", "busbw, Weir", "NCCL", "ratio",
                  "host ns, Weir", "NCCL", "added", "#wrong"},
      .rows = {}};
  std::uint64_t wrong = 0;
  RanksOptions wanted;
  wanted.raw = true;
  need(report.run(open, wanted, [&](BenchRank& rank) {
    const Block send = allocate(*rank.heap, options.most, rank.compute);
    const Block receive = allocate(*rank.heap, options.most, rank.compute);
    OverheadOfRank overhead(rank, options);
    for (const OperationKind kind : options.kinds) {
      for (const Bytes size : sizes_of(options)) {
        const Row row = overhead.measure(kind, send.get(), receive.get(), size);
        if (rank.rank != 0) continue;
        table.rows.push_back(cells_of(row, rank.ranks));
        wrong += row.wrong.value_or(0);
      }
    }
  }));
  report.tables.push_back(std::move(table));
  report.aims.push_back(
      {"elements that are wrong", "", Bound::exactly, 0, static_cast<double>(wrong)});
  return report;
}

std::string overhead_text(const ScenarioReport& report) {
  std::string text = report.device + "\n";
  for (const ScenarioTable& table : report.tables) text += table_text(table);
  for (const std::string& problem : report.problems) text += "WRONG: " + problem + "\n";
  return text;
}

}  // namespace weir
