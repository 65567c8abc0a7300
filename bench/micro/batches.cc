// SPDX-License-Identifier: Apache-2.0
// Allocate 100 blocks of one size, then free them in the same order.
#include <array>

#include "bench/micro/micro.h"

namespace weir::bench {
namespace {

void batches(benchmark::State& state, const Context& context, Bytes bytes) {
  HeapInterface interface(*context.target);
  const Stream stream = context.target->stream(0);
  std::array<void*, 100> blocks{};
  const auto batch = [&] {
    for (void*& block : blocks) block = interface.allocate(bytes, stream);
    for (void* const block : blocks) interface.deallocate(block);
  };
  batch();
  while (state.KeepRunningBatch(blocks.size())) batch();
  expect_sound(state, interface.heap());
}

}  // namespace

void add_batches(const Context& context) {
  for (const Bytes bytes : {512_B, 1_MiB, 32_MiB}) {
    add(context, std::string("batch/") + context.name + "/heap/" + name_of(bytes),
        [=](benchmark::State& state) { batches(state, context, bytes); });
  }
}

}  // namespace weir::bench
