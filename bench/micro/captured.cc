// SPDX-License-Identifier: Apache-2.0
// A capture of many operations, each of which writes a block: always the same block, which is no
// request; the same, with the driver asked each time whether the stream is captured; a block that
// is allocated for it, and freed once eight more were. The time is that of one operation.
#include <chrono>
#include <deque>

#include "bench/micro/micro.h"
#include "weir/config.h"
#include "weir/graph_pool.h"

namespace weir::bench {
namespace {

constexpr std::size_t kOperations = 10'000;
constexpr std::size_t kLive = 8;
constexpr int kRounds = 20;
constexpr Bytes kWritten = 512_B;

enum class Memory { the_same, the_same_and_asked, requested };

void write(Device& device, void* block, Stream stream) {
  if (const Status queued = device.fill_with_zeros(Address::of(block), kWritten, stream); !queued) {
    stop(queued.error());
  }
}

void capture_operations(HeapInterface& interface, Device& device, Stream stream, Memory memory,
                        void* same) {
  std::deque<void*> live;
  std::uint32_t random = 1;
  for (std::size_t i = 0; i < kOperations; ++i) {
    if (memory != Memory::requested) {
      if (memory == Memory::the_same_and_asked && !device.capture_info(stream)) std::abort();
      write(device, same, stream);
      continue;
    }
    random = random * 1664525 + 1013904223;
    live.push_back(interface.allocate(kWritten + Bytes{random >> 12}, stream));  // up to 1 MiB
    write(device, live.back(), stream);
    if (live.size() <= kLive) continue;
    interface.deallocate(live.front());
    live.pop_front();
  }
  for (void* const block : live) interface.deallocate(block);
}

void captured(benchmark::State& state, const Context& context, Trust trust, Memory memory) {
  HeapInterface interface(*context.target, {.trust = trust});
  Device& device = context.target->device();
  const Stream stream = context.target->stream(0);
  void* const same = interface.allocate(kWritten, stream);
  GraphPool pool(interface.heap());
  for ([[maybe_unused]] auto _ : state) {
    Result<CaptureScope> capture = CaptureScope::begin(pool, stream);
    if (!capture) stop(capture.error());
    const auto begun = std::chrono::steady_clock::now();
    capture_operations(interface, device, stream, memory, same);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begun;
    if (const Result<Graph> graph = capture->end(); !graph) stop(graph.error());
    state.SetIterationTime(time.count() / kOperations);
  }
  interface.deallocate(same);
  expect_sound(state, interface.heap());
}

}  // namespace

void add_captured(const Context& context) {
  const std::string name = std::string("captured/") + context.name + "/heap/";
  const auto bare = [&](const char* of, Memory memory) {
    add_rounds(context, name + of, kRounds,
               [=](benchmark::State& state) { captured(state, context, Trust::told, memory); });
  };
  bare("no_request", Memory::the_same);
  bare("asked", Memory::the_same_and_asked);
  for (const Trust trust : {Trust::told, Trust::context}) {
    add_rounds(context, name + std::string(name_of(trust)), kRounds, [=](benchmark::State& state) {
      captured(state, context, trust, Memory::requested);
    });
  }
}

}  // namespace weir::bench
