// SPDX-License-Identifier: Apache-2.0
// Requests that get memory which nobody uses any more, while this lives: those of the calling
// thread, of streams that are not being captured.
//
// Else a request may get memory that its stream waits for, on the GPU, and only that stream may use
// it then. PyTorch has tensors that it writes on other streams without a wait: the seed and the
// offset of the random numbers of all graphs, made as the first capture begins, and written as each
// later one begins and as graphs are launched.
#pragma once

#include <memory>
#include <utility>

#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir::pytorch {

// Begun and ended in the same thread. Blocks may outlive it. Errors: as GraphPool::serve().
class IdleMemory {
 public:
  // `heap` must outlive this.
  static Result<IdleMemory> begin(DeviceHeap& heap);

 private:
  IdleMemory(std::unique_ptr<GraphPool> pool, PoolBinding binding)
      : pool_(std::move(pool)), binding_(std::move(binding)) {}

  // A new one has pages that are idle, or the driver's, and shares them with nobody.
  std::unique_ptr<GraphPool> pool_;
  PoolBinding binding_;
};

}  // namespace weir::pytorch
