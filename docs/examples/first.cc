// SPDX-License-Identifier: Apache-2.0
// A buffer goes back while another stream still reads it. Its memory serves the next request at
// once; the host does not wait, and the GPU waits for just that read.
#include <cstdio>

#include "weir/allocator.h"
#include "weir/sim_device.h"

using weir::operator""_MiB;
using weir::operator""_ms;

int main() {
  weir::SimDevice gpu;
  weir::Allocator allocator(gpu);
  const weir::Stream compute = gpu.new_stream();
  const weir::Stream copy = gpu.new_stream();

  bool launched = true;
  {
    weir::Buffer sent = allocator.make_buffer(256_MiB, compute.handle);
    launched &= gpu.launch(copy, weir::Reads(sent.data(), sent.bytes()), 5_ms).ok();
    sent.fence(copy.handle);  // work queued so far on `copy` uses it
  }                           // `sent` goes back here, and the copy is still running
  const weir::Buffer next = allocator.make_buffer(256_MiB, compute.handle);
  launched &= gpu.launch(compute, weir::Writes(next.data(), next.bytes()), 1_ms).ok();

  const weir::Statistics statistics = allocator.statistics();
  std::printf("%d MiB held, %d stream wait, %d host waits, %d races\n",
              static_cast<int>(statistics.reserved_bytes.peak >> 20),
              static_cast<int>(statistics.stream_waits), static_cast<int>(statistics.host_waits),
              static_cast<int>(gpu.race_count()));
  gpu.finish();  // wait for the work: ~Allocator does not
  return launched && gpu.race_count() == 0 ? 0 : 1;
}
