// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/fake_runtime.h"

#include <c10/core/Device.h>
#include <c10/cuda/CUDAMacros.h>

// Of libtorch_cuda.so, which tells libc10_cuda.so so.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*answer)(DeviceIndex));
}

namespace weir::pytorch {
namespace {

constexpr int kDevices = 2;

constinit thread_local int current_device = 0;
constinit thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

[[maybe_unused]] const bool pytorch_was_told = [] {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  return true;
}();

}  // namespace

FakeRuntime& fake_runtime() {
  static auto* const runtime = new FakeRuntime;
  return *runtime;
}
int current_device_of_fake_runtime() { return current_device; }
cudaStreamCaptureMode capture_mode_of_fake_runtime() { return capture_mode; }

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  ++fake_runtime().errors_taken;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = fake_runtime().free_bytes;
  *total = 2 * *free;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyDeviceToDevice) return cudaErrorInvalidMemcpyDirection;
  fake_runtime().copies.push_back({to, -1, from, -1, bytes, stream});
  return fake_runtime().answer;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  fake_runtime().copies.push_back({to, to_device, from, from_device, bytes, stream});
  return fake_runtime().answer;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  if (flags != 0) return cudaErrorInvalidValue;
  fake_runtime().peers.emplace_back(current_device, peer);
  return fake_runtime().answer;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
  fake_runtime().capture_modes.push_back(capture_mode);
  *stream = fake_runtime().make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  if (priority > 0 || priority < -5) return cudaErrorInvalidValue;
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned int* flags) {
  *flags = fake_runtime().stream_flags;
  ++fake_runtime().flags_asked;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}

}  // extern "C"

}  // namespace weir::pytorch
