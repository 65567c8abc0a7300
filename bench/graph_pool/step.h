// SPDX-License-Identifier: Apache-2.0
// A training step's allocations and kernels, without the mathematics: a forward pass that keeps two
// blocks a layer, a backward pass that frees them, and temporaries of several sizes, some used on
// side streams and freed before those have run.
#pragma once

#include <vector>

#include "bench/graph_pool/memory.h"
#include "bench/graph_pool/queue.h"

namespace weir::graph_pool {

struct StepShape {
  unsigned layers = 24;
  Bytes activation{128u << 20};
  unsigned side_streams = 2;        // 0: all on the main stream
  std::uint64_t most_delay_us = 0;  // of a kernel on a side stream, before it begins
};

struct StepStreams {
  Stream main;
  std::vector<Stream> sides;
  Stream side(unsigned layer) const { return sides.empty() ? main : sides[layer % sides.size()]; }
};

class Step {
 public:
  // `input` is of shape.activation bytes, and lives longer than the step's work, as does `queue`,
  // whose sum is of all gradients.
  Step(Queue& queue, const StepShape& shape, const void* input);

  // Queues the whole step; frees all it allocates. Returns its peak of live bytes.
  Bytes run(const StepStreams& streams, Memory& memory);

 private:
  struct Pass;
  void forward(Pass& pass, unsigned layer, Piece& x);
  void backward(Pass& pass, unsigned layer, Piece& gradient);

  Queue& queue_;
  const StepShape shape_;
  const Piece input_;
};

}  // namespace weir::graph_pool
