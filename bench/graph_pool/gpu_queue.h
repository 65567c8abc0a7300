// SPDX-License-Identifier: Apache-2.0
// Kernels on a GPU.
#pragma once

#include "bench/graph_pool/gpu.h"
#include "bench/graph_pool/queue.h"

namespace weir::graph_pool {

class GpuQueue final : public Queue {
 public:
  // `sum`, on the device, must outlive this and the work.
  GpuQueue(Gpu& gpu, Word* sum) : gpu_(gpu), sum_(sum) {}

  void order(Stream earlier, Stream later) override { gpu_.order(earlier, later); }
  void transform(Stream stream, Piece out, std::uint64_t salt, Piece a, Piece b) override;
  void clear_sum(Stream stream) override;
  void add_to_sum(Stream stream, Piece piece) override;
  void delay(Stream stream, Nanoseconds duration) override;

 private:
  Gpu& gpu_;
  Word* const sum_;
};

}  // namespace weir::graph_pool
