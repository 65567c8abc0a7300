// SPDX-License-Identifier: Apache-2.0
// libweir_no_cuda.so: what PyTorch's allocator asks of CUDA's runtime, on a GPU that is none, at
// next to no cost: so that its host time and its memory can be compared where there is no GPU.
// bench/peers/run --no-gpu and the libraries for `weir bench` have it loaded before the runtime,
// which it stands before.
//
// Memory is addresses that nothing lies at, each once; events are done at once; no stream is ever
// captured. The driver's functions for pages of memory are given out likewise, and stand for pages
// of 2 MiB. Calls that are missing here are the runtime's own, and fail without a GPU. Memory and
// calls are counted (no_cuda.h).
//
// Threads: any, as with the runtime.
#include "bench/peers/no_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#define WEIR_STANDS_FOR extern "C" __attribute__((visibility("default")))

namespace {

constexpr std::size_t kBytes = std::size_t{140} << 30;
constexpr std::uint64_t kGranularity = 2 << 20;  // as cudaMalloc's, of large blocks

std::atomic<std::uint64_t> next_address{std::uint64_t{1} << 44};
std::atomic<std::uintptr_t> next_handle{1};
std::atomic<std::uint64_t> calls, waits;

template <class Handle>
Handle new_handle() {
  return reinterpret_cast<Handle>(next_handle.fetch_add(1));  // NOLINT(performance-no-int-to-ptr)
}

std::uint64_t new_addresses(std::uint64_t bytes) {
  return next_address.fetch_add((bytes + kGranularity - 1) / kGranularity * kGranularity);
}

// What is held, by address or handle.
class Held {
 public:
  void add(std::uint64_t key, std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    bytes_[key] = bytes;
    held_ += bytes;
    most_ = std::max(most_, held_);
  }
  void remove(std::uint64_t key) {
    const std::scoped_lock lock(mutex_);
    const auto found = bytes_.find(key);
    if (found == bytes_.end()) return;
    held_ -= found->second;
    bytes_.erase(found);
  }
  void reset() {
    const std::scoped_lock lock(mutex_);
    most_ = held_;
  }
  std::pair<std::uint64_t, std::uint64_t> now_and_most() {
    const std::scoped_lock lock(mutex_);
    return {held_, most_};
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint64_t> bytes_;
  std::uint64_t held_ = 0, most_ = 0;
};

// Lives until the process ends: allocators free memory when theirs does.
Held& held() {
  static Held* const held = new Held;
  return *held;
}

template <class Result>
Result called(Result result) {
  calls.fetch_add(1, std::memory_order_relaxed);
  return result;
}
template <class Result>
Result waited(Result result) {
  waits.fetch_add(1, std::memory_order_relaxed);
  return called(result);
}

// --- The driver's functions, as cudaGetDriverEntryPointByVersion() gives them out.

CUresult reserve_addresses(CUdeviceptr* at, std::size_t size, std::size_t, CUdeviceptr,
                           unsigned long long) {
  return *at = new_addresses(size), called(CUDA_SUCCESS);
}
CUresult free_addresses(CUdeviceptr, std::size_t) { return called(CUDA_SUCCESS); }
CUresult create_pages(CUmemGenericAllocationHandle* handle, std::size_t size,
                      const CUmemAllocationProp*, unsigned long long) {
  *handle = next_handle.fetch_add(1);
  held().add(*handle, size);
  return called(CUDA_SUCCESS);
}
CUresult release_pages(CUmemGenericAllocationHandle handle) {
  held().remove(handle);
  return called(CUDA_SUCCESS);
}
CUresult map_pages(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                   unsigned long long) {
  return called(CUDA_SUCCESS);
}
CUresult set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
  return called(CUDA_SUCCESS);
}
CUresult unmap_pages(CUdeviceptr, std::size_t) { return called(CUDA_SUCCESS); }
CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*,
                     CUmemAllocationGranularity_flags) {
  return *bytes = kGranularity, CUDA_SUCCESS;
}
CUresult device(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult device_attribute(int* value, CUdevice_attribute, CUdevice) {
  return *value = 0, CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  return *text = "not supported without a GPU", CUDA_SUCCESS;
}
CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

template <class Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

void* driver_function(std::string_view name) {
  const std::pair<std::string_view, void*> functions[] = {
      {"cuMemAddressReserve", address_of(&reserve_addresses)},
      {"cuMemAddressFree", address_of(&free_addresses)},
      {"cuMemCreate", address_of(&create_pages)},
      {"cuMemRelease", address_of(&release_pages)},
      {"cuMemMap", address_of(&map_pages)},
      {"cuMemSetAccess", address_of(&set_access)},
      {"cuMemUnmap", address_of(&unmap_pages)},
      {"cuMemGetAllocationGranularity", address_of(&granularity)},
      {"cuDeviceGet", address_of(&device)},
      {"cuDeviceGetAttribute", address_of(&device_attribute)},
      {"cuGetErrorString", address_of(&error_string)}};
  const auto* const found =
      std::find_if(std::begin(functions), std::end(functions),
                   [name](const auto& function) { return function.first == name; });
  return found != std::end(functions) ? found->second : address_of(&not_supported);
}

}  // namespace

// By this the program knows that it is loaded.
WEIR_STANDS_FOR void weir_no_cuda() {}

WEIR_STANDS_FOR void weir_no_cuda_reset() {
  held().reset();
  calls = waits = 0;
}
WEIR_STANDS_FOR void weir_no_cuda_count(weir_no_cuda_counts* counts) {
  const auto [now, most] = held().now_and_most();
  *counts = {now, most, calls, waits};
}

WEIR_STANDS_FOR cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaSetDevice(int) { return cudaSuccess; }
WEIR_STANDS_FOR cudaError_t cudaDeviceSynchronize() { return waited(cudaSuccess); }
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
  const std::uint64_t at = new_addresses(bytes);
  held().add(at, (bytes + kGranularity - 1) / kGranularity * kGranularity);
  *memory = reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
  return called(cudaSuccess);
}
WEIR_STANDS_FOR cudaError_t cudaFree(void* memory) {
  held().remove(reinterpret_cast<std::uintptr_t>(memory));
  return waited(cudaSuccess);
}
WEIR_STANDS_FOR cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return *free = *total = kBytes, cudaSuccess;
}

WEIR_STANDS_FOR cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new_handle<cudaEvent_t>(), called(cudaSuccess);
}
WEIR_STANDS_FOR cudaError_t cudaEventDestroy(cudaEvent_t) { return called(cudaSuccess); }
WEIR_STANDS_FOR cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return called(cudaSuccess);
}
WEIR_STANDS_FOR cudaError_t cudaEventQuery(cudaEvent_t) { return called(cudaSuccess); }
WEIR_STANDS_FOR cudaError_t cudaEventSynchronize(cudaEvent_t) { return waited(cudaSuccess); }

WEIR_STANDS_FOR cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = *greatest = 0, cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = new_handle<cudaStream_t>(), cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaStreamSynchronize(cudaStream_t) { return waited(cudaSuccess); }
WEIR_STANDS_FOR cudaError_t cudaStreamQuery(cudaStream_t) { return called(cudaSuccess); }
WEIR_STANDS_FOR cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return *id = reinterpret_cast<std::uintptr_t>(stream), cudaSuccess;
}
WEIR_STANDS_FOR cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return waited(cudaSuccess);
}
WEIR_STANDS_FOR cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, called(cudaSuccess);
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
  return *status = cudaStreamCaptureStatusNone, called(cudaSuccess);
}
WEIR_STANDS_FOR cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

#if CUDART_VERSION >= 12050
WEIR_STANDS_FOR cudaError_t
cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                 cudaDriverEntryPointQueryResult* found) {
  *function = driver_function(name);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
#endif
