// SPDX-License-Identifier: Apache-2.0
// Many threads on many streams. What each thread does is random; what must hold is not.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "observe/statistics_fold.h"
#include "tests/property/oracle.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir::test {
namespace {

struct Held {
  void* pointer = nullptr;
  Bytes bytes;
  Stream owner;
};

// The addresses that are given out now, by what the threads see.
class LiveRanges {
 public:
  // False when `held` overlaps another.
  bool insert(const Held& held) {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t first = Address::of(held.pointer).value, end = first + held.bytes.count;
    const auto after = ranges_.upper_bound(first);
    if (after != ranges_.end() && after->first < end) return false;
    if (after != ranges_.begin() && std::prev(after)->second > first) return false;
    ranges_[first] = end;
    return true;
  }
  void erase(const Held& held) {
    const std::scoped_lock lock(mutex_);
    ranges_.erase(Address::of(held.pointer).value);
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // guarded by mutex_; first to end
};

// Where threads leave blocks for others to use and to deallocate.
class Exchange {
 public:
  void put(Held held) {
    const std::scoped_lock lock(mutex_);
    blocks_.push_back(held);
  }
  std::optional<Held> take() {
    const std::scoped_lock lock(mutex_);
    if (blocks_.empty()) return std::nullopt;
    const Held held = blocks_.back();
    blocks_.pop_back();
    return held;
  }

 private:
  std::mutex mutex_;
  std::vector<Held> blocks_;  // guarded by mutex_
};

struct World {
  World(SimOptions options, HeapOptions heap_options, std::optional<MemoryKind> beside)
      : sim(options), limit(heap_options.limit), heap(sim, heap_options, &fold) {
    if (beside) pool = std::make_unique<GraphPool>(heap, GraphPoolOptions{.memory = beside});
  }

  // The first failure is kept.
  void complain(const std::string& what) {
    const std::scoped_lock lock(mutex);
    if (failure.empty()) failure = what;
  }

  SimDevice sim;
  StatisticsFold fold;
  const Bytes limit;
  DeviceHeap heap;
  std::unique_ptr<GraphPool> pool;  // null, or of a kind of its own: half of the requests go there
  LiveRanges ranges;
  Exchange exchange;
  std::atomic<std::uint64_t> allocations{0}, out_of_memory{0};
  std::mutex mutex;
  std::string failure;  // guarded by mutex
};

class Worker {
 public:
  Worker(World& world, std::uint64_t seed, std::vector<Stream> streams)
      : world_(world), random_(seed), streams_(std::move(streams)) {}

  void operator()(int steps) {
    for (int i = 0; i < steps; ++i) step();
    for (const Held& held : own_) give_back(held);
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  void step() {
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        return allocate();
      case 3:
        return use_and_give_back();
      case 4:
        return pass_on();
      case 5:
        return take_over();
      case 6:
        return own_.empty() ? void() : give_back(pop());
      default:
        return now_and_then();
    }
  }

  void allocate() {
    const Stream stream = streams_[below(streams_.size())];
    const Bytes bytes{1 + below(std::uint64_t{1} << (9 + below(15)))};
    const Result<void*> block = world_.pool != nullptr && below(2) == 0
                                    ? world_.pool->allocate(bytes, stream)
                                    : world_.heap.allocate(bytes, stream);
    if (!block.ok()) {
      if (block.error().code() != ErrorCode::out_of_memory) {
        world_.complain(block.error().message());
      }
      ++world_.out_of_memory;
      while (own_.size() > 2) give_back(pop());
      return;
    }
    ++world_.allocations;
    const Held held{*block, bytes, stream};
    if (!world_.ranges.insert(held)) world_.complain("a block overlaps another");
    expect(world_.sim.launch(stream, Writes(held.pointer, bytes), random_time()), "launch");
    own_.push_back(held);
  }

  // On another stream of this thread, in order, and fenced.
  void use_and_give_back() {
    if (own_.empty()) return;
    const Held held = pop();
    use_on(held, streams_[below(streams_.size())]);
    give_back(held);
  }

  void use_on(const Held& held, Stream stream) {
    if (stream == held.owner) return;
    order(held.owner, stream);
    expect(world_.sim.launch(stream, Writes(held.pointer, held.bytes), random_time()), "launch");
    expect(world_.heap.fence(held.pointer, stream), "fence");
    order(stream, held.owner);
  }

  // Work queued on `second` from now on comes after all queued on `first` so far.
  void order(Stream first, Stream second) {
    const Result<EventHandle> event = world_.sim.create_event();
    expect(world_.sim.record(*event, first), "record");
    expect(world_.sim.wait(second, *event), "wait");
    expect(world_.sim.destroy_event(*event), "destroy_event");
  }

  void pass_on() {
    if (!own_.empty()) world_.exchange.put(pop());
  }

  // A block of another thread's: used on a stream of this one, and deallocated here.
  void take_over() {
    if (const std::optional<Held> held = world_.exchange.take()) {
      use_on(*held, streams_[below(streams_.size())]);
      if (below(2) == 0) return own_.push_back(*held);
      give_back(*held);
    }
  }

  void give_back(const Held& held) {
    world_.ranges.erase(held);
    expect(world_.heap.deallocate(held.pointer), "deallocate");
  }

  void now_and_then() {
    switch (below(12)) {
      case 0: {
        const Result<Bytes> trimmed = world_.heap.trim(below(2) == 0 ? 0_B : 8_MiB);
        if (!trimmed.ok()) world_.complain(trimmed.error().message());
        return;
      }
      case 1:
        for (const std::string& broken : world_.heap.validate()) world_.complain(broken);
        return;
      case 2:
        return void(world_.heap.snapshot());
      case 3:
        return void(world_.heap.statistics());
      case 4:
        if (!own_.empty() && !world_.heap.find(own_.back().pointer)) {
          world_.complain("a live block was not found");
        }
        return;
      case 5:
        if (world_.pool != nullptr) {
          world_.heap.set_limit(below(2) == 0 ? world_.limit : world_.limit / 2);
        }
        return;
      case 6:
        if (world_.pool != nullptr) (void)world_.pool->give_back_pages();
        return;
      default:
        world_.sim.advance(random_time());
    }
  }

  Nanoseconds random_time() { return {static_cast<std::int64_t>(below(200'000))}; }

  Held pop() {
    std::swap(own_[below(own_.size())], own_.back());
    const Held held = own_.back();
    own_.pop_back();
    return held;
  }

  void expect(const Status& status, const char* call) {
    if (!status.ok()) world_.complain(std::string(call) + ": " + status.error().message());
  }

  World& world_;
  std::mt19937_64 random_;
  std::vector<Stream> streams_;
  std::vector<Held> own_;
};

// Streams `shared` by all threads come on top of each thread's own two.
void run_threads(std::uint64_t seed, int threads, int shared, HeapOptions options, Bytes memory,
                 std::optional<MemoryKind> beside = std::nullopt) {
  SimOptions sim_options;
  sim_options.memory = memory;
  auto world = std::make_unique<World>(sim_options, options, beside);
  std::vector<Stream> common;
  for (int i = 0; i < shared; ++i) common.push_back(world->sim.new_stream());
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    std::vector<Stream> streams = common;
    streams.push_back(world->sim.new_stream());
    streams.push_back(world->sim.new_stream());
    running.emplace_back(Worker(*world, seed * 100 + static_cast<std::uint64_t>(i), streams), 1500);
  }
  for (std::thread& thread : running) thread.join();

  EXPECT_EQ(world->failure, "") << "seed " << seed;
  EXPECT_GT(world->allocations.load(), static_cast<std::uint64_t>(threads) * 20);
  while (const std::optional<Held> held = world->exchange.take()) {
    EXPECT_TRUE(world->heap.deallocate(held->pointer).ok());
  }
  EXPECT_TRUE(world->sim.races().empty()) << world->sim.races().front().describe();
  EXPECT_TRUE(world->heap.validate().empty()) << world->heap.validate().front();
  const Statistics statistics = world->heap.statistics();
  EXPECT_EQ(statistics.live_blocks.current, 0u);
  EXPECT_EQ(statistics.live_blocks.total, world->allocations.load());
  EXPECT_EQ(statistics.live_bytes.current, 0u);
  EXPECT_EQ(statistics.out_of_memory, world->out_of_memory.load());
  EXPECT_EQ(statistics.reserved_bytes.current, world->sim.physical_bytes().count);
  EXPECT_EQ(statistics.mappings.current, world->sim.live().mappings);
  EXPECT_EQ(statistics.pages.current, world->sim.live().handles);

  world->sim.finish();
  EXPECT_TRUE(world->heap.trim().ok());
  EXPECT_EQ(world->sim.physical_bytes(), 0_B) << "idle pages stayed behind";
}

TEST(Threads, OnStreamsOfTheirOwnKeepEveryInvariant) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) run_threads(seed, 6, 0, {}, 4_GiB);
}

TEST(Threads, OnSharedStreamsKeepEveryInvariant) {
  for (std::uint64_t seed = 11; seed <= 13; ++seed) run_threads(seed, 6, 2, {}, 4_GiB);
}

TEST(Threads, UnderPressureKeepEveryInvariant) {
  for (std::uint64_t seed = 21; seed <= 23; ++seed) {
    run_threads(seed, 4, 1, {.limit = 96_MiB, .reuse = ReusePolicy::wait}, 128_MiB);
  }
}

// Idle memory of one kind goes to the device for requests of the other; the limit moves.
TEST(Threads, InMemoryOfBothKindsKeepEveryInvariant) {
  for (std::uint64_t seed = 41; seed <= 42; ++seed) {
    run_threads(seed, 4, 1, {.limit = 96_MiB}, 128_MiB, MemoryKind::plain);
    run_threads(seed + 10, 4, 1, {.limit = 96_MiB, .memory = MemoryKind::plain}, 128_MiB,
                MemoryKind::pages);
  }
}

TEST(Threads, InPlainMemoryKeepEveryInvariant) {
  for (std::uint64_t seed = 31; seed <= 32; ++seed) {
    run_threads(seed, 6, 2, {.memory = MemoryKind::plain}, 4_GiB);
    run_threads(seed + 10, 4, 1, {.limit = 96_MiB, .memory = MemoryKind::plain}, 128_MiB);
  }
}

}  // namespace
}  // namespace weir::test
