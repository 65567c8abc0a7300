// SPDX-License-Identifier: Apache-2.0
// CudaDevice's memory in other processes, and theirs here.
#include <algorithm>
#include <iterator>
#include <string>

#include "cuda/driver.h"
#include "cuda/driver_device.h"

namespace weir::cuda {
namespace {

Status expect_size(const std::string& handle, std::size_t size) {
  if (handle.size() == size) return {};
  return Error(ErrorCode::invalid_input, "a handle of shared memory has " + std::to_string(size) +
                                             " bytes, not " + std::to_string(handle.size()));
}

}  // namespace

Result<int> DriverDevice::export_page(PhysicalHandle page) {
  if (!exports(page_properties(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
    return Error(ErrorCode::device,
                 opened_.name +
                     ": the driver or the system gives no file descriptors of its memory, "
                     "so that it can't be shared with other processes");
  }
  const ContextScope scope = current();
  int descriptor = -1;
  const CUresult result = driver_.cuMemExportToShareableHandle(
      &descriptor, page.value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return driver_.error("cuMemExportToShareableHandle", result);
  return descriptor;
}

Result<PhysicalHandle> DriverDevice::import_page(int descriptor) {
  const ContextScope scope = current();
  CUmemGenericAllocationHandle handle = 0;
  void* const as_pointer = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  const CUresult result = driver_.cuMemImportFromShareableHandle(
      &handle, as_pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) return driver_.error("cuMemImportFromShareableHandle", result);
  return PhysicalHandle{handle};
}

Result<MemoryExchange::SharedSegment> DriverDevice::export_segment(Address segment) {
  CUdeviceptr base = segment.value;
  {
    const std::lock_guard lock(segments_mutex_);
    if (const auto it = displaced_.find(base); it != displaced_.end()) base = it->second;
  }
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  CUipcMemHandle handle{};
  const CUresult result = driver_.cuIpcGetMemHandle(&handle, base);
  if (result != CUDA_SUCCESS) return driver_.error("cuIpcGetMemHandle", result);
  return SharedSegment{{std::begin(handle.reserved), std::end(handle.reserved)},
                       segment - Address{base}};
}

Result<Address> DriverDevice::import_segment(const std::string& handle) {
  CUipcMemHandle given{};
  if (Status right = expect_size(handle, sizeof given.reserved); !right) {
    return std::move(right).error();
  }
  std::copy(handle.begin(), handle.end(), std::begin(given.reserved));
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  CUdeviceptr at = 0;
  const CUresult result =
      driver_.cuIpcOpenMemHandle(&at, given, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result != CUDA_SUCCESS) return driver_.error("cuIpcOpenMemHandle", result);
  return Address{at};
}

Status DriverDevice::close_segment(Address imported) {
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  return driver_.check("cuIpcCloseMemHandle", driver_.cuIpcCloseMemHandle(imported.value));
}

}  // namespace weir::cuda
