// SPDX-License-Identifier: Apache-2.0
#include "comm/bench.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "comm/bare_nccl.h"
#include "weir/comm/registered_pool.h"

namespace weir {
namespace {

double seconds(Nanoseconds time) { return static_cast<double>(time.count) / 1e9; }

// --compare: rounds, and groups in one through each.
constexpr int kRounds = 31, kRound = 50;

// What operations send from and receive into: blocks of the heap, or of a registered pool.
class BenchMemory {
 public:
  explicit BenchMemory(BenchRank& rank) : rank_(rank) {}
  ~BenchMemory() { (void)free(); }
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;

  // Twice `most`. Registered: each a segment, with both communicators.
  Status allocate(Bytes most, bool registered) {
    const Bytes size = registered ? round_up(most, rank_.device.granularity()) : most;
    if (registered) {
      Result<RegisteredPool> pool =
          RegisteredPool::create(rank_.comm, {.segment = size, .segments = 2});
      if (!pool) return std::move(pool).error();
      pool_.emplace(*std::move(pool));
    }
    for (void*& place : places_) {
      const Result<void*> block =
          pool_ ? pool_->allocate(size, rank_.compute) : rank_.heap.allocate(size, rank_.compute);
      if (!block) return block.error();
      place = *block;
      if (!registered || rank_.raw.value == 0) continue;
      const auto record = rank_.nccl.register_range(rank_.raw, Address::of(place), size);
      if (!record) return record.error();
      raw_.push_back(*record);
    }
    return {};
  }

  std::byte* send() const { return static_cast<std::byte*>(places_[0]); }
  std::byte* receive() const { return static_cast<std::byte*>(places_[1]); }

  // Nothing uses it any more. Its error, which the end of the scope would not tell.
  Status free() {
    for (const RegistrationHandle record : std::exchange(raw_, {})) {
      if (Status gone = rank_.nccl.deregister(rank_.raw, record); !gone) return gone;
    }
    for (void*& place : places_) {
      void* const block = std::exchange(place, nullptr);
      Status freed = pool_ ? pool_->deallocate(block) : rank_.heap.deallocate(block);
      if (!freed) return freed;
    }
    return pool_ ? pool_->close() : Status();
  }

 private:
  BenchRank& rank_;
  void* places_[2] = {};
  std::optional<RegisteredPool> pool_;
  std::vector<RegistrationHandle> raw_;  // with BenchRank::raw
};

// What is being measured: groups that are queued in turn, through Weir or NCCL alone.
struct Point {
  BenchOperation operation;
  BenchShape shape;
  bool in_place = false;
  bool raw = false;
  std::vector<OperationGroup> groups = {};
};

// One rank's measurements, in its thread.
class BenchOfRank {
 public:
  BenchOfRank(BenchRank& rank, const BenchOptions& options, const BenchMemory& memory)
      : rank_(rank),
        options_(options),
        memory_(memory),
        where_(options.overlap ? overlapped(rank.compute) : rank.compute) {}

  // Each power of two, again and again until the GPU has left its idle clocks.
  Status warm_up(BenchOperation operation) {
    BenchOptions doubling = options_;
    doubling.factor = 2;
    doubling.least = std::max(doubling.least, 1_B);
    const Nanoseconds begin = rank_.kernels.now();
    while (true) {
      for (const Bytes size : sizes_of(doubling)) {
        Point point{operation, shape_of(operation, size, rank_.ranks)};
        for (const bool raw : {false, true}) {
          if (raw ? options_.path == BenchPath::weir : options_.path == BenchPath::raw) continue;
          point.raw = raw;
          point.groups = {once(point)};
          if (Status done = run(point, 1); !done) return done;
        }
      }
      const auto all = rank_.gather(seconds(rank_.kernels.now() - begin));
      if (!all) return all.error();
      if (all->front() >= seconds(rank_.kernels.warm_up_time())) return {};
    }
  }

  Result<BenchRow> row(BenchOperation operation, Bytes size) {
    BenchRow row{.operation = operation, .shape = shape_of(operation, size, rank_.ranks)};
    for (const bool in_place : {false, true}) {
      Result<Place> measured = place({operation, row.shape, in_place});
      if (!measured) return std::move(measured).error();
      (in_place ? row.in_place : row.out_of_place) = *measured;
    }
    return row;
  }

 private:
  Result<Place> place(Point point) {
    for (int i = 0; i < std::min(options_.iterations, kRound); ++i) {
      point.groups.emplace_back();
      for (int j = 0; j < options_.aggregated; ++j) {
        const OperationGroup some = once(point, std::uint64_t(i) * options_.aggregated + j);
        point.groups.back().insert(point.groups.back().end(), some.begin(), some.end());
      }
    }
    Place measured;
    point.raw = options_.path == BenchPath::raw;
    Result<Timed> timed = time(point);
    if (!timed) return std::move(timed).error();
    measured.timed = *timed;
    for (int i = 0; i < options_.checks; ++i) {
      Result<std::optional<std::uint64_t>> wrong = check_once(point, i);
      if (!wrong) return std::move(wrong).error();
      if (!*wrong || !is_checked(point.operation, point.in_place)) continue;
      measured.wrong = measured.wrong.value_or(0) + **wrong;
    }
    if (options_.path != BenchPath::both) return measured;
    point.raw = true;
    timed = time(point);
    if (!timed) return std::move(timed).error();
    measured.raw = *timed;
    if (options_.graph_launches > 0) return measured;
    if (Status compared = compare_hosts(point, measured); !compared) {
      return std::move(compared).error();
    }
    return measured;
  }

  // The host's time through each, in alternating rounds of few operations: so few that the host
  // never waits for room in the GPU's queue. Medians; each is first in every second round.
  Status compare_hosts(Point& point, Place& place) {
    std::vector<double> rounds[2];
    for (int i = 0; i < 2 * kRounds; ++i) {
      point.raw = (i + i / 2) % 2 == 1;
      if (auto all = rank_.gather(0); !all) return all.error();
      const Nanoseconds begin = rank_.kernels.now();
      if (Status queued = queue(point, kRound); !queued) return queued;
      const Nanoseconds queued = rank_.kernels.now();
      if (Status done = complete(); !done) return done;
      rounds[point.raw ? 1 : 0].push_back(seconds(queued - begin) / kRound / options_.aggregated);
    }
    for (const bool raw : {false, true}) {
      std::vector<double>& all = rounds[raw ? 1 : 0];
      std::nth_element(all.begin(), all.begin() + kRounds / 2, all.end());
      const Result<double> mean = over_ranks(all[kRounds / 2]);
      if (!mean) return mean.error();
      (raw ? *place.raw : place.timed).host_seconds = *mean;
    }
    return {};
  }

  OperationGroup once(const Point& point, std::uint64_t number = 0) const {
    const Bytes shift = shift_of(point.shape, options_.most, number);
    return operations_of(point.operation, point.shape, point.in_place, rank_.rank, rank_.ranks,
                         memory_.send() + shift.count, memory_.receive() + shift.count);
  }

  // So many groups.
  Status queue(const Point& point, int times) {
    if (point.raw) {
      return queue_bare(rank_.nccl, rank_.raw, point.groups, times, rank_.compute);
    }
    for (int i = 0; i < times; ++i) {
      const OperationGroup& group = point.groups[static_cast<std::size_t>(i) % point.groups.size()];
      Result<Work> work = rank_.comm.run(group, where_);
      if (!work) return std::move(work).error();
      last_ = *std::move(work);
    }
    return {};
  }
  Status complete() {
    const Work last = std::exchange(last_, {});
    if (!last.captured()) {
      if (Status waits = last.wait(rank_.compute); !waits) return waits;
    }
    return rank_.kernels.finish(rank_.compute);
  }
  Status run(const Point& point, int times) {
    if (Status queued = queue(point, times); !queued) return queued;
    return complete();
  }

  Result<double> over_ranks(double mine) {
    const auto all = rank_.gather(mine);
    if (!all) return all.error();
    return std::accumulate(all->begin(), all->end(), 0.0) / static_cast<double>(all->size());
  }

  Result<Timed> time(const Point& point) {
    // As nccl-tests: one that connects what is missing.
    if (Status done = run(point, 1); !done) return std::move(done).error();
    Result<Timed> timed = options_.graph_launches == 0 ? time_eager(point)
                          : point.raw                  ? time_raw_graph(point)
                                                       : time_graph(point);
    if (!timed) return timed;
    for (double* const each : {&timed->seconds, &timed->host_seconds}) {
      const Result<double> mean = over_ranks(*each);
      if (!mean) return mean.error();
      *each = *mean;
    }
    timed->bandwidth =
        bandwidth_of(point.operation, point.shape.count, timed->seconds, rank_.ranks);
    return timed;
  }

  // Queues all by `queue_all`, then waits; they run each operation `launches` times.
  Result<Timed> time_queued(int launches, const std::function<Status()>& queue_all) {
    if (auto all = rank_.gather(0); !all) return std::move(all).error();
    const Nanoseconds begin = rank_.kernels.now();
    if (Status all = queue_all(); !all) return std::move(all).error();
    const Nanoseconds queued = rank_.kernels.now();
    if (Status done = complete(); !done) return std::move(done).error();
    const double all = static_cast<double>(options_.iterations) * options_.aggregated * launches;
    return Timed{.seconds = seconds(rank_.kernels.now() - begin) / all,
                 .host_seconds = seconds(queued - begin) / all,
                 .bandwidth = {}};
  }
  Result<Timed> time_eager(const Point& point) {
    return time_queued(1, [&] { return queue(point, options_.iterations); });
  }
  Result<Timed> time_launches(const std::function<Status()>& launch) {
    return time_queued(options_.graph_launches, [&]() -> Status {
      for (int i = 0; i < options_.graph_launches; ++i) {
        if (Status launched = launch(); !launched) return launched;
      }
      return {};
    });
  }

  Result<Graph> capture(GraphPool& pool, const Point& point, int times) {
    Result<Graph> graph =
        capture_graph(rank_, pool, CaptureMode::thread_local_, [&] { return queue(point, times); });
    last_ = Work();
    return graph;
  }
  Result<Timed> time_graph(const Point& point) {
    GraphPool pool(rank_.heap);
    Result<Graph> graph = capture(pool, point, options_.iterations);
    if (!graph) return std::move(graph).error();
    return time_launches([&] { return rank_.comm.launch(*graph, rank_.compute); });
  }
  // The program's own capture, as without Weir.
  Result<Timed> time_raw_graph(const Point& point) {
    Device& device = rank_.device;
    if (Status begun = device.begin_capture(rank_.compute, CaptureMode::thread_local_); !begun) {
      return std::move(begun).error();
    }
    Status all = queue(point, options_.iterations);
    Result<GraphHandle> graph = device.end_capture(rank_.compute);
    if (!all) return std::move(all).error();
    if (!graph) return std::move(graph).error();
    Result<ExecutableHandle> executable = device.instantiate(*graph);
    if (!executable) return std::move(executable).error();
    Result<Timed> timed =
        time_launches([&] { return device.launch_graph(*executable, rank_.compute); });
    (void)device.destroy_executable(*executable);
    (void)device.destroy_graph(*graph);
    return timed;
  }

  Result<std::optional<std::uint64_t>> check_once(const Point& point, int round) {
    Point checked{point.operation, point.shape, point.in_place, point.raw, {once(point)}};
    const OperationGroup& operations = checked.groups.front();
    const auto seed = static_cast<std::uint64_t>(round) + 1;
    if (Status filled = rank_.kernels.fill(rank_.compute, operations, seed); !filled) {
      return std::move(filled).error();
    }
    if (Status ran = run_as_measured(checked); !ran) return std::move(ran).error();
    auto wrong = rank_.kernels.count_wrong(rank_.compute, operations, seed);
    if (!wrong) return wrong;
    auto all = rank_.gather(static_cast<double>(wrong->value_or(0)));
    if (!all) return std::move(all).error();
    if (!*wrong) return wrong;
    const double sum = std::accumulate(all->begin(), all->end(), 0.0);
    return std::optional(static_cast<std::uint64_t>(sum));
  }
  // Once; captured, where that is what is measured.
  Status run_as_measured(const Point& point) {
    if (options_.graph_launches == 0 || point.raw) return run(point, 1);
    GraphPool pool(rank_.heap);
    Result<Graph> graph = capture(pool, point, 1);
    if (!graph) return std::move(graph).error();
    if (Status launched = rank_.comm.launch(*graph, rank_.compute); !launched) return launched;
    return complete();
  }

  BenchRank& rank_;
  const BenchOptions& options_;
  const BenchMemory& memory_;
  const Where where_;
  Work last_;
};

Status run_rank(BenchRank& rank, BenchReport& report, const BenchWatcher& watcher) {
  const BenchOptions& options = report.options;
  BenchMemory memory(rank);
  Status taken = memory.allocate(std::max(options.most, 1_B), options.registered);
  if (!taken) return taken;
  BenchOfRank bench(rank, options, memory);
  for (const BenchOperation operation : options.operations) {
    if (Status warm = bench.warm_up(operation); !warm) return warm;
    for (const Bytes size : sizes_of(options)) {
      Result<BenchRow> row = bench.row(operation, size);
      if (!row) return std::move(row).error();
      if (rank.rank == 0) {
        report.rows.push_back(*std::move(row));
        Status seen = watcher ? watcher(report) : Status();
        if (!seen) return seen;
      }
      // Where rank 0 can't show it, the others learn so here, and don't wait for it in the next.
      if (auto all = rank.gather(0); !all) return all.error();
    }
  }
  return memory.free();
}

}  // namespace

Result<BenchReport> run_bench(const OpenRanks& open, const BenchOptions& options,
                              const BenchWatcher& watcher) {
  if (Status good = check(options); !good) return std::move(good).error();
  RanksOptions wanted;
  wanted.raw = options.path != BenchPath::weir;
  Result<std::unique_ptr<Ranks>> ranks = open(wanted);
  if (!ranks) return std::move(ranks).error();
  BenchReport report;
  report.options = options;
  report.ranks = (*ranks)->ranks();
  report.device = (*ranks)->describe();
  report.is_rank_0 = (*ranks)->has_rank_0();
  if (report.is_rank_0 && watcher) {
    if (Status seen = watcher(report); !seen) return std::move(seen).error();
  }
  Status ran = (*ranks)->on_all([&](BenchRank& rank) { return run_rank(rank, report, watcher); });
  if (!ran) return std::move(ran).error();
  report.problems = (*ranks)->close();
  return report;
}

}  // namespace weir
