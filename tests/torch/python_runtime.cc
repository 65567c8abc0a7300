// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime as far as PyTorch's Python calls it for tensors that nobody computes with, where
// there is no GPU: one device of 16 GiB, addresses without memory, streams on which nothing runs.
// without_cuda.py makes a library of it. What is not here fails. NCCL has communicators without
// operations, of 100 bytes that can be suspended.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t kTotal = std::size_t{16} << 30, kFree = std::size_t{15} << 30;
constexpr std::uintptr_t kPage = 2 << 20;

std::atomic<std::uintptr_t> next_address{std::uintptr_t{1} << 44}, next_handle{0x1000};

template <class Handle>
cudaError_t make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(next_handle.fetch_add(0x100));
  return cudaSuccess;
}

struct NcclId {
  char bytes[128];
};
struct FakeComm {
  std::uint64_t suspended = 0;

  int become(std::uint64_t state) {
    if (suspended == state) return 5;  // ncclInvalidUsage
    suspended = state;
    return 0;
  }
};

}  // namespace

extern "C" {

bool fake_has_context(signed char) { return true; }  // simulated.py

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaInitDevice(int, unsigned, unsigned) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 0, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* device, int) {
  std::memset(device, 0, sizeof *device);
  std::strcpy(device->name, "none");
  device->major = 9;
  device->totalGlobalMem = kTotal;
  device->multiProcessorCount = 132;
  device->warpSize = 32;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "error"; }
const char* cudaGetErrorString(cudaError_t) { return "the fake runtime has no such function"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return *free = kFree, *total = kTotal, cudaSuccess;
}
cudaError_t cudaMalloc(void** at, std::size_t bytes) {
  if (bytes > kFree) return cudaErrorMemoryAllocation;
  const std::uintptr_t size = (bytes + kPage - 1) / kPage * kPage;
  *at = reinterpret_cast<void*>(next_address.fetch_add(size));
  return cudaSuccess;
}
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaHostAlloc(void** at, std::size_t bytes, unsigned) {
  return *at = std::malloc(bytes), cudaSuccess;
}
cudaError_t cudaFreeHost(void* at) { return std::free(at), cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return make(stream);
}
cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned* flags) { return *flags = 0, cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t*) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make(event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

int ncclGetVersion(int* version) { return *version = 22907, 0; }
int ncclGetUniqueId(NcclId* id) { return *id = {}, 0; }
const char* ncclGetErrorString(int) { return "an error of the fake NCCL"; }
const char* ncclGetLastError(FakeComm*) { return ""; }
int ncclCommInitRankConfig(FakeComm** comm, int, NcclId, int, void*) {
  return *comm = new FakeComm{}, 0;
}
int ncclCommSplit(FakeComm*, int, int, FakeComm** comm, void*) { return *comm = new FakeComm{}, 0; }
int ncclCommUserRank(FakeComm*, int* rank) { return *rank = 0; }
int ncclCommCount(FakeComm*, int* ranks) { return *ranks = 1, 0; }
int ncclCommCuDevice(FakeComm*, int* device) { return *device = 0; }
int ncclCommGetAsyncError(FakeComm*, int* error) { return *error = 0; }
int ncclCommFinalize(FakeComm*) { return 0; }
int ncclCommAbort(FakeComm* comm) { return delete comm, 0; }
int ncclCommDestroy(FakeComm* comm) { return delete comm, 0; }
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
int ncclCommSuspend(FakeComm* comm, int) { return comm->become(1); }
int ncclCommResume(FakeComm* comm) { return comm->become(0); }
int ncclCommMemStats(FakeComm* comm, int what, std::uint64_t* value) {
  const std::uint64_t stats[]{100, comm->suspended, 7, 107};
  return *value = stats[what], 0;
}

}  // extern "C"
