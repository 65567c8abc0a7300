// SPDX-License-Identifier: Apache-2.0
// A program that knows only the installed headers and weir::weir.
#include <cstdio>

#include "weir/allocator.h"
#include "weir/device_heap.h"
#include "weir/sim_device.h"

using weir::operator""_MiB;
using weir::operator""_ms;

namespace {

// Exceptions and types are the same on both sides of the library.
bool catches_and_casts() {
  weir::Config config;
  bool ok = config.set("WEIR_DEVICE", "sim").ok() && config.set("WEIR_LIMIT", "4MiB").ok();
  weir::Allocator allocator(config);
  int caught = 0;
  try {
    allocator.allocate(64_MiB, nullptr);
  } catch (const weir::OutOfMemory&) {
    ++caught;
  }
  try {
    allocator.deallocate(&allocator);
  } catch (const weir::Exception&) {
    ++caught;
  }
  weir::SimDevice sim;
  weir::Device& device = sim;
  return ok && caught == 2 && dynamic_cast<weir::SimDevice*>(&device) == &sim;
}

}  // namespace

int main() {
  weir::SimDevice device;
  weir::DeviceHeap heap(device);
  const weir::Stream compute = device.new_stream();
  const weir::Stream copy = device.new_stream();

  const weir::Result<void*> block = heap.allocate(64_MiB, compute);
  if (!block.ok()) return std::printf("allocate: %s\n", block.error().message().c_str()), 1;
  bool ok = device.launch(copy, weir::Writes(*block, 64_MiB), 5_ms).ok();
  ok = ok && heap.fence(*block, copy).ok() && heap.deallocate(*block).ok();

  const weir::Result<void*> next = heap.allocate(64_MiB, compute);
  ok = ok && next.ok() && device.launch(compute, weir::Writes(*next, 64_MiB), 1_ms).ok();
  ok = ok && heap.statistics().live_bytes.current == (64_MiB).count;
  ok = ok && heap.deallocate(*next).ok() && heap.validate().empty() && device.race_count() == 0;
  ok = ok && catches_and_casts();
  std::printf(ok ? "outside: ok\n" : "outside: failed\n");
  return ok ? 0 : 1;
}
