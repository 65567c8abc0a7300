// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench/graph_pool/kernels.h"
#include "bench/peers/cuda_check.h"

namespace weir::graph_pool {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint64_t kMostBlocks = 1024;

// One step of SplitMix64 (Steele, Lea and Flood 2014).
__device__ Word mix(Word z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ Word read(const Word* words, Word count, Word i) {
  if (words == nullptr) return 0;
  return words[i < count ? i : i % count];
}

// No __restrict__: `out` may be `a`.
__global__ void transform_kernel(Word* out, Word count, Word salt, const Word* a, Word a_count,
                                 const Word* b, Word b_count) {
  const Word stride = Word{gridDim.x} * blockDim.x;
  for (Word i = Word{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const Word first = read(a, a_count, i);
    const Word second = read(b, b_count, i);
    out[i] = mix(first ^ mix(second + i) ^ salt * 0xD1342543DE82EF95ull);
  }
}

__global__ void checksum_kernel(Word* sum, const Word* words, Word count) {
  const Word stride = Word{gridDim.x} * blockDim.x;
  Word mine = 0;
  for (Word i = Word{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    mine += mix(words[i] ^ i);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) mine += __shfl_down_sync(~0u, mine, lanes);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}

__global__ void mismatch_kernel(const Word* sum, Word expected, Word* mismatches) {
  if (*sum != expected) atomicAdd(mismatches, Word{1});
}

__global__ void delay_kernel(Word nanoseconds) {
  Word start = 0;
  Word now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

unsigned blocks_for(std::uint64_t words) {
  return static_cast<unsigned>(
      std::clamp<std::uint64_t>((words + kThreads - 1) / kThreads, 1, kMostBlocks));
}

const Word* words_of(Source source) { return static_cast<const Word*>(source.words); }

}  // namespace

void transform(cudaStream_t stream, void* out, std::uint64_t count, std::uint64_t salt, Source a,
               Source b) {
  transform_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
      static_cast<Word*>(out), count, salt, words_of(a), a.count, words_of(b), b.count);
  peers::check_cuda("launching transform", cudaGetLastError());
}

void add_checksum(cudaStream_t stream, Word* sum, Source words) {
  checksum_kernel<<<blocks_for(words.count), kThreads, 0, stream>>>(sum, words_of(words),
                                                                    words.count);
  peers::check_cuda("launching add_checksum", cudaGetLastError());
}

void count_mismatch(cudaStream_t stream, const Word* sum, Word expected, Word* mismatches) {
  mismatch_kernel<<<1, 1, 0, stream>>>(sum, expected, mismatches);
  peers::check_cuda("launching count_mismatch", cudaGetLastError());
}

void delay(cudaStream_t stream, std::uint64_t nanoseconds) {
  delay_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  peers::check_cuda("launching delay", cudaGetLastError());
}

}  // namespace weir::graph_pool
