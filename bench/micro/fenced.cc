// SPDX-License-Identifier: Apache-2.0
// Allocate on stream A, fence on stream B, free: whoever takes the memory next has to wait for B.
#include "bench/micro/micro.h"
#include "weir/config.h"

namespace weir::bench {
namespace {

void fenced(benchmark::State& state, const Context& context, ReusePolicy reuse, Bytes bytes) {
  HeapInterface interface(*context.target, {.reuse = reuse});
  const Stream owner = context.target->stream(0), user = context.target->stream(1);
  const auto pair = [&] {
    void* const block = interface.allocate(bytes, owner);
    interface.fence(block, user);
    interface.deallocate(block);
  };
  for (int i = 0; i < 200; ++i) pair();
  const std::uint64_t before = interface.heap().statistics().stream_waits;
  for ([[maybe_unused]] auto _ : state) pair();
  const std::uint64_t waits = interface.heap().statistics().stream_waits - before;
  const auto pairs = static_cast<std::uint64_t>(state.iterations());
  state.counters["waits"] = static_cast<double>(waits) / static_cast<double>(pairs);
  if (reuse == ReusePolicy::wait && waits != pairs) {
    fail(state, std::to_string(waits) + " waits for " + std::to_string(pairs) + " pairs");
  }
  expect_sound(state, interface.heap());
}

}  // namespace

void add_fenced(const Context& context) {
  for (const ReusePolicy reuse : {ReusePolicy::wait, HeapOptions{}.reuse}) {
    for (const Bytes bytes : {512_B, 1_MiB}) {
      add(context,
          std::string("fenced/") + context.name + "/heap/" + std::string(name_of(reuse)) + "/" +
              name_of(bytes),
          [=](benchmark::State& state) { fenced(state, context, reuse, bytes); });
    }
  }
}

}  // namespace weir::bench
