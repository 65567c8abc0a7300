// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/graph_worker.h"

#include <array>
#include <utility>

namespace weir::soak {
namespace {

constexpr std::size_t kMain = 0, kSide = 1, kLauncher = 2;

}  // namespace

GraphWorker::GraphWorker(World& world, std::string name, std::uint64_t seed)
    : Worker(world, std::move(name), seed) {
  for (int i = 0; i < 3; ++i) {
    if (const std::optional<Stream> stream = new_stream()) streams_.push_back(*stream);
  }
  // On a GPU a kernel's first launch loads it, which a capture does not permit.
  if (std::optional<Block> block = allocate(1_MiB, streams_[kMain])) {
    check(*block, streams_[kMain]);
    free(std::move(*block));
  }
}

GraphWorker::~GraphWorker() {
  drop_all();
  for (const Stream stream : streams_) end_stream(stream);
}

void GraphWorker::list(std::vector<const Block*>& blocks) const {
  for (const Pool& pool : pools_) {
    for (const Captured& each : pool.graphs) {
      if (each.output) blocks.push_back(&*each.output);
    }
  }
}

void GraphWorker::drop_all() {
  while (!pools_.empty()) drop_pool(pools_.size() - 1);
}

void GraphWorker::step() {
  world_.machine.pass_time(Nanoseconds{static_cast<std::int64_t>(below(50'000))});
  if (pools_.empty()) return add_pool();
  const std::uint64_t choice = below(100);
  Pool& pool = any(pools_);
  if (choice < 8 && pools_.size() < kMostPools) return add_pool();
  if (choice < 30) return capture(pool, End::whole);
  if (choice < 75) return launch_all(pool);
  if (choice < 80) return capture(pool, End::broken);
  if (choice < 83) return capture(pool, End::abandoned);
  if (choice < 88) return warm_up(pool);
  if (choice < 91) return sleep(pool);
  if (choice < 93) return change_launcher();
  if (choice < 99) return drop_pool(below(pools_.size()));
  drop_all();
}

void GraphWorker::add_pool() {
  static constexpr std::array kLimits = {0_B, 0_B, 24_MiB, 64_MiB};
  Pool made;
  if (chance(50)) made.tag = name();
  made.pool = std::make_unique<GraphPool>(
      world_.heap(),
      GraphPoolOptions{
          .limit = kLimits[below(kLimits.size())], .memory = std::nullopt, .tag = made.tag});
  pools_.push_back(std::move(made));
}

// Pool, graphs and outputs go in any order.
void GraphWorker::drop_pool(std::size_t index) {
  Pool pool = std::move(pools_[index]);
  pools_.erase(pools_.begin() + static_cast<std::ptrdiff_t>(index));
  if (chance(33)) pool.pool.reset();
  for (Captured& each : pool.graphs) {
    if (chance(50)) each.graph = Graph();
    if (each.output) free(std::move(*each.output));
  }
}

std::optional<Block> GraphWorker::allocate_in_program(Stream home) {
  const Bytes bytes = chance(30) ? Bytes{1 + below(200'000)} : 64_KiB * (1 + below(40));
  const Result<void*> pointer = attempt([&] { return world_.heap().allocate(bytes, home); });
  if (!pointer.ok()) {
    if (pointer.error().code() != ErrorCode::out_of_memory) {
      expect("allocate in a graph's program", pointer);
    }
    return std::nullopt;
  }
  Block block{.pointer = *pointer, .bytes = bytes, .home = home};
  write(block, home);
  // What it holds is seen by the kernels that check it, when the graph runs.
  block.holds = world_.machine.sim() == nullptr ? Holds::pattern : Holds::anything;
  return block;
}

void GraphWorker::free_in_program(Block block) {
  check(block, block.home);
  for (const Stream user : block.users) {
    expect("a fence in a graph's program",
           attempt([&] { return world_.heap().fence(block.pointer, user); }));
  }
  expect("deallocate in a graph's program",
         attempt([&] { return world_.heap().deallocate(block.pointer); }));
}

std::optional<Block> GraphWorker::program(bool captured) {
  const Stream main = streams_[kMain], side = streams_[kSide];
  std::vector<Block> live;
  const auto drop = [&] {
    std::swap(any(live), live.back());
    Block block = std::move(live.back());
    live.pop_back();
    free_in_program(std::move(block));
  };
  order(main, side);
  for (std::uint64_t steps = 5 + below(20); steps > 0; --steps) {
    const Stream home = chance(33) ? side : main;
    std::optional<Block> block = allocate_in_program(home);
    if (!block) {
      while (live.size() > 1) drop();
      continue;
    }
    if (chance(25)) {
      const Stream other = home == main ? side : main;
      order(home, other);
      check(*block, other);
      block->users.push_back(other);
    }
    live.push_back(std::move(*block));
    while (live.size() > 5) drop();
  }
  while (!live.empty()) drop();
  order(side, main);
  if (!captured) return std::nullopt;
  return allocate_in_program(main);
}

void GraphWorker::warm_up(Pool& pool) {
  const Stream main = streams_[kMain], side = streams_[kSide];
  // Under Trust::context the program sees to it that a warm-up and launches follow one another.
  const auto order_with_launches = [&](bool before) {
    if (world_.told) return;
    for (const Stream each : {main, side}) {
      before ? order(streams_[kLauncher], each) : order(each, streams_[kLauncher]);
    }
  };
  order_with_launches(true);
  Result<PoolBinding> binding = attempt([&] {
    return pool.pool->warm_up([main, side](Stream stream) {
      return stream.handle == main.handle || stream.handle == side.handle;
    });
  });
  if (!expect("warm_up", binding)) return;
  program(false);
  order_with_launches(false);
}

void GraphWorker::capture(Pool& pool, End end) {
  static constexpr std::array kModes = {CaptureMode::global, CaptureMode::thread_local_,
                                        CaptureMode::relaxed};
  if (pool.graphs.size() >= kMostGraphs) return launch_all(pool);
  const Stream main = streams_[kMain], side = streams_[kSide];
  Result<CaptureScope> capture =
      attempt([&] { return CaptureScope::begin(*pool.pool, main, kModes[below(kModes.size())]); });
  if (lacks_what_is_lent(capture) || !expect("the begin of a capture", capture)) return;
  std::optional<Block> output = program(true);
  std::optional<Block> lost;
  if (end == End::broken) {
    order(main, side);
    lost = allocate_in_program(side);
    if (!lost) end = End::whole;  // no memory, no kernel: nothing has to join
  }
  if (end != End::whole) {
    // A graph that is not made leaves blocks that may go back at any time.
    for (std::optional<Block>* const block : {&output, &lost}) {
      if (*block && chance(50)) {
        expect("deallocate", world_.heap().deallocate((*block)->pointer));
        block->reset();
      }
    }
  }
  Result<Graph> graph = Error(ErrorCode::capture, "abandoned");
  if (end == End::abandoned) {
    const CaptureScope gone = std::move(*capture);
  } else {
    graph = capture->end();
  }
  if (end == End::whole && expect("the end of a capture", graph)) {
    if (output && !world_.ranges.insert(*output)) complain("a graph's output overlaps a block");
    if (SimDevice* const sim = world_.machine.sim()) {
      const std::uint64_t wrong = sim->replay_in_random_order(graph->graph(), below(1000));
      if (wrong != 0) complain("a graph lacks an edge: " + std::to_string(wrong) + " wrong reads");
    }
    pool.graphs.push_back({std::move(*graph), std::move(output)});
    return;
  }
  if (end == End::broken && (graph.ok() || graph.error().code() != ErrorCode::capture)) {
    complain("a capture with a fork that did not join made a graph");
  }
  for (const std::optional<Block>& block : {output, lost}) {
    if (block) expect("deallocate", world_.heap().deallocate(block->pointer));
  }
}

// In the order of their captures, one after the other.
void GraphWorker::launch_all(Pool& pool) {
  const Stream launcher = streams_[kLauncher];
  for (std::uint64_t times = 1 + below(3); times > 0; --times) {
    for (Captured& each : pool.graphs) {
      const Status launched = attempt([&] { return each.graph.launch(launcher); });
      if (lacks_what_is_lent(launched) || !expect("a launch", launched)) return;
      if (!each.output) continue;
      check(*each.output, launcher);
      if (each.output->users.empty()) each.output->users.push_back(launcher);
    }
  }
}

void GraphWorker::sleep(Pool& pool) {
  if (!world_.sleeps || pool.tag.empty() || pool.graphs.empty()) return;
  SleepOptions options;
  options.tags = {pool.tag};
  options.graph_scratch = chance(50);
  sleep_and_wake(options, [&] {
    const Status refused = pool.graphs.front().graph.launch(streams_[kLauncher]);
    if (refused.ok() || refused.error().code() != ErrorCode::asleep) {
      complain("a graph whose memory sleeps was launched");
    }
  });
  launch_all(pool);
}

// The streams that a graph is launched on come and go, too.
void GraphWorker::change_launcher() {
  if (!world_.may_change_stream()) return;
  for (Pool& pool : pools_) {
    for (Captured& each : pool.graphs) {
      if (!each.output || each.output->users.empty()) continue;
      expect("fence", attempt([&] {
               return world_.heap().fence(each.output->pointer, streams_[kLauncher]);
             }));
      each.output->users.clear();
    }
  }
  const std::optional<Stream> stream = new_stream();
  if (!stream) return;
  order(streams_[kLauncher], *stream);
  end_stream(streams_[kLauncher]);
  streams_[kLauncher] = *stream;
}

}  // namespace weir::soak
