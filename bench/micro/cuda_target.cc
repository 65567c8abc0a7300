// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "bench/micro/target.h"
#include "weir/cuda_device.h"

namespace weir::bench {
namespace {

class CudaTarget final : public Target {
 public:
  explicit CudaTarget(std::unique_ptr<CudaDevice> device) : device_(std::move(device)) {}
  ~CudaTarget() override {
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  Device& device() override { return *device_; }

  void* stream_handle(int number) override {
    while (streams_.size() <= static_cast<std::size_t>(number)) {
      cudaStream_t stream = nullptr;
      const cudaError_t made = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      if (made != cudaSuccess) {
        throw std::runtime_error(std::string("cudaStreamCreateWithFlags: ") +
                                 cudaGetErrorString(made));
      }
      streams_.push_back(stream);
    }
    return streams_[static_cast<std::size_t>(number)];
  }

 private:
  const std::unique_ptr<CudaDevice> device_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace

Result<std::unique_ptr<Target>> open_cuda_target() {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(0);
  if (!device.ok()) return std::move(device).error();
  if (const cudaError_t set = cudaSetDevice(0); set != cudaSuccess) {
    return Error(ErrorCode::device, std::string("cudaSetDevice: ") + cudaGetErrorString(set));
  }
  return std::unique_ptr<Target>(std::make_unique<CudaTarget>(std::move(*device)));
}

}  // namespace weir::bench
