// SPDX-License-Identifier: Apache-2.0
// Kernels of the benchmark and the scenarios: work that takes time and touches memory, buffers
// filled and checked.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/contents.h"
#include "comm/ranks.h"
#include "pattern/relaxed_capture.h"
#include "weir/cuda_device.h"

namespace weir {
namespace {

// The least that a kernel takes, whatever it does.
constexpr double kShortestNs = 1500;
// So many waves of blocks, so that a multiprocessor that others use gets fewer of them.
constexpr unsigned kWaves = 4;
constexpr double kWavesFromNs = 50'000;

using Word = unsigned long long;

constexpr unsigned kMostBlocks = 1024;
constexpr unsigned kThreads = 256;  // of a block
constexpr int kMostTouched = 64;    // ranges of one kernel
// What a kernel takes as its argument, of which there are 4 KiB.
struct Ranges {
  Access all[kMostTouched];  // at multiples of 16; so many bytes as are a multiple are touched
  int count = 0;
};
static_assert(sizeof(Ranges) < 4096);

// Never stored to: so that the compiler leaves the work in.
__device__ float unused;

__device__ Word first_index() { return Word{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ Word all_threads() { return Word{gridDim.x} * blockDim.x; }

__device__ Word touch(const Access& range, Word value) {
  auto* const pairs = reinterpret_cast<ulonglong2*>(range.address.value);
  for (Word i = first_index(); i < range.bytes.count / 16; i += all_threads()) {
    if (range.kind == Access::Kind::write) {
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

__global__ void fill_kernel(Contents contents, Word count) {
  auto* const at = static_cast<float*>(const_cast<void*>(contents.operation.send));
  for (Word i = first_index(); i < count; i += all_threads()) at[i] = contents.to_send(i);
}

__global__ void check_kernel(Contents contents, Word count, Word* wrong) {
  const auto* const at = static_cast<const float*>(contents.operation.receive);
  Word found = 0;
  for (Word i = first_index(); i < count; i += all_threads()) {
    if (at[i] != contents.to_receive(i)) ++found;  // a NaN is wrong, too
  }
  if (found > 0) atomicAdd(wrong, found);
}

unsigned blocks_for(Word elements) {
  return static_cast<unsigned>(std::min<Word>((elements + kThreads - 1) / kThreads, kMostBlocks));
}

cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

void check(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw Exception(ErrorCode::device, std::string(call) + ": " + cudaGetErrorName(error) + " (" +
                                         cudaGetErrorString(error) + ")");
}

// Touches all, and then each thread does `rounds` of arithmetic.
void launch_work(cudaStream_t stream, std::span<const Access> touched, std::uint64_t rounds,
                 unsigned blocks) {
  if (touched.size() > kMostTouched) check("too many ranges", cudaErrorInvalidValue);
  Ranges ranges;
  ranges.count = static_cast<int>(touched.size());
  std::copy(touched.begin(), touched.end(), ranges.all);
  work_kernel<<<blocks, kThreads, 0, stream>>>(ranges, rounds);
  check("launching a kernel that works", cudaGetLastError());
}

// How long work takes on a GPU, so that a kernel of a wanted duration can be made: it does a fixed
// amount of work, and takes longer where others use the GPU too.
struct KernelRates {
  double ns_per_round = 0;  // where every thread that the GPU runs at once does it
  double ns_per_byte = 0;   // read or written
  unsigned blocks = 0;      // that the GPU runs at once
  unsigned multiprocessors = 0;
};

// How long such a kernel takes by the host's clock, in nanoseconds: the least of five.
double time_work(std::span<const Access> touched, std::uint64_t rounds, unsigned blocks) {
  std::chrono::nanoseconds least = std::chrono::hours(1);
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    launch_work({}, touched, rounds, blocks);
    check("measuring the GPU's speed", cudaDeviceSynchronize());
    least = std::min<std::chrono::nanoseconds>(least, std::chrono::steady_clock::now() - begin);
  }
  return static_cast<double>(least.count());
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(CudaDevice& device, const KernelRates& rates, int rank, int ranks)
      : device_(device), rates_(rates), rank_(rank), ranks_(ranks) {
    enter();
    check("cudaMalloc", cudaMalloc(reinterpret_cast<void**>(&number_), sizeof *number_));
  }
  ~CudaKernels() override {
    (void)cudaSetDevice(device_.ordinal());
    cudaFree(number_);
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  Stream new_stream() override {
    enter();
    cudaStream_t stream = nullptr;
    check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    streams_.push_back(stream);
    return need(device_.stream(stream));
  }

  void work(Stream stream, std::span<const Access> accesses, Nanoseconds duration) override {
    enter();
    Bytes bytes;
    for (const Access& access : accesses) bytes += access.bytes;
    const double left = static_cast<double>(duration.count) - kShortestNs -
                        static_cast<double>(bytes.count) * rates_.ns_per_byte;
    unsigned waves = left > kWavesFromNs ? kWaves : 1;
    const double rounds = std::max(0.0, left / rates_.ns_per_round) / waves;
    const bool brief = rounds < 1 && bytes < 1_MiB;
    launch_work(handle_of(stream), accesses, static_cast<std::uint64_t>(rounds),
                brief ? rates_.multiprocessors : rates_.blocks * waves);
  }

  void fill(Stream stream, std::span<const Operation> operations, std::uint64_t seed) override {
    enter();
    for (const Operation& operation : operations) {
      const Bytes written = operation.writes(ranks_, rank_);
      if (written > 0_B) {  // bytes that no filled buffer has throughout
        check("cudaMemsetAsync",
              cudaMemsetAsync(operation.receive, 0xA5, written.count, handle_of(stream)));
      }
      const Word count = operation.reads(ranks_, rank_).count / sizeof(float);
      if (count == 0) continue;
      fill_kernel<<<blocks_for(count), kThreads, 0, handle_of(stream)>>>(
          {operation, rank_, ranks_, seed}, count);
      check("launching a kernel that fills", cudaGetLastError());
    }
  }

  // Sets the number in device memory to 0, lets kernels add to it, and reads it.
  std::optional<std::uint64_t> count_wrong(Stream stream, std::span<const Operation> operations,
                                           std::uint64_t seed) override {
    enter();
    unsigned long long wrong = 0;
    check("cudaMemsetAsync", cudaMemsetAsync(number_, 0, sizeof wrong, handle_of(stream)));
    for (const Operation& operation : operations) {
      const Word count = operation.writes(ranks_, rank_).count / sizeof(float);
      if (count == 0) continue;
      check_kernel<<<blocks_for(count), kThreads, 0, handle_of(stream)>>>(
          {operation, rank_, ranks_, seed}, count, number_);
      check("launching a kernel that checks", cudaGetLastError());
    }
    finish(stream);
    const RelaxedCapture relaxed;
    check("cudaMemcpyAsync", cudaMemcpyAsync(&wrong, number_, sizeof wrong, cudaMemcpyDeviceToHost,
                                             handle_of(stream)));
    check("cudaStreamSynchronize", cudaStreamSynchronize(handle_of(stream)));
    return wrong;
  }

  // Looks again and again, as nccl-tests does: sleeping would be in every time that is measured.
  void finish(Stream stream) override {
    enter();
    const RelaxedCapture relaxed;
    constexpr Nanoseconds kTimeout{std::int64_t{600} * 1'000'000'000};
    const Nanoseconds begin = device_.now();
    while (true) {
      const cudaError_t result = cudaStreamQuery(handle_of(stream));
      if (result == cudaSuccess) return;
      if (result != cudaErrorNotReady) check("cudaStreamQuery", result);
      if (device_.now() - begin > kTimeout) {
        throw Exception(ErrorCode::device,
                        "work on stream " + std::to_string(stream.id) + " has not ended in 600 s");
      }
      std::this_thread::yield();
    }
  }
  Nanoseconds warm_up_time() const override { return 100_ms; }

 private:
  void enter() const { check("cudaSetDevice", cudaSetDevice(device_.ordinal())); }

  CudaDevice& device_;
  const KernelRates rates_;
  const int rank_, ranks_;
  std::vector<cudaStream_t> streams_;
  unsigned long long* number_ = nullptr;  // in device memory
};

// The host waits, some 50 ms. No capture goes on.
KernelRates measure_kernels(int ordinal) {
  KernelRates rates;
  int processors = 0, threads = 0;
  check("cudaSetDevice", cudaSetDevice(ordinal));
  check("cudaDeviceGetAttribute",
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, ordinal));
  check("cudaDeviceGetAttribute",
        cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, ordinal));
  // A capture does not permit the first launch of a kernel that is not loaded.
  cudaFuncAttributes attributes;
  check("loading a kernel", cudaFuncGetAttributes(&attributes, work_kernel));
  check("loading a kernel", cudaFuncGetAttributes(&attributes, fill_kernel));
  check("loading a kernel", cudaFuncGetAttributes(&attributes, check_kernel));
  rates.multiprocessors = static_cast<unsigned>(processors);
  rates.blocks = rates.multiprocessors * static_cast<unsigned>(threads) / kThreads;

  constexpr Bytes kMemory = 512_MiB;
  constexpr std::uint64_t kRounds = 100'000;
  void* memory = nullptr;
  check("cudaMalloc", cudaMalloc(&memory, kMemory.count));
  const std::unique_ptr<void, decltype(&cudaFree)> owner(memory, &cudaFree);
  // The first wakes the GPU. Of the others the launch of an empty one is taken off.
  const Access all = Writes(memory, kMemory);
  (void)time_work({}, 10 * kRounds, rates.blocks);
  const double empty = time_work({}, 0, rates.blocks);
  rates.ns_per_round =
      (time_work({}, kRounds, rates.blocks) - empty) / static_cast<double>(kRounds);
  rates.ns_per_byte =
      (time_work({&all, 1}, 0, rates.blocks) - empty) / static_cast<double>(kMemory.count);
  return rates;
}

}  // namespace

std::unique_ptr<Kernels> open_cuda_kernels(CudaDevice& device, int rank, int ranks) {
  static std::map<int, KernelRates> measured;  // by GPU
  const int ordinal = device.ordinal();
  if (!measured.contains(ordinal)) measured[ordinal] = measure_kernels(ordinal);
  return std::make_unique<CudaKernels>(device, measured[ordinal], rank, ranks);
}

}  // namespace weir
