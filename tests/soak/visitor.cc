// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/visitor.h"

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "tests/soak/block_worker.h"
#include "tests/soak/graph_worker.h"
#include "tests/torch/contract/legality.h"
#include "tests/torch/contract/random.h"
#include "tests/torch/contract/runner.h"

namespace weir::soak {

void Visitor::step() {
  if (world_.machine.sim() != nullptr && chance(50)) return run_contract_programs();
  visit();
}

Config Visitor::random_config() {
  static constexpr std::array kPolicies = {ReusePolicy::wait, ReusePolicy::balanced,
                                           ReusePolicy::no_wait};
  static constexpr std::array kLimits = {0_B, 64_MiB, 512_MiB};
  Config config;
  config.log = LogLevel::off;
  config.reuse = kPolicies[below(kPolicies.size())];
  config.limit.bytes = kLimits[below(kLimits.size())];
  if (chance(25)) config.memory = MemoryKind::plain;
  if (chance(25)) config.trust = Trust::context;
  if (chance(25)) config.record = folder_ + "/visit.weir";
  if (chance(50) && !config.record.empty()) config.record_ring = 256_KiB;
  return config;
}

// Under Trust::context a free waits while any stream of the process is captured.
void Visitor::let_frees_through(World& world) {
  constexpr int kTries = 2000;
  for (int i = 0; i < kTries; ++i) {
    if (world.allocator.statistics(0).live_blocks.current == 0) return;
    (void)world.heap().trim(0_B);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Visitor::visit() {
  Result<std::unique_ptr<test::Gpu>> gpu = open_();
  if (!expect("open", gpu)) return;
  Machine machine(std::move(*gpu));
  const Config config = random_config();
  const std::string settings = std::string(name_of(config.reuse)) + ", " +
                               std::string(name_of(config.memory)) + ", " +
                               std::string(name_of(config.trust.value_or(Trust::told)));
  {
    World world(machine, config, world_.complaints);
    world.faults = chance(50);
    world.told = config.trust.value_or(Trust::told) == Trust::told;
    world.sleeps = config.memory == MemoryKind::pages;
    for (int i = 0; i < 2; ++i) {
      if (Result<Stream> stream = machine.gpu().new_stream(); stream.ok()) {
        world.streams.push_back(*stream);
      }
    }
    {
      BlockWorker blocks(world, name() + "'s blocks, " + settings, below(1'000'000'000));
      GraphWorker graphs(world, name() + "'s graphs, " + settings, below(1'000'000'000));
      for (std::uint64_t steps = 50 + below(400); steps > 0; --steps) {
        chance(85) ? blocks.step() : graphs.step();
      }
    }
    expect("finish", machine.finish());
    let_frees_through(world);
    for (const std::string& broken : world.allocator.validate()) complain(settings + ": " + broken);
    const Statistics statistics = world.allocator.statistics(0);
    if (statistics.live_blocks.current != 0) complain(settings + ": blocks are live at the end");
  }
  if (const Result<test::Findings> found = machine.gpu().findings();
      !found.ok() || found->wrong != 0) {
    complain(settings + ": " + (found.ok() ? found->description : found.error().message()));
  }
  const Ledger left = machine.device().ledger();
  const std::array counts = {left.events,   left.pages,  left.mappings,    left.reservations,
                             left.segments, left.graphs, left.executables, left.host_blocks};
  std::string text;
  bool any = false;
  for (const std::int64_t count : counts) {
    any |= count != 0;
    text += " " + std::to_string(count);
  }
  if (any) {
    complain(settings +
             ": left behind (events, pages, mappings, reservations, segments, graphs, "
             "executables, host blocks):" +
             text);
  }
}

void Visitor::run_contract_programs() {
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t seed = 1 + below(1'000'000'000);
    const contract::Program program = contract::random_program(seed);
    if (contract::first_illegal_step(program)) {
      complain("weir_contract --replay " + std::to_string(seed) + ": not a legal program");
      continue;
    }
    const contract::Outcome outcome = contract::run_on_weir(program);
    if (outcome.failure) {
      complain("weir_contract --replay " + std::to_string(seed) + ": " +
               contract::name_of(outcome.failure->kind) + ": " + outcome.failure->what);
    }
  }
}

}  // namespace weir::soak
