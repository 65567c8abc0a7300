// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/soak.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "tests/soak/block_worker.h"
#include "tests/soak/graph_worker.h"
#include "tests/soak/keeper.h"
#include "tests/soak/rank_worker.h"
#include "tests/soak/samples.h"
#include "tests/soak/visitor.h"
#include "weir/graph_pool.h"

namespace weir::soak {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Bytes kMemory = 4_GiB;  // of a simulated device
constexpr int kSharedStreams = 3;
constexpr int kRestEvery = 4;     // samples
constexpr int kSleepEvery = 7;    // samples
constexpr double kSamples = 200;  // at least, in a short run
constexpr double kWarm = 120;     // seconds

// A quantity of a sample, and what growth of it is no reason to fail. In the first minutes records
// that have a bound still fill up: placements, and up to 64 events of each stream in each pool.
struct Quantity {
  const char* name;
  double slack;
  double warm_up;  // besides, in a run that takes no time at all; none from kWarm on
  double share;
  double (*value)(const ProcessSample&, const Ledger&, std::size_t heaps);
  bool under_sanitizers = true;
};

template <class T>
double count(T value) {
  return static_cast<double>(value);
}

// While everybody is at work amounts go up and down; at rest nothing is live but what the allocator
// itself keeps.
constexpr double kInWork = 0.1;
constexpr double kAtRest = 0.01;
using P = ProcessSample;
using L = Ledger;
constexpr std::array kAtWork = {
    Quantity{"resident KiB", 4096, 16384, kInWork,
             [](const P& p, const L&, std::size_t) { return count(p.resident) / 1024; }, false},
    Quantity{"allocated KiB", 1024, 8192, kInWork,
             [](const P& p, const L&, std::size_t) { return count(p.allocated) / 1024; }},
    Quantity{"process mappings", 16, 16, kInWork,
             [](const P& p, const L&, std::size_t) { return count(p.maps); }, false},
    Quantity{"threads", 0.5, 0, 0,
             [](const P& p, const L&, std::size_t) { return count(p.threads); }},
    Quantity{"descriptors", 1.5, 0, 0,
             [](const P& p, const L&, std::size_t) { return count(p.descriptors); }},
    Quantity{"events", 16, 2000, kInWork,
             [](const P&, const L& l, std::size_t) { return count(l.events); }},
    // (What workers hold at a moment goes up and down for seconds; at rest each one counts.)
    Quantity{"device mappings", 16, 200, kInWork,
             [](const P&, const L& l, std::size_t) { return count(l.mappings); }},
    Quantity{"device pages", 16, 100, kInWork,
             [](const P&, const L& l, std::size_t) { return count(l.pages + l.segments); }},
};
constexpr std::array kResting = {
    Quantity{"resident KiB at rest", 1024, 16384, kAtRest,
             [](const P& p, const L&, std::size_t) { return count(p.resident) / 1024; }, false},
    Quantity{"allocated KiB at rest", 64, 8192, kAtRest,
             [](const P& p, const L&, std::size_t) { return count(p.allocated) / 1024; }},
    Quantity{"process mappings at rest", 8, 16, kAtRest,
             [](const P& p, const L&, std::size_t) { return count(p.maps); }, false},
    Quantity{"threads at rest", 0.5, 0, 0,
             [](const P& p, const L&, std::size_t) { return count(p.threads); }},
    Quantity{"descriptors at rest", 0.5, 0, 0,
             [](const P& p, const L&, std::size_t) { return count(p.descriptors); }},
    Quantity{"stream heaps at rest", 2, 16, 0,
             [](const P&, const L&, std::size_t heaps) { return count(heaps); }},
    Quantity{kEventsAtRest, 4, 2000, kAtRest,
             [](const P&, const L& l, std::size_t) { return count(l.events); }},
    Quantity{"device mappings at rest", 1, 0, 0,
             [](const P&, const L& l, std::size_t) { return count(l.mappings); }},
    Quantity{"device pages at rest", 1, 0, 0,
             [](const P&, const L& l, std::size_t) { return count(l.pages + l.segments); }},
    Quantity{"reservations at rest", 1, 8, 0,
             [](const P&, const L& l, std::size_t) { return count(l.reservations); }},
    Quantity{"graphs at rest", 1, 0, 0,
             [](const P&, const L& l, std::size_t) { return count(l.graphs + l.executables); }},
};

// For snapshots and recordings; goes with all that is in it.
class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "weir-soak-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no folder " + path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Session {
 public:
  Session(const Options& options, std::unique_ptr<test::Gpu> gpu, OpenGpu open)
      : options_(options),
        machine_(std::move(gpu)),
        world_(machine_,
               {.addresses = options.fixed_addresses ? Addresses::fixed : Addresses::any,
                .graph_scratch = options.lends_scratch ? GraphScratch::lend : GraphScratch::keep,
                .log = LogLevel::off},
               complaints_) {
    for (int i = 0; i < kSharedStreams; ++i) {
      if (Result<Stream> stream = machine_.gpu().new_stream(); stream.ok()) {
        world_.streams.push_back(*stream);
      }
    }
    warm_up();
    auto seed = [next = options.seed * 1000]() mutable { return next++; };
    world_.streams_per_minute = options.streams_per_minute;
    world_.fences = !options.omits_fences;
    const auto add = [&](std::unique_ptr<Worker> worker, Gate& gate, int pause_ms = 0) {
      members_.push_back(std::make_unique<Member>(std::move(worker), gate, pause_ms));
    };
    for (unsigned i = 0; i < options.threads; ++i) {
      add(std::make_unique<BlockWorker>(world_, "blocks" + std::to_string(i), seed()), world_.gate);
    }
    // Two: captures that begin and end at the same time.
    for (int i = 0; i < 2; ++i) {
      add(std::make_unique<GraphWorker>(world_, "graphs" + std::to_string(i), seed()), world_.gate);
    }
    if (options.simulated) {
      add(std::make_unique<RankWorker>(world_, "ranks", seed()), world_.gate, 1);
    }
    auto keeper = std::make_unique<Keeper>(world_, "keeper", seed(), folder_.path());
    keeper_ = keeper.get();
    add(std::move(keeper), world_.gate, 2);
    // It has nothing of this allocator's, and its visits are long.
    add(std::make_unique<Visitor>(world_, "visitor", seed(), std::move(open), folder_.path()),
        visits_, 1);
    for (const auto& [list, all] : {std::pair{std::span<const Quantity>(kAtWork), &at_work_},
                                    std::pair{std::span<const Quantity>(kResting), &at_rest_}}) {
      for (const Quantity& each : list) {
        all->push_back({.name = each.name, .share = each.share, .times = {}, .values = {}});
        // So that samples ask for no memory.
        const auto samples = static_cast<std::size_t>(options.seconds / interval(options)) + 2;
        all->back().times.reserve(samples);
        all->back().values.reserve(samples);
      }
    }
  }

  Outcome run() {
    const double interval = Session::interval(options_);
    std::vector<std::thread> threads;
    for (const auto& member : members_) {
      const std::vector<std::string>& idle = options_.without;
      if (std::find(idle.begin(), idle.end(), member->worker->name()) != idle.end()) continue;
      threads.emplace_back([this, &member] { work(*member); });
    }
    const Clock::time_point start = Clock::now();
    const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    Outcome outcome;
    while (passed() < options_.seconds && !complaints_.any() && signal() == 0) {
      const double next = interval * static_cast<double>(outcome.quiet + 1);
      if (next > passed())
        std::this_thread::sleep_for(std::chrono::duration<double>(next - passed()));
      world_.gate.close();
      ++outcome.quiet;
      if (options_.leaks_events) leak_events();
      look();
      if (outcome.quiet % kSleepEvery == 0) sleep_all();
      sample(kAtWork, at_work_, passed(), false);
      if (outcome.quiet % kRestEvery == 0) {
        visits_.close();
        rest();
        sample(kResting, at_rest_, passed(), true);
        ++outcome.rests;
        visits_.open();
      }
      world_.gate.open();
    }
    stop_ = true;
    for (std::thread& thread : threads) thread.join();
    outcome.seconds = passed();
    outcome.signal = signal();
    if (!complaints_.any()) rest();
    for (const auto& member : members_) {
      outcome.steps += member->steps;
      outcome.faults += member->worker->faults();
    }
    end();
    outcome.complaints = complaints_.all();
    outcome.wrong_bytes = wrong_bytes_;
    add_samples(kAtWork, at_work_, outcome);
    add_samples(kResting, at_rest_, outcome);
    return outcome;
  }

 private:
  int signal() const { return options_.signal == nullptr ? 0 : options_.signal->load(); }

  void add_samples(std::span<const Quantity> quantities, std::vector<Series>& all,
                   Outcome& outcome) {
    // A run that ended early had less time to warm up than was planned.
    const double cold = std::max(0.0, 1 - std::min(options_.seconds, outcome.seconds) / kWarm);
    for (std::size_t i = 0; i < quantities.size(); ++i) {
      all[i].slack = quantities[i].slack + quantities[i].warm_up * cold;
      if (is_sampled(quantities[i]) && !trend_of(all[i]).judged) ++outcome.unjudged;
      outcome.samples.push_back(std::move(all[i]));
    }
  }

  static bool is_sampled(const Quantity& quantity) {
    return quantity.under_sanitizers || !has_sanitizer();
  }

  // Of samples, in seconds.
  static double interval(const Options& options) {
    return std::clamp(options.seconds / kSamples, 0.04, 1.0);
  }

  // An allocator keeps a record of each pool that was open, or whose graphs ran, at the same time
  // as others, and of the most streams that used it. That most is a matter of chance, and rises for
  // hours, ever more seldom; so there are more records than that from the start. (A record for each
  // pool would be thousands.)
  void warm_up() {
    constexpr int kPools = 32, kStreams = 3;
    std::vector<Stream> streams;
    for (int i = 0; i < kStreams; ++i) {
      if (Result<Stream> stream = machine_.gpu().new_stream(); stream.ok()) {
        streams.push_back(*stream);
      }
    }
    std::deque<GraphPool> pools;
    for (int i = 0; i < kPools; ++i) {
      const Result<PoolBinding> binding =
          pools.emplace_back(world_.heap()).warm_up([](Stream) { return true; });
      if (!binding.ok()) return complain("warm-up: " + binding.error().message());
      for (const Stream stream : streams) {
        const Result<void*> block = world_.heap().allocate(1_MiB, stream);
        if (!block.ok()) return complain("warm-up: " + block.error().message());
        if (!world_.heap().deallocate(*block)) complain("warm-up: a block is not freed");
      }
    }
    if (!streams.empty()) fill_device(streams[0]);
    pools.clear();
    if (!world_.heap().trim(0_B, Trim::waits).ok()) complain("warm-up: memory stays");
    for (const Stream stream : streams) {
      if (!world_.heap().retire(stream)) complain("warm-up: a stream is not retired");
      if (!machine_.gpu().destroy_stream(stream)) complain("warm-up: a stream does not go");
    }
  }

  // The same of tiles, and of addresses that were used once: the device's memory in small runs, and
  // then in stitched rows of what every second of them leaves.
  void fill_device(Stream stream) {
    constexpr Bytes kRun = 512_KiB, kRow = 64_MiB;
    std::vector<void*> runs, rows;
    const auto fill = [&](Bytes bytes, std::vector<void*>& blocks) {
      while (blocks.size() * bytes.count < kMemory.count) {
        const Result<void*> block = world_.heap().allocate(bytes, stream);
        if (!block.ok()) break;
        blocks.push_back(*block);
      }
    };
    const auto free = [&](void* block) {
      if (!world_.heap().deallocate(block)) complain("warm-up: a block is not freed");
    };
    fill(kRun, runs);
    for (std::size_t i = 0; i < runs.size(); i += 2) free(runs[i]);
    fill(kRow, rows);
    for (std::size_t i = 1; i < runs.size(); i += 2) free(runs[i]);
    for (void* const row : rows) free(row);
  }

  struct Member {
    Member(std::unique_ptr<Worker> of, Gate& through, int pause)
        : worker(std::move(of)), gate(through), pause_ms(pause) {}
    std::unique_ptr<Worker> worker;
    Gate& gate;
    const int pause_ms;  // between steps
    std::uint64_t steps = 0;
  };

  void work(Member& member) {
    while (!stop_ && !complaints_.any()) {
      member.gate.enter();
      try {
        member.worker->step();
      } catch (const std::exception& error) {
        complaints_.add(member.worker->name(), std::string("an exception: ") + error.what());
      }
      ++member.steps;
      member.gate.leave();
      if (member.pause_ms > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(member.pause_ms));
      }
    }
  }

  void complain(const std::string& what) { complaints_.add("soak", what); }
  void expect_equal(const char* what, std::uint64_t is, std::uint64_t should) {
    if (is == should) return;
    complain(std::string(what) + " is " + std::to_string(is) + ", should be " +
             std::to_string(should));
  }

  std::vector<const Block*> blocks() const {
    std::vector<const Block*> all;
    for (const auto& member : members_) member->worker->list(all);
    for (const Block& block : world_.exchange.blocks()) all.push_back(&block);
    return all;
  }

  // With nobody at work: is the heap what the workers think it is, and the device what the heap
  // thinks?
  void look() {
    if (const Status finished = machine_.finish(); !finished) complain(finished.error().message());
    for (const std::string& broken : world_.allocator.validate()) complain(broken);
    const std::vector<const Block*> live = blocks();
    std::uint64_t requested = 0;
    for (const Block* const block : live) {
      requested += block->bytes.count;
      if (const std::string wrong = machine_.wrong_bytes(*block); !wrong.empty()) complain(wrong);
    }
    const Statistics is = world_.allocator.statistics(0);
    expect_equal("live_blocks", is.live_blocks.current, live.size());
    expect_equal("requested_bytes", is.requested_bytes.current, requested);
    const Ledger ledger = machine_.device().ledger();
    expect_equal("pages", is.pages.current,
                 static_cast<std::uint64_t>(ledger.pages + ledger.segments));
    if (const SimDevice* const sim = machine_.sim()) {
      expect_equal("reserved_bytes", is.reserved_bytes.current, sim->physical_bytes().count);
      const std::uint64_t mapped = is.mappings.current + segments_not_in_use();
      // Lent scratch is mapped for its graphs still, and counts once.
      const bool is_lent = options_.lends_scratch && mapped < sim->live().mappings;
      if (!is_lent) expect_equal("mappings", mapped, sim->live().mappings);
      look_at_pages(*sim, live);
    }
    look_at_findings();
  }

  // A segment of plain memory that the device refused to free waits for its next use: the heap
  // counts no mapping of it, and the device one.
  std::uint64_t segments_not_in_use() const {
    std::uint64_t segments = 0;
    for (const PageInfo& page : world_.allocator.snapshot(0).pages) {
      segments += page.memory == MemoryKind::plain && page.mappings == 0 ? 1 : 0;
    }
    return segments;
  }

  // No two live blocks have a byte of physical memory in common.
  void look_at_pages(const SimDevice& sim, const std::vector<const Block*>& live) {
    std::map<PhysicalHandle, std::map<std::uint64_t, std::uint64_t>> used;
    for (const Block* const block : live) {
      Bytes mapped;
      for (const Segment& part : sim.translate(Address::of(block->pointer), block->bytes)) {
        mapped += part.bytes;
        auto& ranges = used[part.handle];
        const std::uint64_t first = part.offset.count, end = first + part.bytes.count;
        const auto after = ranges.lower_bound(first);
        if ((after != ranges.end() && after->first < end) ||
            (after != ranges.begin() && std::prev(after)->second > first)) {
          complain("two live blocks have physical memory in common");
        }
        ranges[first] = end;
      }
      if (mapped != block->bytes) complain("a live block is not wholly mapped");
    }
  }

  void look_at_findings() {
    const Result<test::Findings> found = machine_.gpu().findings();
    if (!found.ok()) return complain(found.error().message());
    if (found->wrong == 0) return;
    wrong_bytes_ = true;
    complain(found->description);
  }

  void sleep_all() {
    keeper_->sleep_all();
    for (const auto& member : members_) member->worker->woke();
    look();
  }

  // Everything goes back: what is left is what the allocator keeps for itself.
  void rest() {
    for (const auto& member : members_) member->worker->drop_all();
    if (const Status finished = machine_.finish(); !finished) complain(finished.error().message());
    const Result<Bytes> trimmed = world_.heap().trim(0_B, Trim::waits);
    if (!trimmed.ok()) complain("trim at rest: " + trimmed.error().message());
    const Statistics is = world_.allocator.statistics(0);
    expect_equal("live_blocks at rest", is.live_blocks.current, 0);
    expect_equal("reserved_bytes at rest", is.reserved_bytes.current, 0);
    // Copies of an immutable tag's pages stay in host memory until the next sleep.
    sleep_all();
    const auto host_blocks = static_cast<std::uint64_t>(machine_.device().ledger().host_blocks);
    expect_equal("host blocks at rest", host_blocks, 0);
  }

  void sample(std::span<const Quantity> quantities, std::vector<Series>& all, double time,
              bool tidy) {
    const ProcessSample process = sample_process(tidy);
    const Ledger ledger = machine_.device().ledger();
    const std::size_t heaps = world_.allocator.statistics(0).heaps.size();
    for (std::size_t i = 0; i < quantities.size(); ++i) {
      if (!is_sampled(quantities[i])) continue;
      all[i].times.push_back(time);
      all[i].values.push_back(quantities[i].value(process, ledger, heaps));
    }
  }

  void leak_events() {
    for (int i = 0; i < 100; ++i) {
      if (!machine_.device().create_event().ok()) complain("no event to leak");
    }
  }

  // The workers go, and their streams.
  void end() {
    members_.clear();
    if (const Status finished = machine_.finish(); !finished) complain(finished.error().message());
    look_at_findings();
  }

  const Options options_;
  Complaints complaints_;
  Folder folder_;
  Machine machine_;
  World world_;
  Gate visits_;
  std::vector<std::unique_ptr<Member>> members_;
  Keeper* keeper_ = nullptr;
  bool wrong_bytes_ = false;
  std::atomic<bool> stop_ = false;
  std::vector<Series> at_work_, at_rest_;
};

Result<std::unique_ptr<test::Gpu>> open_gpu(const Options& options) {
  if (!options.simulated) return test::open_cuda_gpu(options.ordinal);
  return test::open_sim_gpu({.memory = kMemory, .track_contents = true});
}

}  // namespace

Result<Outcome> run(const Options& options) {
  steady_allocation();
  Result<std::unique_ptr<test::Gpu>> gpu = open_gpu(options);
  if (!gpu.ok()) return std::move(gpu).error();
  Session session(options, std::move(*gpu), [options] { return open_gpu(options); });
  return session.run();
}

}  // namespace weir::soak
