// SPDX-License-Identifier: Apache-2.0
#include "bench/graph_pool/gpu.h"

#include "bench/peers/cuda_check.h"

namespace weir::graph_pool {

using peers::check_cuda;

Gpu::Gpu() {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(0);
  if (!device.ok() && device.error().code() == ErrorCode::unavailable) {
    throw NoGpu("no GPU here: " + device.error().message());
  }
  device_ = need("opening the device", std::move(device));
  check_cuda("cudaSetDevice", cudaSetDevice(0));
  check_cuda("cudaEventCreate", cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
}

Gpu::~Gpu() {
  cudaEventDestroy(event_);
  for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

std::string Gpu::description() const {
  int driver = 0;
  int runtime = 0;
  check_cuda("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
  check_cuda("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
  return device_->name() + ", CUDA " + std::to_string(runtime) + ", driver's " +
         std::to_string(driver);
}

Stream Gpu::new_stream() {
  cudaStream_t stream = nullptr;
  check_cuda("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  streams_.push_back(stream);
  return need("identifying a stream", device_->stream(stream));
}

std::vector<Stream> Gpu::new_streams(unsigned count) {
  std::vector<Stream> streams;
  for (unsigned i = 0; i < count; ++i) streams.push_back(new_stream());
  return streams;
}

void Gpu::order(Stream earlier, Stream later) {
  if (earlier == later) return;
  check_cuda("cudaEventRecord", cudaEventRecord(event_, handle_of(earlier)));
  check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(handle_of(later), event_, 0));
}

void Gpu::synchronize() { check_cuda("cudaDeviceSynchronize", cudaDeviceSynchronize()); }

Words::Words(unsigned count) {
  check_cuda("cudaMalloc", cudaMalloc(reinterpret_cast<void**>(&words_), count * sizeof(Word)));
  check_cuda("cudaMemset", cudaMemset(words_, 0, count * sizeof(Word)));
  check_cuda("cudaDeviceSynchronize", cudaDeviceSynchronize());  // the other streams do not wait
}

Words::~Words() { cudaFree(words_); }

Word Words::read(unsigned index) const {
  Word word = 0;
  check_cuda("cudaDeviceSynchronize", cudaDeviceSynchronize());
  check_cuda("cudaMemcpy", cudaMemcpy(&word, at(index), sizeof(word), cudaMemcpyDeviceToHost));
  return word;
}

}  // namespace weir::graph_pool
