#include "comm/bench.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "comm/bench_memory.h"

namespace weir {
namespace {

double seconds(Nanoseconds time) { return static_cast<double>(time.count) / 1e9; }

double over_ranks(Average average, const std::vector<double>& values) {
  switch (average) {
    case Average::rank_0:
      return values.front();
    case Average::least:
      return *std::min_element(values.begin(), values.end());
    case Average::most:
      return *std::max_element(values.begin(), values.end());
    case Average::mean:
      break;
  }
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// --compare: turns of each, and iterations in one.
constexpr int kHostTurns = 31, kHostTurn = 50;

// What is being measured.
struct Point {
  BenchCase of;
  BenchShape shape;
  bool in_place = false;
  bool raw = false;  // NCCL alone
};

// One rank's measurements, in its thread.
class BenchOfRank {
 public:
  BenchOfRank(BenchRank& rank, const BenchOptions& options, const BenchMemory& memory)
      : rank_(rank),
        options_(options),
        memory_(memory),
        collectives_(options.overlap ? rank.comm.overlapped() : rank.comm) {}

  // Again and again, until the GPU has left its idle clocks.
  Status warm_up(const BenchCase& of) {
    const Nanoseconds begin = rank_.kernels.now();
    while (true) {
      if (Status warm = warm_up_once(of); !warm) return warm;
      const auto all = rank_.gather(seconds(rank_.kernels.now() - begin));
      if (!all) return all.error();
      if (options_.warm_ups == 0 || all->front() >= seconds(rank_.kernels.warm_up_time()))
        return {};
    }
  }

  Result<BenchRow> row(const BenchCase& of, Bytes size) {
    BenchRow row{.of = of,
                 .shape = shape_of(of.operation, size, of.type, rank_.ranks),
                 .out_of_place = {},
                 .in_place = {}};
    for (const bool in_place : {false, true}) {
      Result<Place> measured = place({of, row.shape, in_place});
      if (!measured) return std::move(measured).error();
      (in_place ? row.in_place : row.out_of_place) = *measured;
    }
    return row;
  }

 private:
  Status warm_up_once(const BenchCase& of) {
    BenchOptions doubling = options_;
    doubling.factor = 2;
    doubling.least = std::max(doubling.least, 1_B);
    for (const Bytes size : sizes_of(doubling)) {
      for (const bool raw : {false, true}) {
        if (raw ? options_.path == BenchPath::weir : options_.path == BenchPath::raw) continue;
        const Point point{of, shape_of(of.operation, size, of.type, rank_.ranks), false, raw};
        for (int i = 0; i < options_.warm_ups; ++i) {
          if (Status queued = queue(point, once(point, 0)); !queued) return queued;
        }
        if (Status done = complete(point); !done) return done;
      }
    }
    return {};
  }

  Result<Place> place(Point point) {
    Place measured;
    point.raw = options_.path == BenchPath::raw;
    Result<Timed> timed = time(point);
    if (!timed) return std::move(timed).error();
    measured.timed = *timed;
    for (int i = 0; i < options_.checks; ++i) {
      Result<std::optional<std::uint64_t>> wrong = check_once(point, i);
      if (!wrong) return std::move(wrong).error();
      if (!*wrong || !is_checked(point.of.operation, point.in_place)) continue;
      measured.wrong = measured.wrong.value_or(0) + **wrong;
    }
    if (options_.path == BenchPath::both) {
      point.raw = true;
      timed = time(point);
      if (!timed) return std::move(timed).error();
      measured.raw = *timed;
      if (options_.graph_launches == 0) {
        if (Status compared = compare_hosts(point, measured); !compared)
          return std::move(compared).error();
      }
    }
    return measured;
  }

  // The host's time through each, in turns of a few operations: so few that the host never waits
  // for room in the GPU's queue. Medians.
  Status compare_hosts(Point point, Place& place) {
    std::array<std::vector<double>, 2> turns;
    for (int turn = 0; turn < kHostTurns; ++turn) {
      for (const bool raw : {false, true}) {
        point.raw = raw;
        if (auto all = rank_.gather(0); !all) return all.error();
        const Nanoseconds begin = rank_.kernels.now();
        for (int i = 0; i < kHostTurn; ++i) {
          if (Status queued = queue(point, group(point, i)); !queued) return queued;
        }
        const Nanoseconds queued = rank_.kernels.now();
        if (Status done = complete(point); !done) return done;
        turns.at(raw ? 1 : 0).push_back(seconds(queued - begin) / kHostTurn / options_.aggregated);
      }
    }
    for (const bool raw : {false, true}) {
      std::vector<double>& all = turns.at(raw ? 1 : 0);
      std::nth_element(all.begin(), all.begin() + kHostTurns / 2, all.end());
      auto ranks = rank_.gather(all[kHostTurns / 2]);
      if (!ranks) return ranks.error();
      (raw ? *place.raw : place.timed).host_seconds = over_ranks(options_.average, *ranks);
    }
    return {};
  }

  // The operations of one group: those of iteration `iteration`.
  std::vector<Operation> group(const Point& point, int iteration) const {
    std::vector<Operation> all;
    for (int i = 0; i < options_.aggregated; ++i) {
      const auto number =
          static_cast<std::uint64_t>(iteration) * static_cast<std::uint64_t>(options_.aggregated) +
          static_cast<std::uint64_t>(i);
      const std::vector<Operation> some = once(point, number);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  std::vector<Operation> once(const Point& point, std::uint64_t number) const {
    const Bytes shift = shift_of(point.shape, options_.most, number);
    return operations_of(point.of, point.shape, point.in_place, rank_.rank, rank_.ranks,
                         memory_.send() + shift.count, memory_.receive() + shift.count);
  }

  Status queue(const Point& point, const std::vector<Operation>& operations) {
    if (point.raw) return queue_raw(operations);
    Result<Work> work = collectives_.run(operations, rank_.compute);
    if (!work) return std::move(work).error();
    last_ = *std::move(work);
    return {};
  }
  Status queue_raw(const std::vector<Operation>& operations) {
    const bool grouped = operations.size() > 1;
    Status first;
    if (grouped) first = rank_.nccl.group_start();
    if (!first) return first;
    for (const Operation& operation : operations) {
      first = rank_.nccl.enqueue(rank_.raw, operation, rank_.compute);
      if (!first) break;
    }
    if (!grouped) return first;
    Status ended = rank_.nccl.group_end();
    return first ? std::move(ended) : std::move(first);
  }
  Status complete(const Point& point) {
    if (!point.raw && !last_.captured()) {
      if (Status waits = last_.wait(rank_.compute); !waits) return waits;
    }
    last_ = Work();
    return rank_.kernels.finish(rank_.compute);
  }

  Result<Timed> time(const Point& point) {
    // As nccl-tests: one that connects what is missing.
    if (Status queued = queue(point, once(point, 0)); !queued) return std::move(queued).error();
    if (Status done = complete(point); !done) return std::move(done).error();
    if (auto all = rank_.gather(0); !all) return std::move(all).error();
    Result<Timed> timed = options_.graph_launches == 0 ? time_eager(point)
                          : point.raw                  ? time_raw_graph(point)
                                                       : time_graph(point);
    if (!timed) return timed;
    for (double* const each : {&timed->seconds, &timed->host_seconds}) {
      auto all = rank_.gather(*each);
      if (!all) return std::move(all).error();
      *each = over_ranks(options_.average, *all);
    }
    timed->bandwidth = bandwidth_of(point.of.operation, point.shape.count, point.of.type,
                                    timed->seconds, rank_.ranks);
    return timed;
  }

  Status queue_all(const Point& point) {
    for (int i = 0; i < options_.iterations; ++i) {
      if (Status queued = queue(point, group(point, i)); !queued) return queued;
    }
    return {};
  }
  double operations() const {
    return static_cast<double>(options_.iterations) * options_.aggregated;
  }
  // From `begin` to `queued` the host queued, then waited; `launches` times all operations.
  Timed timed(Nanoseconds begin, Nanoseconds queued, int launches) const {
    const double all = operations() * launches;
    return {.seconds = seconds(rank_.kernels.now() - begin) / all,
            .host_seconds = seconds(queued - begin) / all,
            .bandwidth = {}};
  }

  Result<Timed> time_eager(const Point& point) {
    const Nanoseconds begin = rank_.kernels.now();
    if (Status all = queue_all(point); !all) return std::move(all).error();
    const Nanoseconds queued = rank_.kernels.now();
    if (Status done = complete(point); !done) return std::move(done).error();
    return timed(begin, queued, 1);
  }

  Result<Timed> time_graph(const Point& point) {
    GraphPool pool(rank_.heap);
    Result<Graph> graph =
        capture_graph(rank_, pool, CaptureMode::thread_local_, [&] { return queue_all(point); });
    last_ = Work();
    if (!graph) return std::move(graph).error();
    return time_launches(point, [&] { return rank_.comm.launch(*graph, rank_.compute); });
  }

  // The program's own capture, as without Weir.
  Result<Timed> time_raw_graph(const Point& point) {
    Device& device = rank_.device;
    if (Status begun = device.begin_capture(rank_.compute, CaptureMode::thread_local_); !begun) {
      return std::move(begun).error();
    }
    Status all = queue_all(point);
    Result<GraphHandle> graph = device.end_capture(rank_.compute);
    if (!all) return std::move(all).error();
    if (!graph) return std::move(graph).error();
    Result<ExecutableHandle> executable = device.instantiate(*graph);
    if (!executable) return std::move(executable).error();
    Result<Timed> timed =
        time_launches(point, [&] { return device.launch_graph(*executable, rank_.compute); });
    (void)device.destroy_executable(*executable);
    (void)device.destroy_graph(*graph);
    return timed;
  }

  Result<Timed> time_launches(const Point& point, const std::function<Status()>& launch) {
    if (auto all = rank_.gather(0); !all) return std::move(all).error();
    const Nanoseconds begin = rank_.kernels.now();
    for (int i = 0; i < options_.graph_launches; ++i) {
      if (Status launched = launch(); !launched) return std::move(launched).error();
    }
    const Nanoseconds queued = rank_.kernels.now();
    if (Status done = complete(point); !done) return std::move(done).error();
    return timed(begin, queued, options_.graph_launches);
  }

  Result<std::optional<std::uint64_t>> check_once(const Point& point, int round) {
    const std::vector<Operation> operations = once(point, 0);
    const auto seed = static_cast<std::uint64_t>(round) + 1;
    if (Status filled = rank_.kernels.fill(rank_.compute, operations, seed); !filled) {
      return std::move(filled).error();
    }
    if (Status ran = run_once(point, operations); !ran) return std::move(ran).error();
    auto wrong = rank_.kernels.count_wrong(rank_.compute, operations, seed);
    if (!wrong) return wrong;
    auto all = rank_.gather(static_cast<double>(wrong->value_or(0)));
    if (!all) return std::move(all).error();
    if (!*wrong) return wrong;
    const double sum = std::accumulate(all->begin(), all->end(), 0.0);
    return std::optional(static_cast<std::uint64_t>(sum));
  }
  // Captured, where that is what is measured.
  Status run_once(const Point& point, const std::vector<Operation>& operations) {
    if (options_.graph_launches == 0 || point.raw) {
      if (Status queued = queue(point, operations); !queued) return queued;
      return complete(point);
    }
    GraphPool pool(rank_.heap);
    Result<Graph> graph = capture_graph(rank_, pool, CaptureMode::thread_local_,
                                        [&] { return queue(point, operations); });
    last_ = Work();
    if (!graph) return std::move(graph).error();
    if (Status launched = rank_.comm.launch(*graph, rank_.compute); !launched) return launched;
    return complete(point);
  }

  BenchRank& rank_;
  const BenchOptions& options_;
  const BenchMemory& memory_;
  Collectives collectives_;
  Work last_;
};

// Those of one operation: what does not reduce has one "reduction", and so with roots.
std::vector<BenchCase> cases_of(BenchOperation operation, const BenchOptions& options, int ranks) {
  std::vector<Reduction> reductions = options.reductions;
  if (!reduces(operation)) reductions.resize(1);
  std::vector<int> roots{options.root};
  if (!has_root(operation)) roots = {0};
  if (has_root(operation) && options.root < 0) {
    roots.resize(static_cast<std::size_t>(ranks));
    std::iota(roots.begin(), roots.end(), 0);
  }
  std::vector<BenchCase> cases;
  for (const DataType type : options.types) {
    for (const Reduction& reduction : reductions) {
      for (const int root : roots) cases.push_back({operation, type, reduction, root});
    }
  }
  return cases;
}

Status run_rank(BenchRank& rank, BenchReport& report, const BenchWatcher& watcher) {
  const BenchOptions& options = report.options;
  const Bytes most = std::max(options.most, 1_B);
  Result<BenchMemory> memory = BenchMemory::allocate(rank, most, options.registered);
  if (!memory) return std::move(memory).error();
  BenchOfRank bench(rank, options, *memory);
  for (const BenchOperation operation : options.operations) {
    for (const BenchCase& each : cases_of(operation, options, rank.ranks)) {
      if (Status warm = bench.warm_up(each); !warm) return warm;
      for (const Bytes size : sizes_of(options)) {
        Result<BenchRow> row = bench.row(each, size);
        if (!row) return std::move(row).error();
        if (rank.rank == 0) {
          report.add(*row);
          Status seen = watcher.row ? watcher.row(report, *row) : Status();
          if (!seen) return seen;
        }
        // Where rank 0 can't show it, the others learn so here, and don't wait for it in the next.
        if (auto all = rank.gather(0); !all) return all.error();
      }
    }
  }
  return memory->free();
}

}  // namespace

void BenchReport::add(const BenchRow& row) {
  Sum& sum = sums_[row.of.operation];
  for (const Place* const place : {&row.out_of_place, &row.in_place}) {
    sum.bus += place->timed.bandwidth.bus;
    ++sum.places;
    wrong_ += place->wrong.value_or(0);
  }
  if (options.keep_rows) rows.push_back(row);
}

double BenchReport::average_bus_bandwidth(BenchOperation operation) const {
  const auto sum = sums_.find(operation);
  return sum == sums_.end() ? 0 : sum->second.bus / static_cast<double>(sum->second.places);
}

Result<BenchReport> run_bench(const OpenRanks& open, const BenchOptions& options,
                              const BenchWatcher& watcher) {
  RanksOptions wanted;
  wanted.raw = options.path != BenchPath::weir;
  Result<std::unique_ptr<Ranks>> ranks = open(wanted);
  if (!ranks) return std::move(ranks).error();
  if (Status good = check(options, (*ranks)->ranks()); !good) return std::move(good).error();
  BenchReport report;
  report.options = options;
  report.ranks = (*ranks)->ranks();
  report.device = (*ranks)->describe();
  report.is_rank_0 = (*ranks)->has_rank_0();
  if (report.is_rank_0 && watcher.begin) {
    if (Status seen = watcher.begin(report); !seen) return std::move(seen).error();
  }
  Status ran = (*ranks)->on_all([&](BenchRank& rank) { return run_rank(rank, report, watcher); });
  if (!ran) return std::move(ran).error();
  report.problems = (*ranks)->close();
  return report;
}

}  // namespace weir
