// SPDX-License-Identifier: Apache-2.0
// `weir comm bench`: what a collective costs through Weir, and through bare NCCL beside it.
// (nccl-tests measures NCCL.)
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "comm/scenario.h"
#include "replay/units.h"
#ifdef WEIR_HAVE_NCCL
#include "comm/nccl/library.h"
#endif

namespace weir {
namespace {

enum Path { weir, bare };
constexpr std::array kPaths = {Path::weir, Path::bare};

double median(std::vector<double>& all) {
  const auto middle = all.begin() + std::ssize(all) / 2;
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

// Queues the operation so many times on NCCL as a program without Weir calls it: by the pointers of
// the loaded library, with no virtual call, exchange of the thread's capture mode, or lock between.
// (On simulated ranks there is no library: it calls `nccl`.) The GPU of `comm` is the thread's
// current one.
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

// An element at least, or, where the larger buffer has parts, 16 bytes for each rank.
Bytes whole_size(OperationKind kind, Bytes size, int ranks) {
  const auto piece = static_cast<std::uint64_t>(Operation{kind}.has_parts() ? 16 * ranks : 4);
  return Bytes{std::max<std::uint64_t>(size.count / piece, 1) * piece};
}

// What one rank measures of one operation, in its thread. `size`: a whole_size().
class Measurement {
 public:
  Measurement(BenchRank& rank, const OverheadOptions& options, OperationKind kind, Bytes size)
      : rank_(rank),
        options_(options),
        where_(options.overlap ? overlapped(rank.compute) : rank.compute),
        size_(size),
        send_(allocate(*rank.heap, size_, rank.compute)),
        receive_(allocate(*rank.heap, size_, rank.compute)),
        operation_{
            .kind = kind, .send = send_.get(), .receive = receive_.get(), .count = size_.count / 4},
        pool_(*rank.heap) {
    if (operation_.has_parts()) operation_.count /= static_cast<std::uint64_t>(rank.ranks);
  }

  // Adds a row to the table, and what it found to `wrong`, if this device moves data.
  void run(ScenarioTable& table, std::optional<std::uint64_t>& wrong) {
    const std::optional<std::uint64_t> found = count_wrong();
    for (const Path path : kPaths) {
      if (!options_.captured) break;
      graphs_[path] = capture_graph(rank_, pool_, CaptureMode::thread_local_, [&] { queue(path); });
    }
    if (options_.captured) last_ = Work();
    warm_up();
    take_turns();
    const auto bandwidth = [&](Path path) {
      return bus_bandwidth(operation_.kind, size_, time_[path] / 1e9, rank_.ranks);
    };
    if (rank_.rank != 0) return;
    if (found) wrong = wrong.value_or(0) + *found;
    table.rows.push_back(
        {std::string(name_of(operation_.kind)), std::to_string(size_.count),
         three_digits(time_[weir] / 1e3), three_digits(time_[bare] / 1e3),
         three_digits(bandwidth(weir)), three_digits(bandwidth(bare)),
         fmt::format("{:.3f}", bandwidth(bare) > 0 ? bandwidth(weir) / bandwidth(bare) : 1),
         fmt::format("{:.0f}", host_[weir]), fmt::format("{:.0f}", host_[bare]),
         fmt::format("{:.0f}", host_[weir] - host_[bare]), found ? std::to_string(*found) : "N/A"});
  }

 private:
  // Of one operation through Weir, on all ranks. Nothing: this device moves no data.
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
  void warm_up() {
    const Nanoseconds begin = rank_.device->now();
    do {
      for (const Path path : kPaths) {
        queue_round(path);
        complete();
      }
    } while (rank_.gather(rank_.device->now() - begin).front() < rank_.kernels->warm_up_time());
  }

  // In rounds of few operations, so that the host never waits for room in the GPU's queue. Medians;
  // each path is first in every second pair of rounds.
  void take_turns() {
    std::vector<double> times[2], hosts[2];
    const auto of_one = [&](Nanoseconds begin) {
      return static_cast<double>((rank_.device->now() - begin).count) / options_.operations_a_round;
    };
    for (int i = 0; i < 2 * options_.rounds; ++i) {
      const Path path = kPaths[static_cast<std::size_t>((i + i / 2) % 2)];
      (void)rank_.gather(0);
      const Nanoseconds begin = rank_.device->now();
      queue_round(path);
      hosts[path].push_back(of_one(begin));
      complete();
      times[path].push_back(of_one(begin));
    }
    const auto mean = [&](std::vector<double>& of_rank) {
      const std::vector<double> all = rank_.gather(median(of_rank));
      return std::accumulate(all.begin(), all.end(), 0.) / rank_.ranks;
    };
    for (const Path path : kPaths) time_[path] = mean(times[path]), host_[path] = mean(hosts[path]);
  }

  void queue_round(Path path) {
    if (!options_.captured) return queue(path);
    need(path == Path::weir
             ? rank_.comm->launch(graphs_[path], rank_.compute)
             : rank_.device->launch_graph(graphs_[path].executable(), rank_.compute));
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
  const Bytes size_;
  const Block send_, receive_;
  Operation operation_;
  Work last_;
  GraphPool pool_;
  Graph graphs_[2];                     // of a round; by Path
  double time_[2] = {}, host_[2] = {};  // of one operation, in nanoseconds; by Path
};

}  // namespace

double bus_bandwidth(OperationKind kind, Bytes size, double seconds, int ranks) {
  const double bytes =
      static_cast<double>(size.count) * (kind == OperationKind::all_reduce ? 2 : 1);
  return seconds > 0 ? bytes / 1e9 / seconds * (ranks - 1) / ranks : 0;
}

ScenarioReport run_overhead(const OpenRanks& open, const OverheadOptions& options) {
  if (options.least > options.most || options.least == 0_B) {
    throw Exception(ErrorCode::invalid_argument,
                    fmt::format("--minbytes {} --maxbytes {}: sizes begin at one byte or more, and "
                                "end at the last",
                                options.least.count, options.most.count));
  }
  ScenarioReport report{.name = "bench", .title = "what Weir adds to NCCL"};
  ScenarioTable table{
      .title =
          fmt::format("{} rounds of {} operations through each, in turns; {}, {}", options.rounds,
                      options.operations_a_round,
                      options.captured ? "a round is the launch of a graph" : "eager",
                      options.overlap ? "on the communication stream" : "on the caller's stream"),
      .columns = {"operation", "bytes", "us, Weir", "NCCL", "busbw, Weir", "NCCL", "ratio",
                  "host ns, Weir", "NCCL", "added", "#wrong"}};
  std::optional<std::uint64_t> wrong;
  need(report.run(open, {.raw = true}, [&](BenchRank& rank) {
    for (const OperationKind kind : options.kinds) {
      for (Bytes last, size = options.least;; size = size * options.factor) {
        const Bytes whole = whole_size(kind, size, rank.ranks);
        if (whole != last) Measurement(rank, options, kind, whole).run(table, wrong);
        last = whole;
        if (size > options.most / options.factor) break;
      }
    }
  }));
  report.tables.push_back(std::move(table));
  const std::uint64_t problems = wrong.value_or(report.problems.size());
  report.aims.push_back({wrong ? "elements that are wrong" : "races and disagreements", "",
                         Bound::exactly, 0, static_cast<double>(problems)});
  return report;
}

}  // namespace weir
