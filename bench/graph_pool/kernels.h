// SPDX-License-Identifier: Apache-2.0
// The benchmark's kernels. Memory is taken as 64-bit words; what a kernel writes depends on every
// word it reads and on a salt, so that a block another kernel wrote over changes all that follows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace weir::graph_pool {

using Word = unsigned long long;  // what the device's atomics take

// out[i] = a hash of a[i], b[i], i and the salt; a and b may be null, or `out` itself. They are
// read from their beginning again where they are shorter.
struct Source {
  const void* words = nullptr;
  std::uint64_t count = 0;
};
void transform(cudaStream_t stream, void* out, std::uint64_t count, std::uint64_t salt,
               Source a = {}, Source b = {});
// *sum += the hashes of all the words: the same in whatever order they are added.
void add_checksum(cudaStream_t stream, Word* sum, Source words);
// *mismatches += 1 where *sum is not what is expected.
void count_mismatch(cudaStream_t stream, const Word* sum, Word expected, Word* mismatches);
void delay(cudaStream_t stream, std::uint64_t nanoseconds);

}  // namespace weir::graph_pool
