// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda_kernels.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "comm/rank_kernels.h"
#include "pattern/relaxed_capture.h"

namespace weir {
namespace {

// The least that a kernel takes, whatever it does.
constexpr double kShortestNs = 1500;
// So many waves of blocks, so that a multiprocessor that others use gets fewer of them.
constexpr unsigned kWaves = 4;
constexpr double kWavesFromNs = 50'000;

using rank_kernels::status_of;

cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

// How long such a kernel takes by the host's clock, in nanoseconds: the least of five.
Result<double> time_work(std::span<const rank_kernels::Touched> touched, std::uint64_t rounds,
                         unsigned blocks) {
  std::chrono::nanoseconds least = std::chrono::hours(1);
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    Status ran = rank_kernels::work({}, touched, rounds, blocks);
    if (ran) ran = status_of("measuring the GPU's speed", cudaDeviceSynchronize());
    if (!ran) return std::move(ran).error();
    least = std::min<std::chrono::nanoseconds>(least, std::chrono::steady_clock::now() - begin);
  }
  return static_cast<double>(least.count());
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(CudaDevice& device, const KernelRates& rates, int rank, int ranks,
              Nanoseconds timeout)
      : device_(device), rates_(rates), rank_(rank), ranks_(ranks), timeout_(timeout) {}
  ~CudaKernels() override {
    if (!enter()) return;
    if (number_ != nullptr) cudaFree(number_);
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  Status open() {
    if (Status entered = enter(); !entered) return entered;
    return status_of("cudaMalloc", cudaMalloc(reinterpret_cast<void**>(&number_), sizeof *number_));
  }

  Result<Stream> new_stream() override {
    if (Status entered = enter(); !entered) return std::move(entered).error();
    cudaStream_t stream = nullptr;
    const cudaError_t made = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (Status good = status_of("cudaStreamCreateWithFlags", made); !good) {
      return std::move(good).error();
    }
    streams_.push_back(stream);
    return device_.stream(stream);
  }

  Status work(Stream stream, std::span<const UsedMemory> reads, std::span<const UsedMemory> writes,
              Nanoseconds duration) override {
    if (Status entered = enter(); !entered) return entered;
    std::vector<rank_kernels::Touched> touched;
    std::uint64_t bytes = 0;
    for (const auto& [ranges, written] : {std::pair(reads, false), std::pair(writes, true)}) {
      for (const UsedMemory& range : ranges) {
        touched.push_back({range.pointer, range.bytes.count, written});
        bytes += range.bytes.count;
      }
    }
    const double left = static_cast<double>(duration.count) - kShortestNs -
                        static_cast<double>(bytes) * rates_.ns_per_byte;
    unsigned waves = left > kWavesFromNs ? kWaves : 1;
    const double rounds = std::max(0.0, left / rates_.ns_per_round) / waves;
    const bool brief = rounds < 1 && bytes < (1u << 20);
    return rank_kernels::work(stream, touched, static_cast<std::uint64_t>(rounds),
                              brief ? rates_.multiprocessors : rates_.blocks * waves);
  }

  Status fill(Stream stream, std::span<const Operation> operations, std::uint64_t seed) override {
    if (Status entered = enter(); !entered) return entered;
    for (const Operation& operation : operations) {
      const Bytes bytes = operation.writes(ranks_, rank_);
      if (bytes == 0_B) continue;
      if (Status done = rank_kernels::spoil(stream, operation.receive, bytes); !done) return done;
    }
    for (const Piece& piece : sent_pieces(operations, rank_, ranks_, seed)) {
      if (Status done = rank_kernels::fill(stream, piece); !done) return done;
    }
    return {};
  }

  // Sets the number in device memory to 0, lets kernels add to it, and reads it.
  Result<std::optional<std::uint64_t>> count_wrong(Stream stream,
                                                   std::span<const Operation> operations,
                                                   std::uint64_t seed) override {
    if (Status entered = enter(); !entered) return std::move(entered).error();
    unsigned long long wrong = 0;
    Status done =
        status_of("cudaMemsetAsync", cudaMemsetAsync(number_, 0, sizeof wrong, handle_of(stream)));
    for (const Piece& piece : received_pieces(operations, rank_, ranks_, seed)) {
      if (done) done = rank_kernels::check(stream, piece, number_);
    }
    if (done) done = finish(stream);
    if (!done) return std::move(done).error();
    const RelaxedCapture relaxed;
    cudaError_t read =
        cudaMemcpyAsync(&wrong, number_, sizeof wrong, cudaMemcpyDeviceToHost, handle_of(stream));
    if (read == cudaSuccess) read = cudaStreamSynchronize(handle_of(stream));
    if (done = status_of("cudaMemcpyAsync", read); !done) return std::move(done).error();
    return std::optional<std::uint64_t>(wrong);
  }
  std::optional<std::uint64_t> wrong_reads(const Graph&, std::uint64_t) override { return {}; }

  // Looks again and again, as nccl-tests does: sleeping would be in every time that is measured.
  Status finish(Stream stream) override {
    if (Status entered = enter(); !entered) return entered;
    const RelaxedCapture relaxed;
    const Nanoseconds begin = now();
    while (true) {
      const cudaError_t result = cudaStreamQuery(handle_of(stream));
      if (result == cudaSuccess) return {};
      if (result != cudaErrorNotReady) return status_of("cudaStreamQuery", result);
      if (now() - begin > timeout_) return late(stream, timeout_);
      std::this_thread::yield();
    }
  }
  Nanoseconds warm_up_time() const override { return 100_ms; }
  Nanoseconds now() const override {
    return {std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
  }

 private:
  Status enter() const { return status_of("cudaSetDevice", cudaSetDevice(device_.ordinal())); }

  CudaDevice& device_;
  const KernelRates rates_;
  const int rank_, ranks_;
  const Nanoseconds timeout_;
  std::vector<cudaStream_t> streams_;
  unsigned long long* number_ = nullptr;  // in device memory
};

}  // namespace

Result<KernelRates> measure_kernels(int ordinal) {
  KernelRates rates;
  int processors = 0, threads = 0;
  cudaError_t result = cudaSetDevice(ordinal);
  if (result == cudaSuccess) {
    result = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, ordinal);
  }
  if (result == cudaSuccess) {
    result = cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, ordinal);
  }
  if (Status found = status_of("looking at the GPU", result); !found)
    return std::move(found).error();
  if (Status loaded = rank_kernels::load(); !loaded) return std::move(loaded).error();
  rates.multiprocessors = static_cast<unsigned>(processors);
  rates.blocks = rates.multiprocessors * static_cast<unsigned>(threads) / rank_kernels::kThreads;

  constexpr Bytes kMemory = 512_MiB;
  constexpr std::uint64_t kRounds = 100'000;
  void* memory = nullptr;
  const Status had = status_of("cudaMalloc", cudaMalloc(&memory, kMemory.count));
  if (!had) return had.error();
  const std::unique_ptr<void, decltype(&cudaFree)> owner(memory, &cudaFree);
  // The first wakes the GPU. Of the others the launch of an empty one is taken off.
  const rank_kernels::Touched all{memory, kMemory.count, true};
  const Result<double> times[] = {
      time_work({}, 10 * kRounds, rates.blocks), time_work({}, 0, rates.blocks),
      time_work({}, kRounds, rates.blocks), time_work({&all, 1}, 0, rates.blocks)};
  for (const Result<double>& time : times) {
    if (!time) return time.error();
  }
  rates.ns_per_round = (*times[2] - *times[1]) / static_cast<double>(kRounds);
  rates.ns_per_byte = (*times[3] - *times[1]) / static_cast<double>(kMemory.count);
  return rates;
}

Result<std::unique_ptr<Kernels>> open_cuda_kernels(CudaDevice& device, const KernelRates& rates,
                                                   int rank, int ranks, Nanoseconds timeout) {
  auto kernels = std::make_unique<CudaKernels>(device, rates, rank, ranks, timeout);
  if (Status opened = kernels->open(); !opened) return std::move(opened).error();
  return std::unique_ptr<Kernels>(std::move(kernels));
}

}  // namespace weir
