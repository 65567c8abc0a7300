// SPDX-License-Identifier: Apache-2.0
// A step is captured once and launched 100 times; its nine temporary buffers share memory, though
// one is for a stream that the step forks. On a GPU `gpu.launch` is your kernels, record and wait
// are cudaEventRecord and cudaStreamWaitEvent, and streams are cudaStream_t:
// allocator.heap().stream(handle).
#include <cstdio>

#include "weir/allocator.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

using weir::operator""_MiB;
using weir::operator""_ms;

int main() {
  weir::SimDevice gpu;
  weir::Allocator allocator(gpu);
  const weir::Stream stream = gpu.new_stream();
  const weir::Stream side = gpu.new_stream();
  const weir::EventHandle forks = gpu.create_event().value();
  const weir::EventHandle joins = gpu.create_event().value();
  weir::GraphPool pool(allocator.heap());

  bool ok = true;
  weir::CaptureScope capture = weir::CaptureScope::begin(pool, stream).value();
  for (int layer = 0; layer < 8; ++layer) {
    const weir::Buffer activations = allocator.make_buffer(64_MiB, stream.handle);
    ok &= gpu.launch(stream, weir::Writes(activations.data(), 64_MiB), 1_ms).ok();
  }
  ok &= gpu.record(forks, stream).ok() && gpu.wait(side, forks).ok();  // `side` is captured now
  {
    const weir::Buffer gradients = allocator.make_buffer(64_MiB, side.handle);
    ok &= gpu.launch(side, weir::Writes(gradients.data(), 64_MiB), 1_ms).ok();
  }
  ok &= gpu.record(joins, side).ok() && gpu.wait(stream, joins).ok();  // before the capture ends
  weir::Graph graph = capture.end().value();
  for (int step = 0; step < 100; ++step) ok &= graph.launch(stream).ok();

  std::printf("%d MiB held for 9 buffers of 64 MiB, %d races\n",
              static_cast<int>(pool.statistics().peak_reserved_bytes.count >> 20),
              static_cast<int>(gpu.race_count()));
  gpu.finish();
  ok &= gpu.destroy_event(forks).ok() && gpu.destroy_event(joins).ok();
  return ok && gpu.race_count() == 0 ? 0 : 1;
}
