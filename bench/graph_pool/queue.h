// SPDX-License-Identifier: Apache-2.0
// Where a program of the benchmark queues its kernels: a GPU (gpu_queue.h), or, in tests, the
// simulated device. One sum belongs to it, in the device's memory.
#pragma once

#include <cstdint>

#include "weir/types.h"

namespace weir::graph_pool {

// Memory that a kernel uses; none where the pointer is null.
struct Piece {
  void* pointer = nullptr;
  Bytes bytes;
};

class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;

  // Work queued on `later` from now on runs after what is queued on `earlier` now.
  virtual void order(Stream earlier, Stream later) = 0;
  // Writes all of `out`; what, depends on `salt` and on all of `a` and `b`.
  virtual void transform(Stream stream, Piece out, std::uint64_t salt, Piece a, Piece b) = 0;
  virtual void clear_sum(Stream stream) = 0;
  virtual void add_to_sum(Stream stream, Piece piece) = 0;
  virtual void delay(Stream stream, Nanoseconds duration) = 0;
};

}  // namespace weir::graph_pool
