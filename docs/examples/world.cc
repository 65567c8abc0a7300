// SPDX-License-Identifier: Apache-2.0
// Every rank adds up a gradient of all ranks. Started by torchrun, mpirun or srun it is one rank on
// its GPU; alone it is a world of one, with WEIR_DEVICE=sim on a simulated GPU.
#include <cstdio>

#include "weir/allocator.h"
#include "weir/comm/communicator.h"

int main() try {
  weir::Allocator allocator;
  weir::Result<weir::Communicator> joined = weir::Communicator::world(allocator);
  if (!joined) {
    std::fprintf(stderr, "%s\n", joined.error().message().c_str());
    return 1;
  }
  weir::Communicator& world = *joined;
  auto& [nccl, device, heap] = world.context();
  const weir::Stream stream = nccl.create_stream().value();

  constexpr std::uint64_t kCount = 1 << 20;
  void* gradient = heap.allocate(weir::Bytes{4 * kCount}, stream).value();
  // ... kernels on the stream write the gradient ...
  const weir::Result<weir::Work> sum = world.all_reduce(
      gradient, gradient, kCount, weir::DataType::float32, weir::ReduceOp::average, stream);
  // ... kernels on the stream read the mean ...
  const weir::Status gone = heap.deallocate(gradient);  // at once

  std::printf("rank %d of %d: %s\n", world.rank(), world.ranks(),
              sum && gone ? "done" : (sum ? gone.error() : sum.error()).message().c_str());
  return sum && gone && heap.retire(stream) && world.close() ? 0 : 1;
} catch (const weir::Exception& failed) {
  std::fprintf(stderr, "%s\n", failed.what());
  return 1;
}
