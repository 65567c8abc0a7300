// SPDX-License-Identifier: Apache-2.0
#include "comm/overhead.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "comm/bare_nccl.h"
#include "replay/units.h"
#include "weir/comm/registered_pool.h"

namespace weir {
namespace {

constexpr std::pair<std::string_view, OperationKind> kMeasured[] = {
    {"all_reduce", OperationKind::all_reduce},
    {"all_gather", OperationKind::all_gather},
    {"reduce_scatter", OperationKind::reduce_scatter}};

double seconds(Nanoseconds time) { return static_cast<double>(time.count) / 1e9; }

double median(std::vector<double>& all) {
  const auto middle = all.begin() + std::ssize(all) / 2;
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

// What operations send from and receive into: blocks of the heap, or of a registered pool.
class Buffers {
 public:
  explicit Buffers(BenchRank& rank) : rank_(rank) {}
  ~Buffers() { (void)free(); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Registered: each a segment, with both communicators.
  Status allocate(Bytes size, bool registered) {
    if (registered) {
      size = round_up(size, rank_.device.granularity());
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
      if (!registered) continue;
      const auto record = rank_.nccl.register_range(rank_.raw, Address::of(place), size);
      if (!record) return record.error();
      raw_.push_back(*record);
    }
    return {};
  }
  void* send() const { return places_[0]; }
  void* receive() const { return places_[1]; }

  // Nothing uses them any more. The error, which the end of the scope would not tell.
  Status free() {
    for (const RegistrationHandle record : std::exchange(raw_, {})) {
      if (Status gone = rank_.nccl.deregister(rank_.raw, record); !gone) return gone;
    }
    for (void*& place : places_) {
      void* const block = std::exchange(place, nullptr);
      Status freed = pool_ ? pool_->deallocate(block) : rank_.heap.deallocate(block);
      if (!freed) return freed;
    }
    Status closed = pool_ ? pool_->close() : Status();
    if (closed) pool_.reset();  // a closed pool takes no more calls
    return closed;
  }

 private:
  BenchRank& rank_;
  void* places_[2] = {};
  std::optional<RegisteredPool> pool_;
  std::vector<RegistrationHandle> raw_;  // with BenchRank::raw
};

enum Path { weir, bare };
constexpr std::array kPaths = {Path::weir, Path::bare};

struct Row {
  OperationKind kind;
  Bytes size;
  double time[2] = {}, host[2] = {};   // of one operation, in seconds; by Path
  std::optional<std::uint64_t> wrong;  // elements; nothing: this device moves no data
};

// One rank's measurements, in its thread.
class OverheadOfRank {
 public:
  OverheadOfRank(BenchRank& rank, const OverheadOptions& options, const Buffers& buffers)
      : rank_(rank),
        options_(options),
        buffers_(buffers),
        where_(options.overlap ? overlapped(rank.compute) : rank.compute) {}

  Result<Row> measure(OperationKind kind, Bytes size) {
    group_ = {{.kind = kind,
               .send = buffers_.send(),
               .receive = buffers_.receive(),
               .count = count_of(kind, size, rank_.ranks),
               .type = DataType::float32}};
    Row row{.kind = kind, .size = size, .wrong = {}};
    if (Status checked = check(row); !checked) return std::move(checked).error();
    GraphPool pool(rank_.heap);
    Graph graphs[2];  // by Path
    for (const Path path : kPaths) {
      if (!options_.captured) break;
      Result<Graph> captured =
          capture_graph(rank_, pool, CaptureMode::thread_local_, [&] { return queue(path); });
      if (!captured) return std::move(captured).error();
      graphs[path] = *std::move(captured);
    }
    if (options_.captured) last_ = Work();
    const auto run = [&](Path path) {
      if (!options_.captured) return queue(path);
      return path == Path::weir
                 ? rank_.comm.launch(graphs[path], rank_.compute)
                 : rank_.device.launch_graph(graphs[path].executable(), rank_.compute);
    };
    if (Status warm = warm_up(run); !warm) return std::move(warm).error();
    if (Status done = take_turns(run, row); !done) return std::move(done).error();
    return row;
  }

 private:
  // One operation through Weir, and whether its result is right.
  Status check(Row& row) {
    if (Status filled = rank_.kernels.fill(rank_.compute, group_, 1); !filled) return filled;
    Result<Work> work = rank_.comm.run(group_, where_);
    if (!work) return std::move(work).error();
    last_ = *std::move(work);
    if (Status done = complete(); !done) return done;
    const auto wrong = rank_.kernels.count_wrong(rank_.compute, group_, 1);
    if (!wrong) return wrong.error();
    const auto all = rank_.gather(static_cast<double>(wrong->value_or(0)));
    if (!all) return all.error();
    if (*wrong)
      row.wrong = static_cast<std::uint64_t>(std::accumulate(all->begin(), all->end(), 0.));
    return {};
  }

  // Until the GPU has left its idle clocks.
  template <class Run>
  Status warm_up(const Run& run) {
    const Nanoseconds begin = rank_.kernels.now();
    while (true) {
      for (const Path path : kPaths) {
        if (Status ran = run(path); !ran) return ran;
        if (Status done = complete(); !done) return done;
      }
      const auto all = rank_.gather(seconds(rank_.kernels.now() - begin));
      if (!all) return all.error();
      if (all->front() >= seconds(rank_.kernels.warm_up_time())) return {};
    }
  }

  // In rounds of few operations, so that the host never waits for room in the GPU's queue. Medians;
  // each path is first in every second pair of rounds.
  template <class Run>
  Status take_turns(const Run& run, Row& row) {
    std::vector<double> times[2], hosts[2];
    for (int i = 0; i < 2 * options_.rounds; ++i) {
      const Path path = kPaths[static_cast<std::size_t>((i + i / 2) % 2)];
      if (auto all = rank_.gather(0); !all) return all.error();
      const Nanoseconds begin = rank_.kernels.now();
      if (Status queued = run(path); !queued) return queued;
      const Nanoseconds queued = rank_.kernels.now();
      if (Status done = complete(); !done) return done;
      hosts[path].push_back(seconds(queued - begin) / options_.operations_a_round);
      times[path].push_back(seconds(rank_.kernels.now() - begin) / options_.operations_a_round);
    }
    for (const Path path : kPaths) {
      for (const auto& [mean, mine] : {std::pair{&row.time[path], median(times[path])},
                                       std::pair{&row.host[path], median(hosts[path])}}) {
        const auto all = rank_.gather(mine);
        if (!all) return all.error();
        *mean = std::accumulate(all->begin(), all->end(), 0.) / static_cast<double>(all->size());
      }
    }
    return {};
  }

  // The operations of a round.
  Status queue(Path path) {
    if (path == Path::bare) {
      return queue_bare(rank_.nccl, rank_.raw, {&group_, 1}, options_.operations_a_round,
                        rank_.compute);
    }
    for (int i = 0; i < options_.operations_a_round; ++i) {
      Result<Work> work = rank_.comm.run(group_, where_);
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

  BenchRank& rank_;
  const OverheadOptions& options_;
  const Buffers& buffers_;
  const Where where_;
  OperationGroup group_;
  Work last_;
};

std::string title_of(const OverheadOptions& options) {
  std::string title = fmt::format(
      "{} rounds of {} operations through each, in turns; {}, {}", options.rounds,
      options.operations_a_round, options.captured ? "a round is the launch of a graph" : "eager",
      options.overlap ? "on the communication stream" : "on the caller's stream");
  return options.registered ? title + "; buffers registered with NCCL" : title;
}

std::vector<std::string> cells_of(const Row& row, int ranks) {
  const auto bus = [&](Path path) {
    return bus_bandwidth(row.kind, count_of(row.kind, row.size, ranks), row.time[path], ranks);
  };
  std::string_view name;
  for (const auto& [known, kind] : kMeasured) name = kind == row.kind ? known : name;
  const double ratio = bus(Path::bare) > 0 ? bus(Path::weir) / bus(Path::bare) : 1;
  return {std::string(name),
          std::to_string(row.size.count),
          three_digits(row.time[Path::weir] * 1e6),
          three_digits(row.time[Path::bare] * 1e6),
          three_digits(bus(Path::weir)),
          three_digits(bus(Path::bare)),
          fmt::format("{:.3f}", ratio),
          fmt::format("{:.0f}", row.host[Path::weir] * 1e9),
          fmt::format("{:.0f}", row.host[Path::bare] * 1e9),
          fmt::format("{:.0f}", (row.host[Path::weir] - row.host[Path::bare]) * 1e9),
          row.wrong ? std::to_string(*row.wrong) : "N/A"};
}

}  // namespace

Result<std::vector<OperationKind>> parse_operations(const std::string& text) {
  std::vector<OperationKind> chosen;
  std::string known;
  for (const auto& [name, kind] : kMeasured) {
    if (text == "all" || text == name) chosen.push_back(kind);
    known += std::string(name) + ", ";
  }
  if (!chosen.empty()) return chosen;
  return Error(ErrorCode::invalid_argument, "--operation '" + text + "': one of " + known +
                                                "all; nccl-tests measures the others");
}

std::vector<Bytes> sizes_of(const OverheadOptions& options) {
  std::vector<Bytes> sizes;
  for (Bytes size = options.least; size <= options.most; size = size * options.factor) {
    sizes.push_back(size);
    if (size > options.most / options.factor) break;
  }
  return sizes;
}

std::uint64_t count_of(OperationKind kind, Bytes size, int ranks) {
  constexpr std::uint64_t kElement = 4, kPart = 16;
  if (!Operation{.kind = kind}.has_parts()) return size.count / kElement;
  return size.count / static_cast<std::uint64_t>(ranks) / kPart * (kPart / kElement);
}

double bus_bandwidth(OperationKind kind, std::uint64_t count, double seconds, int ranks) {
  const bool has_parts = Operation{.kind = kind}.has_parts();
  const double bytes = 4. * static_cast<double>(count) * (has_parts ? ranks : 1);
  const double factor = (has_parts ? 1. : 2.) * (ranks - 1) / ranks;
  return seconds > 0 ? bytes / 1e9 / seconds * factor : 0;
}

Result<ScenarioReport> run_overhead(const OpenRanks& open, const OverheadOptions& options) {
  if (options.least > options.most || options.least == 0_B || options.factor < 2) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("--minbytes {} --maxbytes {} --stepfactor {}: sizes begin at one byte "
                             "or more, grow by 2 or more, and end at the last",
                             options.least.count, options.most.count, options.factor));
  }
  ScenarioReport report{.name = "bench", .title = "what Weir adds to NCCL"};
  ScenarioTable table{.title = title_of(options),
                      .columns = {"operation", "bytes", "us, Weir", "NCCL", "busbw, Weir", "NCCL",
                                  "ratio", "host ns, Weir", "NCCL", "added", "#wrong"},
                      .rows = {}};
  std::uint64_t wrong = 0;
  RanksOptions wanted;
  wanted.raw = true;
  const Result<Status> ran = report.run(open, wanted, [&](BenchRank& rank) -> Status {
    Buffers buffers(rank);
    if (Status had = buffers.allocate(options.most, options.registered); !had) return had;
    OverheadOfRank overhead(rank, options, buffers);
    for (const OperationKind kind : options.operations) {
      for (const Bytes size : sizes_of(options)) {
        const Result<Row> row = overhead.measure(kind, size);
        if (!row) return row.error();
        if (rank.rank != 0) continue;
        table.rows.push_back(cells_of(*row, rank.ranks));
        wrong += row->wrong.value_or(0);
      }
    }
    return buffers.free();
  });
  if (!ran) return ran.error();
  if (!*ran) return ran->error();
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
