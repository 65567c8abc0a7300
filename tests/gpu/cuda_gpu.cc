// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <mutex>
#include <utility>
#include <vector>

#include "pattern/pattern.h"
#include "pattern/relaxed_capture.h"
#include "tests/gpu/gpu.h"
#include "weir/cuda_device.h"

namespace weir::test {
namespace {

cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

Status status_of(const char* call, cudaError_t result) {
  if (result == cudaSuccess) return {};
  return Error(ErrorCode::device, std::string(call) + ": " + cudaGetErrorString(result));
}

class CudaGpu final : public Gpu {
 public:
  CudaGpu(std::unique_ptr<CudaDevice> device, std::unique_ptr<PatternKernels> kernels)
      : device_(std::move(device)), kernels_(std::move(kernels)) {}
  ~CudaGpu() override {
    const RelaxedCapture relaxed;
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  Device& device() override { return *device_; }

  Result<Stream> new_stream() override {
    if (Status entered = enter(); !entered) return std::move(entered).error();
    const RelaxedCapture relaxed;
    cudaStream_t stream = nullptr;
    const cudaError_t made = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (Status done = status_of("cudaStreamCreateWithFlags", made); !done) {
      return std::move(done).error();
    }
    const std::scoped_lock lock(mutex_);
    streams_.push_back(stream);
    return device_->stream(stream);
  }

  Status destroy_stream(Stream stream) override {
    if (Status entered = enter(); !entered) return entered;
    {
      const std::scoped_lock lock(mutex_);
      std::erase(streams_, handle_of(stream));
    }
    const RelaxedCapture relaxed;
    return status_of("cudaStreamDestroy", cudaStreamDestroy(handle_of(stream)));
  }

  Status write(Stream stream, const Contents& contents, Nanoseconds delay) override {
    return kernels_->write(stream, contents.pointer, contents.bytes, contents.pattern, delay);
  }
  Status check(Stream stream, const Contents& contents, Nanoseconds delay) override {
    return kernels_->check(stream, contents.pointer, contents.bytes, contents.pattern, delay);
  }

  Status order(Stream earlier, Stream later) override {
    if (Status entered = enter(); !entered) return entered;
    cudaEvent_t event = nullptr;
    cudaError_t result = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (result != cudaSuccess) return status_of("cudaEventCreateWithFlags", result);
    result = cudaEventRecord(event, handle_of(earlier));
    if (result == cudaSuccess) result = cudaStreamWaitEvent(handle_of(later), event, 0);
    const RelaxedCapture relaxed;
    cudaEventDestroy(event);
    return status_of("ordering two streams", result);
  }

  Status synchronize(Stream stream) override {
    if (Status entered = enter(); !entered) return entered;
    const RelaxedCapture relaxed;
    return status_of("cudaStreamSynchronize", cudaStreamSynchronize(handle_of(stream)));
  }

  Result<Findings> findings() override {
    Result<PatternReport> report = kernels_->report();
    if (!report.ok()) return std::move(report).error();
    return Findings{.wrong = report->wrong_bytes, .description = report->describe()};
  }

 private:
  Status enter() { return status_of("cudaSetDevice", cudaSetDevice(device_->ordinal())); }

  const std::unique_ptr<CudaDevice> device_;
  const std::unique_ptr<PatternKernels> kernels_;
  std::mutex mutex_;
  std::vector<cudaStream_t> streams_;  // guarded by mutex_
};

}  // namespace

Result<std::unique_ptr<Gpu>> open_cuda_gpu(int ordinal) {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(ordinal);
  if (!device.ok()) return std::move(device).error();
  Result<std::unique_ptr<PatternKernels>> kernels = PatternKernels::open(ordinal);
  if (!kernels.ok()) return std::move(kernels).error();
  return std::unique_ptr<Gpu>(std::make_unique<CudaGpu>(std::move(*device), std::move(*kernels)));
}

}  // namespace weir::test
