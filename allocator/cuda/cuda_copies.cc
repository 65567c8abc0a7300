// SPDX-License-Identifier: Apache-2.0
// Pinned host memory, and copies between it and the device.
//
// Memory that is mapped and touched here and then registered is pinned several times faster by
// several threads than by cuMemHostAlloc, which takes the pages itself, one by one.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "cuda/driver.h"
#include "cuda/driver_device.h"

namespace weir::cuda {
namespace {

constexpr Bytes kHugePage = 2_MiB, kSmallPage = 4_KiB;
// More threads pin no faster.
constexpr unsigned kMostThreads = 16;

Error host_error(const char* call, int error) {
  const ErrorCode code = error == ENOMEM ? ErrorCode::out_of_memory : ErrorCode::device;
  return {code, std::string(call) + ": " + std::strerror(error)};
}

// Every page is there once this returns. Where the system can't say that it lacks the memory, its
// own ways of being out of memory apply.
Status populate(char* memory, Bytes size) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(memory, size.count, MADV_POPULATE_WRITE) == 0) return {};
  if (errno != EINVAL) return host_error("madvise", errno);
#endif
  for (Bytes at; at < size; at += kSmallPage) {
    *static_cast<volatile char*>(memory + at.count) = 0;
  }
  return {};
}

// At a multiple of the huge page.
Result<char*> map_host(Bytes size) {
  const Bytes mapped = size + kHugePage;
  void* const got = mmap(nullptr, mapped.count, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return host_error("mmap", errno);
  const Address from = Address::of(got);
  const Address at{round_up(Bytes{from.value}, kHugePage).count};
  const Address end = at + size;
  if (at != from) (void)munmap(from.pointer(), (at - from).count);
  if (end != from + mapped) (void)munmap(end.pointer(), (from + mapped - end).count);
  (void)madvise(at.pointer(), size.count, MADV_HUGEPAGE);  // small pages do as well
  return static_cast<char*>(at.pointer());
}

}  // namespace

unsigned DriverDevice::host_threads() const {
  const unsigned there = std::thread::hardware_concurrency();
  return there <= 1 ? 0 : std::min(there, kMostThreads);
}

Result<void*> DriverDevice::allocate_host(Bytes size) {
  Result<char*> memory = map_host(size);
  if (!memory) return std::move(memory).error();
  if (Status there = populate(*memory, size); !there) {
    (void)munmap(*memory, size.count);
    return std::move(there).error();
  }
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  const CUresult result =
      driver_.cuMemHostRegister(*memory, size.count, CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) return static_cast<void*>(*memory);
  (void)munmap(*memory, size.count);
  Error error = driver_.error("cuMemHostRegister", result);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return error;
  return Error(ErrorCode::out_of_memory, error.message());
}

Status DriverDevice::free_host(void* memory, Bytes size) {
  {
    const ContextScope scope = current();
    const RelaxedCaptureScope relaxed(driver_);
    const CUresult result = driver_.cuMemHostUnregister(memory);
    if (result != CUDA_SUCCESS) return driver_.error("cuMemHostUnregister", result);
  }
  if (munmap(memory, size.count) != 0) return host_error("munmap", errno);
  return {};
}

Result<Stream> DriverDevice::copy_stream(Direction direction) {
  const std::lock_guard lock(copies_mutex_);
  Stream& known = copy_streams_[direction == Direction::to_host ? 0 : 1];
  if (known.handle != nullptr) return known;
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  CUstream made = nullptr;
  CUresult result = driver_.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0);
  if (result != CUDA_SUCCESS) return driver_.error("cuStreamCreateWithPriority", result);
  unsigned long long id = 0;
  result = driver_.cuStreamGetId(made, &id);
  if (result != CUDA_SUCCESS) {
    (void)driver_.cuStreamDestroy(made);
    return driver_.error("cuStreamGetId", result);
  }
  known = Stream{.handle = made, .id = id};
  return known;
}

void DriverDevice::destroy_copy_streams() {
  const std::lock_guard lock(copies_mutex_);
  const ContextScope scope = current();
  for (Stream& stream : copy_streams_) {
    if (stream.handle != nullptr) (void)driver_.cuStreamDestroy(driver_stream(stream));
    stream = {};
  }
}

Status DriverDevice::copy_to_host(void* to, Address from, Bytes size, Stream stream) {
  const ContextScope scope = current();
  return driver_.check("cuMemcpyDtoHAsync", driver_.cuMemcpyDtoHAsync(to, from.value, size.count,
                                                                      driver_stream(stream)));
}

Status DriverDevice::copy_to_device(Address to, const void* from, Bytes size, Stream stream) {
  const ContextScope scope = current();
  return driver_.check("cuMemcpyHtoDAsync", driver_.cuMemcpyHtoDAsync(to.value, from, size.count,
                                                                      driver_stream(stream)));
}

Status DriverDevice::fill_with_zeros(Address at, Bytes size, Stream stream) {
  const ContextScope scope = current();
  return driver_.check("cuMemsetD8Async",
                       driver_.cuMemsetD8Async(at.value, 0, size.count, driver_stream(stream)));
}

}  // namespace weir::cuda
