// SPDX-License-Identifier: Apache-2.0
#include "bench/graph_pool/gpu_queue.h"

#include "bench/peers/cuda_check.h"

namespace weir::graph_pool {
namespace {

Source words_of(const Piece& piece) { return {piece.pointer, piece.bytes.count / sizeof(Word)}; }

}  // namespace

void GpuQueue::transform(Stream stream, Piece out, std::uint64_t salt, Piece a, Piece b) {
  graph_pool::transform(handle_of(stream), out.pointer, out.bytes.count / sizeof(Word), salt,
                        words_of(a), words_of(b));
}

void GpuQueue::clear_sum(Stream stream) {
  peers::check_cuda("cudaMemsetAsync", cudaMemsetAsync(sum_, 0, sizeof(Word), handle_of(stream)));
}

void GpuQueue::add_to_sum(Stream stream, Piece piece) {
  add_checksum(handle_of(stream), sum_, words_of(piece));
}

void GpuQueue::delay(Stream stream, Nanoseconds duration) {
  graph_pool::delay(handle_of(stream), static_cast<std::uint64_t>(duration.count));
}

}  // namespace weir::graph_pool
