// SPDX-License-Identifier: Apache-2.0
// libweir_no_cuda.so: what PyTorch's allocator asks of CUDA's runtime, on a GPU that is none, at no
// cost: so that its host time can be compared where there is no GPU. bench/peers/run --no-gpu has
// it loaded before the runtime, which it stands before.
//
// Memory is addresses that nothing lies at, each once; events are done at once; no stream is ever
// captured. Calls that are missing here are the runtime's own, and fail without a GPU.
//
// Threads: any, as with the runtime.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#define WEIR_STANDS_FOR extern "C" __attribute__((visibility("default")))

namespace {

constexpr std::size_t kBytes = std::size_t{140} << 30;
constexpr std::uint64_t kGranularity = 2 << 20;  // as cudaMalloc's, of large blocks

std::atomic<std::uint64_t> next_address{std::uint64_t{1} << 44};
std::atomic<std::uintptr_t> next_handle{1};

template <class Handle>
Handle new_handle() {
  return reinterpret_cast<Handle>(next_handle.fetch_add(1));  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

// By this the program knows that it is loaded.
WEIR_STANDS_FOR void weir_no_cuda() {}

WEIR_STANDS_FOR cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaSetDevice(int) { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaDriverGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  properties->totalGlobalMem = kBytes;
  return std::strcpy(properties->name, "none"), cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  return *can = 0, cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaGetLastError() { return cudaSuccess; }

WEIR_STANDS_FOR cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  const std::uint64_t whole = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  const std::uint64_t at = next_address.fetch_add(whole);
  return *memory = reinterpret_cast<void*>(at), cudaSuccess;  // NOLINT(performance-no-int-to-ptr)
}
WEIR_STANDS_FOR cudaError_t cudaFree(void*) { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return *free = *total = kBytes, cudaSuccess;
}

WEIR_STANDS_FOR cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new_handle<cudaEvent_t>(), cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

WEIR_STANDS_FOR cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = *greatest = 0, cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = new_handle<cudaStream_t>(), cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
// With CUDA 12 the name is a macro for another version's, without the edges.
#if CUDART_VERSION >= 13000
#define WEIR_EDGES const cudaGraphEdgeData**,
#else
#define WEIR_EDGES
#endif
WEIR_STANDS_FOR cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                                     unsigned long long* id, cudaGraph_t*,
                                                     const cudaGraphNode_t**,
                                                     WEIR_EDGES std::size_t*) {
  if (id != nullptr) *id = 0;
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
