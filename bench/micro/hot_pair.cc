// SPDX-License-Identifier: Apache-2.0
// Allocate and free the same size, again and again.
#include "bench/micro/micro.h"

namespace weir::bench {
namespace {

template <class Interface>
void hot_pair(benchmark::State& state, const Context& context, Bytes bytes) {
  Interface interface(*context.target);
  const auto stream = Interface::queue(*context.target, 0);
  for (int i = 0; i < 100; ++i) interface.deallocate(interface.allocate(bytes, stream));
  for ([[maybe_unused]] auto _ : state) {
    void* const block = interface.allocate(bytes, stream);
    interface.deallocate(block);
  }
  expect_sound(state, interface.heap());
}

template <class Interface>
void add_for(const Context& context) {
  for (const Bytes bytes : {512_B, 1_MiB, 32_MiB}) {
    add(context,
        std::string("hot_pair/") + context.name + "/" + Interface::kName + "/" + name_of(bytes),
        [=](benchmark::State& state) { hot_pair<Interface>(state, context, bytes); });
  }
}

}  // namespace

void add_hot_pair(const Context& context) {
  add_for<HeapInterface>(context);
  add_for<AllocatorInterface>(context);
}

}  // namespace weir::bench
