// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "pattern/pattern.h"
#include "pattern/relaxed_capture.h"

namespace weir {
namespace {

using Word = unsigned long long;  // what the device's atomics take

constexpr unsigned kThreads = 256;
// Few enough that all run at once on any GPU in use, so that each delay is waited for once.
constexpr unsigned kMostBlocks = 256;

// Lives in device memory.
struct Findings {
  Word checked_bytes;
  Word wrong_bytes;
  Word claimed;  // 1 once a thread fills in the rest
  Word block, offset, seed, expected, found;
};

// One step of SplitMix64 (Steele, Lea and Flood 2014) from a state that differs for each word.
__device__ Word pattern_word(Word seed, Word index) {
  Word z = seed * 0xD1342543DE82EF95ull + (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ Word global_nanoseconds() {
  Word now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ void wait_for(Word delay) {
  if (delay == 0) return;
  if (threadIdx.x == 0) {
    const Word start = global_nanoseconds();
    while (global_nanoseconds() - start < delay) __nanosleep(200);
  }
  __syncthreads();
}

__device__ void report_wrong(Findings* findings, Word block, Word offset, Word seed, Word expected,
                             Word found, Word wrong_bytes) {
  atomicAdd(&findings->wrong_bytes, wrong_bytes);
  if (atomicCAS(&findings->claimed, 0, 1) != 0) return;
  findings->block = block;
  findings->offset = offset;
  findings->seed = seed;
  findings->expected = expected;
  findings->found = found;
}

__device__ unsigned differing_bytes(Word a, Word b) {
  unsigned count = 0;
  for (Word difference = a ^ b; difference != 0; difference >>= 8)
    count += (difference & 0xFF) != 0;
  return count;
}

// The bytes after the last whole pair of words are done one by one, by the first thread.
template <class Byte>
__device__ void for_each_tail_byte(Word bytes, Word seed, Byte byte) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  for (Word i = bytes / 16 * 16; i < bytes; ++i) {
    byte(i, static_cast<unsigned char>(pattern_word(seed, i / 8) >> (8 * (i % 8))));
  }
}

__global__ void write_kernel(void* pointer, Word bytes, Word seed, Word delay) {
  wait_for(delay);
  auto* pairs = static_cast<ulonglong2*>(pointer);
  const Word stride = Word{gridDim.x} * blockDim.x;
  for (Word i = Word{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes / 16; i += stride) {
    pairs[i] = make_ulonglong2(pattern_word(seed, 2 * i), pattern_word(seed, 2 * i + 1));
  }
  auto* all = static_cast<unsigned char*>(pointer);
  for_each_tail_byte(bytes, seed, [&](Word i, unsigned char value) { all[i] = value; });
}

__global__ void check_kernel(const void* pointer, Word bytes, Word seed, Word delay,
                             Findings* findings) {
  wait_for(delay);
  const auto block = reinterpret_cast<Word>(pointer);
  const auto check = [&](Word offset, Word expected, Word found) {
    if (expected == found) return;
    report_wrong(findings, block, offset, seed, expected, found, differing_bytes(expected, found));
  };
  const auto* pairs = static_cast<const ulonglong2*>(pointer);
  const Word stride = Word{gridDim.x} * blockDim.x;
  for (Word i = Word{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes / 16; i += stride) {
    const ulonglong2 found = pairs[i];
    check(16 * i, pattern_word(seed, 2 * i), found.x);
    check(16 * i + 8, pattern_word(seed, 2 * i + 1), found.y);
  }
  const auto* all = static_cast<const unsigned char*>(pointer);
  for_each_tail_byte(bytes, seed,
                     [&](Word i, unsigned char expected) { check(i, expected, all[i]); });
  if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&findings->checked_bytes, bytes);
}

unsigned blocks_for(Bytes bytes) {
  const std::uint64_t pairs = bytes.count / 16 + 1;
  return static_cast<unsigned>(
      std::min<std::uint64_t>((pairs + kThreads - 1) / kThreads, kMostBlocks));
}

Status status_of(const char* call, cudaError_t result) {
  if (result == cudaSuccess) return {};
  return Error(ErrorCode::device, std::string(call) + ": " + cudaGetErrorName(result) + " (" +
                                      cudaGetErrorString(result) + ")");
}

Status check_aligned(const void* pointer) {
  if (Address::of(pointer).value % 16 == 0) return {};
  return Error(ErrorCode::invalid_argument, "a pattern starts at a multiple of 16 bytes");
}

}  // namespace

std::string PatternReport::describe() const {
  if (wrong_bytes == 0) return std::to_string(checked_bytes) + " bytes checked, none wrong";
  char first[160];
  std::snprintf(first, sizeof(first),
                "block 0x%llx (seed 0x%llx), offset %llu, expected 0x%016llx, found 0x%016llx",
                Word{first_block.value}, Word{first_seed}, Word{first_offset.count},
                Word{first_expected}, Word{first_found});
  return std::to_string(checked_bytes) + " bytes checked, " + std::to_string(wrong_bytes) +
         " wrong, first seen: " + first;
}

struct PatternKernels::Impl {
  int ordinal = 0;
  cudaStream_t copies = nullptr;  // for report(), beside all other streams
  Findings* findings = nullptr;
};

PatternKernels::PatternKernels(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

PatternKernels::~PatternKernels() {
  cudaSetDevice(impl_->ordinal);
  const RelaxedCapture relaxed;
  if (impl_->findings != nullptr) cudaFree(impl_->findings);
  if (impl_->copies != nullptr) cudaStreamDestroy(impl_->copies);
}

Result<std::unique_ptr<PatternKernels>> PatternKernels::open(int ordinal) {
  const cudaError_t found = cudaSetDevice(ordinal);
  if (found != cudaSuccess) {
    return Error(ErrorCode::unavailable, status_of("cudaSetDevice", found).error().message());
  }
  std::unique_ptr<PatternKernels> kernels(new PatternKernels(std::make_unique<Impl>()));
  Impl& impl = *kernels->impl_;
  impl.ordinal = ordinal;
  const RelaxedCapture relaxed;
  cudaError_t result = cudaStreamCreateWithFlags(&impl.copies, cudaStreamNonBlocking);
  if (result == cudaSuccess) result = cudaMalloc(&impl.findings, sizeof(Findings));
  if (result == cudaSuccess) {
    result = cudaMemsetAsync(impl.findings, 0, sizeof(Findings), impl.copies);
  }
  if (result == cudaSuccess) result = cudaStreamSynchronize(impl.copies);
  if (Status done = status_of("opening the pattern kernels", result); !done) {
    return std::move(done).error();
  }
  return Result<std::unique_ptr<PatternKernels>>(std::move(kernels));
}

Status PatternKernels::write(Stream stream, void* pointer, Bytes bytes, std::uint64_t seed,
                             Nanoseconds delay) {
  if (bytes == 0_B) return {};
  if (Status aligned = check_aligned(pointer); !aligned) return aligned;
  if (Status set = status_of("cudaSetDevice", cudaSetDevice(impl_->ordinal)); !set) return set;
  write_kernel<<<blocks_for(bytes), kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      pointer, bytes.count, seed, static_cast<Word>(delay.count));
  return status_of("launching the kernel that writes a pattern", cudaGetLastError());
}

Status PatternKernels::check(Stream stream, const void* pointer, Bytes bytes, std::uint64_t seed,
                             Nanoseconds delay) {
  if (bytes == 0_B) return {};
  if (Status aligned = check_aligned(pointer); !aligned) return aligned;
  if (Status set = status_of("cudaSetDevice", cudaSetDevice(impl_->ordinal)); !set) return set;
  check_kernel<<<blocks_for(bytes), kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      pointer, bytes.count, seed, static_cast<Word>(delay.count), impl_->findings);
  return status_of("launching the kernel that checks a pattern", cudaGetLastError());
}

Result<PatternReport> PatternKernels::report() const {
  Findings found{};
  const RelaxedCapture relaxed;
  cudaError_t result = cudaSetDevice(impl_->ordinal);
  if (result == cudaSuccess) {
    result = cudaMemcpyAsync(&found, impl_->findings, sizeof(found), cudaMemcpyDeviceToHost,
                             impl_->copies);
  }
  if (result == cudaSuccess) result = cudaStreamSynchronize(impl_->copies);
  if (Status done = status_of("reading what the checks found", result); !done) {
    return std::move(done).error();
  }
  PatternReport report;
  report.checked_bytes = found.checked_bytes;
  report.wrong_bytes = found.wrong_bytes;
  report.first_block = {found.block};
  report.first_offset = {found.offset};
  report.first_seed = found.seed;
  report.first_expected = found.expected;
  report.first_found = found.found;
  return report;
}

}  // namespace weir
