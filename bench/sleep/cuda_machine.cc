// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "bench/sleep/machine.h"
#include "weir/cuda_device.h"

namespace weir::sleep_bench {
namespace {

void check(const char* call, cudaError_t result) {
  if (result == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(result));
}

class Gpu final : public Machine {
 public:
  explicit Gpu(std::unique_ptr<CudaDevice> device) : device_(std::move(device)) {
    check("cudaSetDevice", cudaSetDevice(0));
  }
  ~Gpu() override {
    for (const cudaStream_t stream : streams_) (void)cudaStreamDestroy(stream);
  }
  Device& device() override { return *device_; }
  std::string name() const override { return device_->name(); }
  Stream new_stream() override {
    cudaStream_t made = nullptr;
    check("cudaStreamCreate", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    streams_.push_back(made);
    Result<Stream> stream = device_->stream(made);
    if (!stream) throw std::runtime_error(stream.error().message());
    return *stream;
  }
  void fill(void* memory, Bytes bytes, unsigned char value, Stream stream) override {
    check("cudaMemsetAsync", cudaMemsetAsync(memory, value, bytes.count, handle(stream)));
  }
  void copy(void* to, const void* from, Bytes bytes, Stream stream) override {
    check("cudaMemcpyAsync",
          cudaMemcpyAsync(to, from, bytes.count, cudaMemcpyDeviceToDevice, handle(stream)));
  }
  void synchronize() override { check("cudaDeviceSynchronize", cudaDeviceSynchronize()); }
  std::string digest(const void* memory, Bytes bytes) override {
    std::vector<std::uint64_t> words(bytes.count / sizeof(std::uint64_t));
    check("cudaMemcpy", cudaMemcpy(words.data(), memory, words.size() * sizeof(words[0]),
                                   cudaMemcpyDeviceToHost));
    std::uint64_t hash = 1469598103934665603U;  // FNV-1a, a word at a time
    for (const std::uint64_t word : words) hash = (hash ^ word) * 1099511628211U;
    return std::to_string(hash);
  }

 private:
  static cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
  const std::unique_ptr<CudaDevice> device_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace

std::unique_ptr<Machine> gpu() {
  const Result<int> count = CudaDevice::count();
  if (!count || *count == 0) return nullptr;
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(0);
  if (!device) throw std::runtime_error(device.error().message());
  return std::make_unique<Gpu>(*std::move(device));
}

}  // namespace weir::sleep_bench
