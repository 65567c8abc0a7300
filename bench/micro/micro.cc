// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/micro.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace weir::bench {
namespace {

constexpr benchmark::IterationCount kQuickRounds = 500;

std::atomic<bool> failed = false;

benchmark::internal::Benchmark* add_untimed(const Context& context, const std::string& name,
                                            Body body) {
  benchmark::internal::Benchmark* added =
      benchmark::RegisterBenchmark(name.c_str(), std::move(body));
  if (context.quick) added->Iterations(kQuickRounds);
  return added->Unit(benchmark::kNanosecond);
}

}  // namespace

void add(const Context& context, const std::string& name, Body body) {
  add_untimed(context, name, std::move(body))->UseRealTime();
}

void add_timed_by_itself(const Context& context, const std::string& name, Body body) {
  add_untimed(context, name, std::move(body))->UseManualTime();
}

void add_rounds(const Context& context, const std::string& name, int rounds, Body body) {
  add_untimed(context, name, std::move(body))->Iterations(rounds)->UseManualTime();
}

std::string name_of(Bytes bytes) {
  if (bytes < 1_MiB) return std::to_string(bytes.count) + "B";
  return std::to_string(bytes / 1_MiB) + "MiB";
}

void fail(benchmark::State& state, const std::string& why) {
  failed = true;
  state.SkipWithError(why.c_str());
}

bool any_failed() { return failed; }

void expect_sound(benchmark::State& state, const DeviceHeap& heap) {
  if (const std::vector<std::string> broken = heap.validate(); !broken.empty()) {
    return fail(state, "validate: " + broken.front());
  }
  const Statistics statistics = heap.statistics();
  if (statistics.live_blocks.current != 0) {
    fail(state, std::to_string(statistics.live_blocks.current) + " blocks are live at the end");
  }
}

void stop(const Error& error) {
  std::fprintf(stderr, "weir_micro: %s\n", error.message().c_str());
  std::_Exit(1);
}

}  // namespace weir::bench
