// SPDX-License-Identifier: Apache-2.0
// Weir behind an interface of CCCL's (cuda::mr): two buffers of a library that takes any memory
// resource. Here on a simulated GPU; on a real one leave out the device, and pass your own streams.
#include <cstdio>

#include "weir/memory_resource.h"
#include "weir/sim_device.h"

namespace {

// What such a library does: it knows the interface alone.
template <class Resource>
void use(Resource resource, cuda::stream_ref compute, cuda::stream_ref copy) {
  constexpr std::size_t kBytes = 64 << 20;
  void* result = resource.allocate(compute, kBytes);
  // ... kernels on `compute` write the result, a copy on `copy` waits for them and reads it ...
  resource.deallocate(copy, result, kBytes);  // after work queued so far on `copy`
  void* next = resource.allocate(compute, kBytes);
  resource.deallocate(compute, next, kBytes);
}

}  // namespace

int main() {
  weir::SimDevice gpu;
  weir::Allocator allocator(gpu);
  const auto new_stream = [&] { return static_cast<cudaStream_t>(gpu.new_stream().handle); };

  use(weir::MemoryResource(allocator), new_stream(), new_stream());

  const weir::Statistics statistics = allocator.statistics();
  std::printf("%d MiB held for two buffers of 64 MiB, %d host waits\n",
              static_cast<int>(statistics.reserved_bytes.peak >> 20),
              static_cast<int>(statistics.host_waits));
  return statistics.host_waits == 0 ? 0 : 1;
}
