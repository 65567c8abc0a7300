// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "comm/rank_kernels.h"

namespace weir::rank_kernels {
namespace {

using Word = unsigned long long;

constexpr unsigned kMostBlocks = 1024;

// What a kernel takes as its argument, of which there are 4 KiB.
struct Ranges {
  Touched all[kMostTouched];
  int count = 0;
};
static_assert(sizeof(Ranges) < 4096);

// Never stored to: so that the compiler leaves the work in.
__device__ float unused;

__device__ Word first_index() { return Word{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ Word all_threads() { return Word{gridDim.x} * blockDim.x; }

__device__ Word touch(const Touched& range, Word value) {
  auto* const pairs = static_cast<ulonglong2*>(range.at);
  for (Word i = first_index(); i < range.bytes / 16; i += all_threads()) {
    if (range.written) {
      pairs[i] = make_ulonglong2(value, i);
    } else {
      const ulonglong2 pair = pairs[i];
      value += pair.x ^ pair.y;
    }
  }
  return value;
}

__global__ void work_kernel(const __grid_constant__ Ranges ranges, Word rounds) {
  Word value = threadIdx.x;
  for (int i = 0; i < ranges.count; ++i) value = touch(ranges.all[i], value);
  // Four chains, which keep the units for arithmetic busy: others on the same multiprocessor slow
  // them down, as they would real work.
  float a = static_cast<float>(value % 97), b = a + 1, c = a + 2, d = a + 3;
  for (Word round = 0; round < rounds; ++round) {
    a = fmaf(a, 0.999f, 0.5f);
    b = fmaf(b, 0.998f, 0.5f);
    c = fmaf(c, 0.997f, 0.5f);
    d = fmaf(d, 0.996f, 0.5f);
  }
  if (a + b + c + d < 0) unused = a;  // all are positive
}

__global__ void fill_kernel(float* at, Word count, Contents contents) {
  for (Word i = first_index(); i < count; i += all_threads()) at[i] = element_of(contents, i);
}

__global__ void check_kernel(const float* at, Word count, Contents contents, Word* wrong) {
  Word found = 0;
  for (Word i = first_index(); i < count; i += all_threads()) {
    if (at[i] != element_of(contents, i)) ++found;  // a NaN is wrong, too
  }
  if (found > 0) atomicAdd(wrong, found);
}

unsigned blocks_for(Word elements) {
  return static_cast<unsigned>(
      std::clamp<Word>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
}
cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

template <class Kernel>
Status load_one(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return status_of("loading a kernel", cudaFuncGetAttributes(&attributes, kernel));
}

}  // namespace

Status status_of(const char* call, int result) {
  const auto error = static_cast<cudaError_t>(result);
  if (error == cudaSuccess) return {};
  return Error(ErrorCode::device, std::string(call) + ": " + cudaGetErrorName(error) + " (" +
                                      cudaGetErrorString(error) + ")");
}

Status load() {
  if (Status loaded = load_one(work_kernel); !loaded) return loaded;
  if (Status loaded = load_one(fill_kernel); !loaded) return loaded;
  return load_one(check_kernel);
}

Status work(Stream stream, std::span<const Touched> touched, std::uint64_t rounds,
            unsigned blocks) {
  if (touched.size() > kMostTouched) {
    return Error(ErrorCode::invalid_argument,
                 "one kernel touches at most " + std::to_string(kMostTouched) + " ranges");
  }
  Ranges ranges;
  ranges.count = static_cast<int>(touched.size());
  std::copy(touched.begin(), touched.end(), ranges.all);
  work_kernel<<<blocks, kThreads, 0, handle_of(stream)>>>(ranges, rounds);
  return status_of("launching a kernel that works", cudaGetLastError());
}

Status fill(Stream stream, const Piece& piece) {
  if (piece.count == 0) return {};
  fill_kernel<<<blocks_for(piece.count), kThreads, 0, handle_of(stream)>>>(piece.at, piece.count,
                                                                           piece.contents);
  return status_of("launching a kernel that fills", cudaGetLastError());
}

Status spoil(Stream stream, void* at, Bytes bytes) {
  return status_of("cudaMemsetAsync", cudaMemsetAsync(at, 0xA5, bytes.count, handle_of(stream)));
}

Status check(Stream stream, const Piece& piece, unsigned long long* wrong) {
  if (piece.count == 0) return {};
  check_kernel<<<blocks_for(piece.count), kThreads, 0, handle_of(stream)>>>(piece.at, piece.count,
                                                                            piece.contents, wrong);
  return status_of("launching a kernel that checks", cudaGetLastError());
}

}  // namespace weir::rank_kernels
