// SPDX-License-Identifier: Apache-2.0
// What libweir_no_cuda.so exports besides CUDA's functions.
#pragma once

#include <cstdint>

extern "C" {

struct weir_no_cuda_counts {
  std::uint64_t held_bytes;       // of cudaMalloc and cuMemCreate, now
  std::uint64_t most_held_bytes;  // since weir_no_cuda_reset()
  std::uint64_t calls;            // that ask for memory, events, streams' states; since then
  std::uint64_t waits;            // of streams and the host, among them
};

void weir_no_cuda_reset();
void weir_no_cuda_count(weir_no_cuda_counts* counts);
// By this a program knows that it is loaded.
void weir_no_cuda();
}
