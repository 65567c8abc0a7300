// SPDX-License-Identifier: Apache-2.0
// 2,048 live blocks of all sizes; a pair frees one at random and allocates another.
#include "bench/micro/micro.h"
#include "bench/support/mix.h"

namespace weir::bench {
namespace {

// So many that a repetition is none to the allocator, which remembers what came before.
constexpr std::size_t kReplacements = std::size_t{1} << 20;
constexpr std::size_t kWarmUp = 100'000;

const Mix& mix() {
  static const Mix mix = make_mix(kMixLive, kReplacements);
  return mix;
}

void random_mix(benchmark::State& state, const Context& context) {
  HeapInterface interface(*context.target);
  const Stream stream = context.target->stream(0);
  std::vector<void*> live;
  for (const Bytes bytes : mix().first) live.push_back(interface.allocate(bytes, stream));
  std::size_t next = 0;
  const auto replace = [&, replacements = mix().replacements.data()] {
    const Replacement& each = replacements[next++ & (kReplacements - 1)];
    interface.deallocate(live[each.index]);
    live[each.index] = interface.allocate({each.bytes}, stream);
  };
  for (std::size_t i = 0; i < context.warm_up(kWarmUp); ++i) replace();
  for ([[maybe_unused]] auto _ : state) replace();
  for (void* const block : live) interface.deallocate(block);
  expect_sound(state, interface.heap());
}

}  // namespace

void add_random_mix(const Context& context) {
  add(context, std::string("random_mix/") + context.name + "/heap",
      [=](benchmark::State& state) { random_mix(state, context); });
}

}  // namespace weir::bench
