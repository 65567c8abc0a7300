// SPDX-License-Identifier: Apache-2.0
// Two ranks sum a gradient while it is given back at once; on simulated GPUs, so that it runs
// anywhere. On real ones `nccl` is weir::load_nccl(device), and each rank is a process.
#include <cstdio>
#include <thread>

#include "weir/comm/communicator.h"
#include "weir/comm/sim_nccl.h"

using weir::operator""_MiB;
using weir::operator""_us;

namespace {

constexpr weir::Bytes kGradient = 64_MiB;

// One rank's part. Returns whether all went well.
bool step(weir::Nccl& nccl, weir::SimDevice& gpu, const weir::UniqueId& id, int rank) {
  weir::DeviceHeap heap(gpu);
  const weir::Stream compute = gpu.new_stream();
  auto world = weir::Communicator::create({nccl, gpu, heap}, id, /*ranks=*/2, rank);
  if (!world || !world->prepare()) return false;

  for (int layer = 0; layer < 8; ++layer) {
    auto gradient = heap.allocate(kGradient, compute);
    if (!gradient || !gpu.launch(compute, weir::Writes(*gradient, kGradient), 900_us)) return false;
    const auto sum = world->all_reduce(*gradient, *gradient, kGradient.count / 4,
                                       weir::DataType::float32, {}, weir::overlapped(compute));
    if (!sum || !heap.deallocate(*gradient)) return false;  // at once: the block is fenced
    // sum->wait(stream), before work on `stream` that needs the result.
  }
  const weir::Status closed = world->close();
  if (rank == 0) {
    std::printf("%d MiB held for 8 gradients of 64 MiB, %d host waits, %d races\n",
                static_cast<int>(gpu.physical_peak().count >> 20),
                static_cast<int>(heap.statistics().host_waits), static_cast<int>(gpu.race_count()));
  }
  return closed.ok() && gpu.race_count() == 0;
}

}  // namespace

int main() {
  weir::SimWorld world({.ranks = 2});
  weir::SimDevice gpus[2];
  const auto first = world.rank(0, gpus[0]), second = world.rank(1, gpus[1]);
  const weir::UniqueId id = first->unique_id().value();
  bool other = false;
  std::thread rank([&] { other = step(*second, gpus[1], id, 1); });
  const bool mine = step(*first, gpus[0], id, 0);
  rank.join();
  return mine && other ? 0 : 1;
}
