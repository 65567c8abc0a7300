// SPDX-License-Identifier: Apache-2.0
// Kernels of the benchmark and the scenarios: work that takes time and touches memory, buffers
// filled and checked. Each call queues on a stream of the calling thread's current device.
// Errors: device.
#pragma once

#include <cstdint>
#include <span>

#include "comm/contents.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir::rank_kernels {

// `result`: a cudaError_t, of the call that is named.
Status status_of(const char* call, int result);

// Loads every kernel: a capture does not permit the first launch of one that is not.
Status load();

inline constexpr unsigned kThreads = 256;  // of a block of work()
inline constexpr int kMostTouched = 64;    // ranges of one kernel
struct Touched {
  void* at = nullptr;  // a multiple of 16; so many bytes as are a multiple of it are touched
  std::uint64_t bytes = 0;
  bool written = false;  // else read
};
// Touches all, and then each thread does `rounds` of arithmetic.
Status work(Stream stream, std::span<const Touched> touched, std::uint64_t rounds, unsigned blocks);

Status fill(Stream stream, const Piece& piece);
// Bytes that no filled buffer has throughout.
Status spoil(Stream stream, void* at, Bytes bytes);
// Adds to *wrong, in device memory, the elements that are not what the piece says.
Status check(Stream stream, const Piece& piece, unsigned long long* wrong);

}  // namespace weir::rank_kernels
