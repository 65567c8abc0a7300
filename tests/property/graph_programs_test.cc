// SPDX-License-Identifier: Apache-2.0
// Random programs over three streams, warmed up and captured in one pool: whatever they do, the
// graphs have the edges that they need. The checks are the device's, which knows nothing of pools:
// races, and runs of a graph in random orders. `--gtest_random_seed=N` runs seed N alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/sanitized.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir::test {
namespace {

struct Live {
  void* block;
  Bytes bytes;
  std::size_t owner, last;        // streams: that it was allocated for, that used it last
  std::set<std::size_t> named{};  // to record_stream()
};

class GraphProgram {
 public:
  // `fences`: does it fence what streams use that a block was not allocated for?
  // `sleeps`: does all memory sleep now and then, between captures and launches?
  GraphProgram(std::uint64_t seed, bool fences, const HeapOptions& options = {},
               bool sleeps = false, const GraphPoolOptions& of_pool = {})
      : random_(seed),
        fences_(fences),
        sleeps_(sleeps),
        of_pool_(of_pool),
        heap_(device_, options) {}

  void run() {
    auto owned = std::make_unique<GraphPool>(heap_, of_pool_);
    GraphPool& pool = *owned;
    pool_ = owned.get();
    std::vector<Graph> graphs;
    for (int round = 0; round < 3; ++round) {
      if (limit_ > 0_B) leave_idle_pages();
      if (chance(2)) warm_up(pool);
      if (chance(4)) lower_limit();
      if (sleeps_ && chance(2)) sleep(graphs);
      capture(pool, graphs);
      if (sleeps_ && chance(2)) sleep(graphs);
      for (Graph& graph : graphs) {
        if (lends_) borrow();
        launch(graph);
        if (sleeps_ && chance(4)) sleep(graphs);
      }
      use_named();
      EXPECT_THAT(heap_.validate(), testing::IsEmpty());
      if (lends_ && chance(4)) borrow();
      if (!chance(4)) continue;
      drop_all();  // as below: the next graph may not use them
      graphs.clear();
    }
    drop_all();
    EXPECT_EQ(pool.statistics().graphs, graphs.size());
    EXPECT_EQ(pool.statistics().live_blocks, 0u);
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
    while (sleeps_ && !borrowed_.empty()) give_back();
    if (sleeps_ && chance(2)) {
      ASSERT_TRUE(heap_.tags().sleep(how_to_sleep()).ok());
    }
    graphs.clear();
    owned.reset();
    ASSERT_TRUE(heap_.tags().wake().ok());
    while (!borrowed_.empty()) give_back();
    ASSERT_TRUE(heap_.trim(0_B, Trim::waits).ok());
    // Forgets copies of pools that are gone; of the device heap's own pool, as it sleeps again.
    if (lends_ && sleeps_) {
      ASSERT_TRUE(heap_.tags().sleep().ok());
    }
    ASSERT_TRUE(heap_.tags().wake().ok());
    EXPECT_EQ(heap_.tags().residue().host, 0_B);
    EXPECT_EQ(device_.live().handles, 0u);
    EXPECT_EQ(device_.live().graphs, 0u);
    EXPECT_EQ(device_.live().executables, 0u);
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
    device_.finish();
  }

  std::uint64_t races() const { return device_.race_count(); }
  std::uint64_t wrong_reads() const { return wrong_reads_; }
  std::uint64_t edges_added() const { return device_.calls(DeviceCall::add_capture_dependencies); }
  std::uint64_t deferred() const { return deferred_; }
  std::uint64_t sleeps() const { return slept_; }
  std::uint64_t lent() const { return lent_; }
  std::uint64_t given_up() const { return given_up_; }

 private:
  bool has_few_mappings() const {
    return heap_.options().most_mappings < HeapOptions().most_mappings;
  }
  std::uint64_t below(std::uint64_t most) { return random_() % most; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }

  // In the device heap, for the pool to take.
  void leave_idle_pages() {
    const Result<void*> block = heap_.allocate(limit_, streams_[0]);
    ASSERT_TRUE(block.ok()) << block.error().message();
    ASSERT_TRUE(heap_.deallocate(*block).ok());
  }

  // Below what is held, with work going on: once that is over, the next free leaves nothing idle.
  void lower_limit() {
    const Result<void*> block = heap_.allocate(1_MiB, streams_[0]);
    if (!block) return;
    heap_.set_limit(1_B);
    device_.finish();
    ASSERT_TRUE(heap_.deallocate(*block).ok());
    const Bytes held = device_.physical_bytes();
    ASSERT_TRUE(heap_.trim().ok());
    // (At fixed addresses what is lent of a graph that is gone goes one call later.)
    if (!lends_ || heap_.options().addresses == Addresses::any) {
      EXPECT_EQ(device_.physical_bytes(), held) << "idle memory stayed beyond the limit";
    }
    heap_.set_limit(0_B);
  }

  void warm_up(GraphPool& pool) {
    Result<PoolBinding> binding = pool.warm_up([](Stream) { return true; });
    ASSERT_TRUE(binding.ok()) << binding.error().message();
    forked_ = 3;
    for (std::size_t i = 1; i < streams_.size(); ++i) order(0, i);
    steps();
    if (!has_few_mappings() && limit_ == 0_B && chance(4)) go_back();
    // A graph may not use what a warm-up allocated and the program frees while the graph lives.
    drop_all();
  }

  // To blocks that are freed, and whose memory was others' since, but did not go: it is free.
  void go_back() {
    const std::vector<PlacedBlock> state = pool_->blocks();
    drop_all();
    steps();
    drop_all();
    const Status restored = pool_->restore(state);
    ASSERT_TRUE(restored.ok()) << restored.error().message();
    for (const PlacedBlock& block : state) {
      ASSERT_TRUE(heap_.deallocate(block.address.pointer()).ok());
    }
  }

  void capture(GraphPool& pool, std::vector<Graph>& graphs) {
    // What was used eagerly is used next by a graph, launched after all of it.
    Result<CaptureScope> capture = CaptureScope::begin(pool, streams_[0]);
    ASSERT_TRUE(capture.ok()) << capture.error().message();
    for (Live& each : live_) each.last = 0;
    forked_ = 1;
    steps();
    deferred_ += pool.statistics().deferred;
    for (std::size_t i = 1; i < forked_; ++i) order(i, 0);
    for (Live& each : live_) each.last = 0;
    if (chance(16)) {
      const CaptureScope thrown_away = *std::move(capture);
      return;
    }
    const bool makes_none = chance(16);
    if (makes_none) device_.fail(DeviceCall::instantiate, 1);
    Result<Graph> graph = capture->end();
    ASSERT_EQ(graph.ok(), !makes_none) << (graph.ok() ? "" : graph.error().message());
    if (makes_none) return;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      wrong_reads_ += device_.replay_in_random_order(graph->graph(), seed);
    }
    graphs.push_back(*std::move(graph));
  }

  // After and before everything else, as the program has to see to.
  void launch(Graph& graph) {
    for (std::size_t i = 1; i < streams_.size(); ++i) order(i, 0);
    wrote_ = true;
    const Status launched = graph.launch(streams_[0]);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    for (std::size_t i = 1; i < streams_.size(); ++i) order(0, i);
  }

  // Eager blocks, on streams that the program orders with no launch. What lives keeps its bytes.
  void borrow() {
    const std::vector<Bytes> sizes{900'000_B, 3_MiB, 9_MiB, 24_MiB};
    for (std::uint64_t steps = 1 + below(6); steps > 0; --steps) {
      if (!borrowed_.empty() && chance(2)) {
        give_back();
        continue;
      }
      const Bytes bytes = sizes[below(sizes.size())];
      const Stream stream = eager_[below(eager_.size())];
      const Result<void*> block = heap_.allocate(bytes, stream);
      ASSERT_TRUE(block.ok()) << block.error().message();
      const Nanoseconds duration{static_cast<std::int64_t>(1'000 + below(200'000))};
      ASSERT_TRUE(device_.launch(stream, Writes(*block, bytes), duration).ok());
      wrote_ = true;
      borrowed_.push_back({*block, bytes, contents(*block, bytes)});
      lent_ += pool_->statistics().lent_bytes > 0_B ? 1 : 0;
    }
  }
  void give_back() {
    const std::size_t at = below(borrowed_.size());
    const auto& [block, bytes, written] = borrowed_[at];
    EXPECT_TRUE(contents(block, bytes) == written) << "a launch wrote to an eager block";
    ASSERT_TRUE(heap_.deallocate(block).ok());
    borrowed_.erase(borrowed_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  // Every block has its bytes afterwards, and no graph is launched meanwhile.
  void sleep(std::vector<Graph>& graphs) {
    struct Before {
      const void* block;
      Bytes bytes;
      std::vector<SimContent> contents;
    };
    std::vector<Before> before;
    for (const Live& each : live_) {
      before.push_back({each.block, each.bytes, contents(each.block, each.bytes)});
    }
    ASSERT_TRUE(heap_.tags().sleep(how_to_sleep()).ok());
    ++slept_;
    EXPECT_EQ(device_.physical_bytes(), 0_B);
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
    for (Graph& graph : graphs) {
      const Status launched = graph.launch(streams_[0]);
      EXPECT_TRUE(!launched.ok() && launched.error().code() == ErrorCode::asleep);
    }
    if (!live_.empty() && chance(2)) {
      drop(live_.size() - 1);
      before.pop_back();
    }
    ASSERT_TRUE(heap_.tags().wake().ok());
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
    for (const Before& each : before) {
      EXPECT_TRUE(contents(each.block, each.bytes) == each.contents);
    }
  }

  // Copies of an immutable tag stay where they are, unless the program says otherwise.
  SleepOptions how_to_sleep() {
    if (std::exchange(wrote_, false)) (void)heap_.tags().declare_changed(kDefaultTag);
    SleepOptions how;
    how.contents = chance(2) ? SleepContents::immutable : SleepContents::backup;
    return how;
  }

  std::vector<SimContent> contents(const void* block, Bytes bytes) {
    return device_.contents(Address::of(block), bytes);
  }

  void steps() {
    const std::uint64_t count = 20 + below(40);
    for (std::uint64_t i = 0; i < count; ++i) {
      switch (below(8)) {
        case 0:
          if (forked_ < streams_.size()) order(0, forked_++);
          break;
        case 1:
          if (const std::size_t from = below(forked_), to = below(forked_); from != to) {
            order(from, to);
          }
          break;
        case 2:
        case 3:
          allocate();
          break;
        case 4:
        case 5:
          if (!live_.empty()) drop(below(live_.size()));
          break;
        case 6:
          if (chance(4)) misuse();
          [[fallthrough]];
        default:
          if (!live_.empty()) use(live_[below(live_.size())]);
      }
    }
  }

  void allocate() {
    if (live_.size() >= 12) return drop(below(live_.size()));
    constexpr std::array<std::uint64_t, 5> kSizes{700, 40'000, 900'000, 3'000'000, 9'000'000};
    const Bytes bytes{kSizes[below(kSizes.size())]};
    const std::size_t stream = below(forked_);
    const bool grows = !chance(8);
    const auto reserved = [&] {  // what is lent comes back
      const GraphPoolStatistics now = pool_->statistics();
      return now.reserved_bytes + now.lent_bytes;
    };
    const Bytes held = reserved();
    const std::uint64_t unmaps = device_.calls(DeviceCall::unmap);
    const Result<void*> block =
        grows ? heap_.allocate(bytes, streams_[stream]) : pool_->take_free(bytes, streams_[stream]);
    given_up_ += device_.calls(DeviceCall::unmap) - unmaps;
    const Bytes holds = reserved();
    EXPECT_TRUE(grows || holds <= held) << "take_free let the pool grow";
    if (limit_ > 0_B) {
      EXPECT_LE(holds, limit_);
    }
    if (!block && (has_few_mappings() || limit_ > 0_B || !grows)) {
      ASSERT_EQ(block.error().code(), ErrorCode::out_of_memory) << block.error().message();
      return;
    }
    ASSERT_TRUE(block.ok()) << block.error().message();
    live_.push_back({*block, bytes, stream, stream});
    touch(stream, Writes(*block, bytes));
  }

  // A read or a write, on any stream, after the use before.
  void use(Live& live) {
    const std::size_t user = below(forked_);
    if (live.last >= forked_) return;
    if (live.last != user) order(live.last, user);
    live.last = user;
    touch(user, chance(2) ? Reads(live.block, live.bytes) : Writes(live.block, live.bytes));
    if (!fences_ || user == live.owner || live.named.contains(user)) return;
    const bool names = chance(3);
    const Status told = names ? heap_.record_stream(live.block, streams_[user])
                              : heap_.fence(live.block, streams_[user]);
    ASSERT_TRUE(told.ok()) << told.error().message();
    if (names) live.named.insert(user);
  }

  // One of the blocks is none: nothing is fenced.
  void misuse() {
    if (live_.empty()) return;
    void* const block = live_.front().block;
    void* const blocks[] = {block, static_cast<char*>(block) + 1};
    const std::uint64_t fences = heap_.statistics().fences;
    const Status fenced = heap_.fence(blocks, streams_[0]);
    EXPECT_TRUE(!fenced.ok() && fenced.error().code() == ErrorCode::unknown_pointer);
    EXPECT_EQ(heap_.statistics().fences, fences);
  }

  // Whoever was named, in the capture or before it, may use a block until it is deallocated.
  void use_named() {
    for (Live& each : live_) {
      if (each.named.empty() || !chance(2)) continue;
      const std::size_t user = *each.named.begin();
      if (each.last != user) order(each.last, user);
      each.last = user;
      touch(user, Writes(each.block, each.bytes));
    }
  }

  void drop(std::size_t index) {
    const Status freed = heap_.deallocate(live_[index].block);
    ASSERT_TRUE(freed.ok()) << freed.error().message();
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void drop_all() {
    while (!live_.empty()) drop(0);
  }

  void touch(std::size_t stream, const Access& access) {
    const Nanoseconds duration{static_cast<std::int64_t>(1'000 + below(200'000))};
    wrote_ = true;
    const Status launched = device_.launch(streams_[stream], access, duration);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
  }
  void order(std::size_t earlier, std::size_t later) {
    const EventHandle event = *device_.create_event();
    ASSERT_TRUE(device_.record(event, streams_[earlier]).ok());
    ASSERT_TRUE(device_.wait(streams_[later], event).ok());
    ASSERT_TRUE(device_.destroy_event(event).ok());
  }

  std::mt19937_64 random_;
  const bool fences_, sleeps_;
  const GraphPoolOptions of_pool_;
  const Bytes limit_ = of_pool_.limit;
  GraphPool* pool_ = nullptr;
  SimDevice device_{{.track_contents = true}};
  const std::array<Stream, 3> streams_{device_.new_stream(), device_.new_stream(),
                                       device_.new_stream()};
  const std::array<Stream, 2> eager_{device_.new_stream(), device_.new_stream()};
  DeviceHeap heap_;
  const bool lends_ = heap_.options().graph_scratch == GraphScratch::lend;
  std::vector<Live> live_;
  struct Borrowed {
    void* block;
    Bytes bytes;
    std::vector<SimContent> written;
  };
  std::vector<Borrowed> borrowed_;
  bool wrote_ = false;      // since memory slept last
  std::size_t forked_ = 1;  // streams that take part, from the first
  std::uint64_t wrong_reads_ = 0, deferred_ = 0, slept_ = 0, lent_ = 0, given_up_ = 0;
};

// What programs came to, together.
struct Totals {
  std::uint64_t edges = 0, deferred = 0, sleeps = 0, lent = 0;
  std::uint64_t given_up = 0;  // mappings, for requests
};

struct Setting {
  HeapOptions heap = {};
  bool sleeps = false;
  GraphPoolOptions pool = {};
};

// The programs of seeds 1 to `last`, each with the setting that `of_seed` says, are right.
template <class OfSeed>
Totals run_all(std::uint64_t last, const OfSeed& of_seed) {
  const auto only = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed));
  last = some_if_sanitized(last);
  Totals totals;
  for (std::uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : last); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Setting setting = of_seed(seed);
    GraphProgram program(seed, true, setting.heap, setting.sleeps, setting.pool);
    program.run();
    EXPECT_EQ(program.races(), 0u);
    EXPECT_EQ(program.wrong_reads(), 0u);
    if (testing::Test::HasFailure()) break;
    totals.edges += program.edges_added();
    totals.deferred += program.deferred();
    totals.sleeps += program.sleeps();
    totals.lent += program.lent();
    totals.given_up += program.given_up();
  }
  return totals;
}

// Else the programs don't reach what they are for.
void expect_enough(std::uint64_t count) {
  if (GTEST_FLAG_GET(random_seed) == 0) {
    EXPECT_GT(count, some_if_sanitized(300u));
  }
}

TEST(GraphPrograms, HaveTheEdgesThatTheyNeed) {
  const Totals totals = run_all(300, [](std::uint64_t) { return Setting(); });
  expect_enough(totals.edges);
  expect_enough(totals.deferred);
}

TEST(GraphPrograms, HaveTheEdgesThatTheyNeedInPlainMemory) {
  (void)run_all(200, [](std::uint64_t seed) {
    const MemoryKind of_heap = seed % 2 == 0 ? MemoryKind::plain : MemoryKind::pages;
    return Setting{.heap = {.memory = of_heap}, .pool = {.memory = MemoryKind::plain}};
  });
}

// What is given up for want of mappings is no graph's.
TEST(GraphPrograms, HaveTheEdgesThatTheyNeedWhereMappingsAreFew) {
  const Totals totals = run_all(
      1000, [](std::uint64_t seed) { return Setting{.heap = {.most_mappings = 8 + seed % 24}}; });
  expect_enough(totals.given_up);
}

TEST(GraphPrograms, KeepToTheLimitsOfTheirPools) {
  (void)run_all(200, [](std::uint64_t seed) {
    return Setting{.sleeps = seed % 3 == 0, .pool = {.limit = 2_MiB * (5 + seed % 20)}};
  });
}

TEST(GraphPrograms, SleepAndWakeBetweenCapturesAndLaunches) {
  expect_enough(run_all(150, [](std::uint64_t) { return Setting{.sleeps = true}; }).sleeps);
}

TEST(GraphPrograms, LendTheirScratchBetweenLaunches) {
  const Totals totals = run_all(3000, [](std::uint64_t seed) {
    return Setting{.heap = {.trust = seed % 2 == 0 ? Trust::told : Trust::context,
                            .addresses = seed % 5 == 0 ? Addresses::fixed : Addresses::any,
                            .graph_scratch = GraphScratch::lend},
                   .sleeps = seed % 3 == 0};
  });
  expect_enough(totals.lent);
}

TEST(GraphPrograms, WithoutTheirFencesAreSeenToRace) {
  std::uint64_t racing = 0, wrong = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    GraphProgram program(seed, false);
    program.run();
    racing += program.races() > 0 ? 1 : 0;
    wrong += program.wrong_reads() > 0 ? 1 : 0;
  }
  EXPECT_GT(racing, 0u);
  EXPECT_GT(wrong, 0u);
}

}  // namespace
}  // namespace weir::test
