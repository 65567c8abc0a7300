// SPDX-License-Identifier: Apache-2.0
// Hot pairs in several threads: each on a stream of its own, or all on one.
#include "bench/micro/micro.h"
#include "bench/support/together.h"

namespace weir::bench {
namespace {

enum class Streams { own, one };

template <class Interface>
void threads(benchmark::State& state, const Context& context, Streams streams, Bytes bytes,
             int count) {
  Interface interface(*context.target);
  std::vector<typename Interface::Queue> queues;
  for (int i = 0; i < count; ++i) {
    queues.push_back(Interface::queue(*context.target, streams == Streams::own ? i : 0));
  }
  const auto pairs = [&](int thread, benchmark::IterationCount n) {
    const auto stream = queues[static_cast<std::size_t>(thread)];
    for (benchmark::IterationCount i = 0; i < n; ++i) {
      void* const block = interface.allocate(bytes, stream);
      interface.deallocate(block);
    }
  };
  const benchmark::IterationCount each = state.max_iterations;
  while (state.KeepRunningBatch(each)) {
    state.SetIterationTime(seconds_together(
        count, [&](int thread) { pairs(thread, 100); }, [&](int thread) { pairs(thread, each); }));
  }
  expect_sound(state, interface.heap());
}

template <class Interface>
void add_for(const Context& context, Streams streams) {
  for (const Bytes bytes : {512_B, 1_MiB}) {
    for (const int count : {1, 2, 4, 8, 16}) {
      if (streams == Streams::one && count == 1) continue;  // what one thread has is its own
      add_timed_by_itself(context,
                          std::string(streams == Streams::own ? "own_stream/" : "one_stream/") +
                              context.name + "/" + Interface::kName + "/" + name_of(bytes) +
                              "/threads:" + std::to_string(count),
                          [=](benchmark::State& state) {
                            threads<Interface>(state, context, streams, bytes, count);
                          });
    }
  }
}

}  // namespace

void add_threads(const Context& context) {
  for (const Streams streams : {Streams::own, Streams::one}) {
    add_for<HeapInterface>(context, streams);
    add_for<AllocatorInterface>(context, streams);
  }
}

}  // namespace weir::bench
