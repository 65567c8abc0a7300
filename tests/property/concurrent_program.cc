// SPDX-License-Identifier: Apache-2.0
#include "tests/property/concurrent_program.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "tests/property/concurrent_worker.h"
#include "tests/property/concurrent_world.h"
#include "tests/property/oracle.h"

namespace weir::test {
namespace {

using Kind = Call::Kind;

// The end: nobody at work, and all blocks given back.
void check_end(World& world, Worker& main, std::vector<std::string>& complaints) {
  const auto expect_zero = [&](const char* what, std::uint64_t is) {
    if (is != 0)
      complaints.push_back(std::string("at the end: ") + what + " " + std::to_string(is));
  };
  world.sim.finish();
  main.look();
  const Statistics idle = world.heap->statistics();
  expect_zero("live_blocks", idle.live_blocks.current);
  expect_zero("live_bytes", idle.live_bytes.current);
  expect_zero("requested_bytes", idle.requested_bytes.current);
  main.take_everything();
  world.sim.finish();
  main.trim_all();
  main.look();
  const Statistics empty = world.heap->statistics();
  expect_zero("leased_bytes", empty.leased_bytes.current);
  expect_zero("reserved_bytes", empty.reserved_bytes.current);
  expect_zero("mapped_bytes", empty.mapped_bytes.current);
  expect_zero("pages", empty.pages.current);
  expect_zero("mappings", empty.mappings.current);
  expect_zero("the device's bytes", world.sim.physical_bytes().count);
  const Bytes limit = world.scenario.heap.limit;
  if (limit > 0_B && !world.scenario.limits && world.sim.physical_peak() > limit) {
    complaints.push_back("more was held than the limit");
  }
  world.heap.reset();
  for (const std::string& leak : leaks(world.sim)) complaints.push_back("at the end: " + leak);
  for (const Race& race : world.sim.races()) complaints.push_back("race: " + race.describe());
}

}  // namespace

Outcome run(const Scenario& scenario) {
  World world(scenario);
  if (scenario.frees_when_out_of_memory) {
    world.heap->on_shortage(Shortage::out_of_memory, [](Bytes) {
      if (Worker* const worker = Worker::of_this_thread()) worker->free_something();
    });
  }
  std::vector<Stream> shared;
  for (std::uint32_t i = 0; i < scenario.shared_streams; ++i) {
    shared.push_back(world.sim.new_stream());
  }
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint32_t i = 0; i <= scenario.threads; ++i) {
    workers.push_back(std::make_unique<Worker>(world, i, shared));
  }
  Worker& main = *workers.back();
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < scenario.threads; ++i) {
    threads.emplace_back([&worker = *workers[i]] { worker(); });
  }
  world.halfway.arrive_and_wait();
  main.look();
  world.looked.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();

  Outcome outcome;
  // What one thread put after another had looked for the last time.
  while (std::optional<Held> left = world.exchange.take()) main.adopt(std::move(*left));
  check_end(world, main, outcome.complaints);
  for (const std::unique_ptr<Worker>& worker : workers) {
    for (Call& call : worker->take_calls()) outcome.history.push_back(std::move(call));
    for (std::string& what : worker->take_complaints()) {
      outcome.complaints.push_back(std::move(what));
    }
    outcome.handed_over += worker->handed_over();
  }
  for (const Call& call : outcome.history) {
    if (call.kind != Kind::allocate) continue;
    ++(call.error ? outcome.out_of_memory : outcome.allocations);
  }
  return outcome;
}

}  // namespace weir::test
