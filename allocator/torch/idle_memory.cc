// SPDX-License-Identifier: Apache-2.0
#include "torch/idle_memory.h"

#include <thread>

namespace weir::pytorch {

Result<IdleMemory> IdleMemory::begin(DeviceHeap& heap) {
  auto pool = std::make_unique<GraphPool>(heap);
  Result<PoolBinding> binding = pool->serve([thread = std::this_thread::get_id()](Stream) {
    return std::this_thread::get_id() == thread;
  });
  if (!binding) return std::move(binding).error();
  return IdleMemory(std::move(pool), *std::move(binding));
}

}  // namespace weir::pytorch
