// Kernels of a rank on a real GPU.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "comm/ranks.h"
#include "weir/cuda_device.h"

namespace weir {

// How long work takes on a GPU, so that a kernel of a wanted duration can be made: it does a fixed
// amount of work, and takes longer where others use the GPU too.
struct KernelRates {
  double ns_per_round = 0;  // where every thread that the GPU runs at once does it
  double ns_per_byte = 0;   // read or written
  unsigned blocks = 0;      // that the GPU runs at once
  unsigned multiprocessors = 0;
};
// The host waits, some 50 ms. No capture goes on. Errors: device.
Result<KernelRates> measure_kernels(int ordinal);

class CudaKernels final : public Kernels {
 public:
  // `device` lives longer. Waiting for a stream ends with an error after `timeout`. Errors: device.
  static Result<std::unique_ptr<CudaKernels>> open(CudaDevice& device, const KernelRates& rates,
                                                   int rank, int ranks, Nanoseconds timeout);
  ~CudaKernels() override;

  Result<Stream> new_stream() override;
  Status work(Stream stream, std::span<const UsedMemory> reads, std::span<const UsedMemory> writes,
              Nanoseconds duration) override;
  Status fill(Stream stream, std::span<const Operation> operations, std::uint64_t seed) override;
  Result<std::optional<std::uint64_t>> count_wrong(Stream stream,
                                                   std::span<const Operation> operations,
                                                   std::uint64_t seed) override;
  Result<std::optional<std::uint64_t>> digest(Stream stream, UsedMemory range) override;
  std::optional<std::uint64_t> wrong_reads(const Graph&, std::uint64_t) override { return {}; }
  Status finish(Stream stream) override;
  Nanoseconds warm_up_time() const override { return 100_ms; }
  Nanoseconds now() const override;

 private:
  CudaKernels(CudaDevice& device, const KernelRates& rates, int rank, int ranks,
              Nanoseconds timeout)
      : device_(device), rates_(rates), rank_(rank), ranks_(ranks), timeout_(timeout) {}
  Status enter() const;
  // Sets the number to 0, runs `add`, which adds to it, and reads it.
  template <class Add>
  Result<std::uint64_t> counted(Stream stream, Add&& add);

  CudaDevice& device_;
  const KernelRates rates_;
  const int rank_, ranks_;
  const Nanoseconds timeout_;
  std::vector<void*> streams_;
  unsigned long long* number_ = nullptr;  // in device memory
};

}  // namespace weir
