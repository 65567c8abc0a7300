// SPDX-License-Identifier: Apache-2.0
#include "weir/cuda_device.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "cuda/driver.h"
#include "cuda/driver_device.h"

namespace weir {
namespace cuda {
namespace {

CUmemLocation location_of(int ordinal) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = ordinal;
  return location;
}

}  // namespace

Result<MemoryInfo> DriverDevice::memory_info() {
  const ContextScope scope = current();
  std::size_t free = 0;
  std::size_t total = 0;
  const CUresult result = driver_.cuMemGetInfo(&free, &total);
  if (result != CUDA_SUCCESS) return driver_.error("cuMemGetInfo", result);
  return MemoryInfo{.free = {free}, .total = {total}};
}

Result<Stream> DriverDevice::stream(void* handle) {
  unsigned long long id = 0;
  const CUresult result = on({.handle = handle}, [&] {
    return driver_.cuStreamGetId(static_cast<CUstream>(handle), &id);
  });
  if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
    return Error(
        ErrorCode::capture,
        "cuStreamGetId: the stream is being captured, which can't go on now: no graph pool "
        "serves the capture. Begin it with CaptureScope, or open a binding with "
        "GraphPool::capture() before it begins");
  }
  if (result != CUDA_SUCCESS) return driver_.error("cuStreamGetId", result);
  return Stream{.handle = handle, .id = id};
}

Result<Address> DriverDevice::reserve(Bytes size, Bytes alignment) {
  return reserve_at(Address{}, size, alignment);
}

// For the driver the address is a hint: where it can't follow, it reserves elsewhere.
Result<Address> DriverDevice::reserve_at(Address wanted, Bytes size, Bytes alignment) {
  const ContextScope scope = current();
  CUdeviceptr address = 0;
  const CUresult result =
      driver_.cuMemAddressReserve(&address, size.count, alignment.count, wanted.value, 0);
  if (result != CUDA_SUCCESS) return driver_.error("cuMemAddressReserve", result);
  return Address{address};
}

Status DriverDevice::unreserve(Address address, Bytes size) {
  const ContextScope scope = current();
  return driver_.check("cuMemAddressFree", driver_.cuMemAddressFree(address.value, size.count));
}

// cuMemCreate and the calls that map ask nothing of the context, and succeed after an error that
// ended it (a kernel's assertion, say). Making an event does ask, in every mode of a capture.
Result<PhysicalHandle> DriverDevice::create(Bytes size) {
  const Result<EventHandle> probe = create_event();
  if (probe) (void)destroy_event(*probe);
  if (!probe && probe.error().code() == ErrorCode::device) return probe.error();
  const ContextScope scope = current();
  const CUmemAllocationProp page = page_properties();
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver_.cuMemCreate(&handle, size.count, &page, 0);
  if (result == CUDA_SUCCESS) return PhysicalHandle{handle};
  Error error = driver_.error("cuMemCreate", result);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return error;
  return Error(ErrorCode::out_of_memory,
               error.message() + " for " + std::to_string(size.count) + " bytes");
}

Status DriverDevice::map(Address address, Bytes size, PhysicalHandle handle) {
  const ContextScope scope = current();
  return driver_.check("cuMemMap", driver_.cuMemMap(address.value, size.count, 0, handle.value, 0));
}

Status DriverDevice::set_access(Address address, Bytes size) {
  const ContextScope scope = current();
  std::vector<CUmemAccessDesc> access{
      {.location = location_of(opened_.ordinal), .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  {
    const std::lock_guard lock(peers_mutex_);
    for (const auto& peer : peers_) {
      access.push_back(access.front());
      access.back().location.id = peer->ordinal;
    }
  }
  return driver_.check("cuMemSetAccess", driver_.cuMemSetAccess(address.value, size.count,
                                                                access.data(), access.size()));
}

Status DriverDevice::add_peer(int ordinal) {
  const std::lock_guard lock(peers_mutex_);
  const bool known = std::any_of(peers_.begin(), peers_.end(),
                                 [&](const auto& peer) { return peer->ordinal == ordinal; });
  if (known || ordinal == opened_.ordinal) return {};
  const RelaxedCaptureScope relaxed(driver_);
  if (join_stream_ == nullptr) {
    const ContextScope scope = current();
    Status made =
        driver_.check("cuStreamCreateWithPriority",
                      driver_.cuStreamCreateWithPriority(&join_stream_, CU_STREAM_NON_BLOCKING, 0));
    if (!made) return made;
  }
  CUdevice device = 0;
  if (Status got = driver_.check("cuDeviceGet", driver_.cuDeviceGet(&device, ordinal)); !got) {
    return got;
  }
  CUcontext context = nullptr;
  const CUresult retained = driver_.cuDevicePrimaryCtxRetain(&context, device);
  if (retained != CUDA_SUCCESS) return driver_.error("cuDevicePrimaryCtxRetain", retained);
  peers_.push_back(std::make_unique<Peer>(driver_, ordinal, device, context));
  return {};
}

std::vector<const void*> DriverDevice::peer_contexts() const {
  std::vector<const void*> contexts;
  const std::lock_guard lock(peers_mutex_);
  for (const auto& peer : peers_) contexts.push_back(peer->work.context());
  return contexts;
}

DriverDevice::~DriverDevice() {
  destroy_copy_streams();
  if (join_stream_ == nullptr) return;
  const ContextScope scope = current();
  (void)driver_.cuStreamDestroy(join_stream_);
}

Status DriverDevice::unmap(Address address, Bytes size) {
  const ContextScope scope = current();
  return driver_.check("cuMemUnmap", driver_.cuMemUnmap(address.value, size.count));
}

Status DriverDevice::release(PhysicalHandle handle) {
  const ContextScope scope = current();
  return driver_.check("cuMemRelease", driver_.cuMemRelease(handle.value));
}

// The driver gives memory of whole units at whole units, though it does not promise to: where it
// should not, the segment lies within somewhat more.
Result<Address> DriverDevice::allocate_segment(Bytes size) {
  if (size == 0_B || size % kSegmentUnit != 0_B) {
    return Error(ErrorCode::device, "allocate_segment: " + std::to_string(size.count) +
                                        " bytes are not a multiple of 2 MiB");
  }
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  const auto allocate = [&](Bytes bytes, CUdeviceptr& at) -> Status {
    const CUresult result = driver_.cuMemAlloc(&at, bytes.count);
    if (result == CUDA_SUCCESS) return {};
    Error error = driver_.error("cuMemAlloc", result);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) return error;
    return Error(ErrorCode::out_of_memory,
                 error.message() + " for " + std::to_string(bytes.count) + " bytes");
  };
  CUdeviceptr base = 0;
  if (Status got = allocate(size, base); !got) return std::move(got).error();
  if (base % kSegmentUnit.count == 0) return Address{base};
  (void)driver_.cuMemFree(base);
  if (Status got = allocate(size + kSegmentUnit, base); !got) return std::move(got).error();
  const Address at{round_up(Bytes{base}, kSegmentUnit).count};
  if (at.value != base) {
    const std::lock_guard lock(segments_mutex_);
    displaced_[at.value] = base;
  }
  return at;
}

Status DriverDevice::free_segment(Address address, Bytes) {
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  CUdeviceptr base = address.value;
  {
    const std::lock_guard lock(segments_mutex_);
    if (const auto it = displaced_.find(base); it != displaced_.end()) base = it->second;
  }
  Status freed = driver_.check("cuMemFree", driver_.cuMemFree(base));
  if (freed) {
    const std::lock_guard lock(segments_mutex_);
    displaced_.erase(address.value);
  }
  return freed;
}

Result<EventHandle> DriverDevice::create_event() {
  const ContextScope scope = current();
  CUevent event = nullptr;
  const CUresult result = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return driver_.error("cuEventCreate", result);
  return EventHandle{Address::of(event).value};
}

Status DriverDevice::destroy_event(EventHandle event) {
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  return driver_.check("cuEventDestroy", driver_.cuEventDestroy(driver_event(event)));
}

Status DriverDevice::record(EventHandle event, Stream stream) {
  return driver_.check("cuEventRecord", on(stream, [&] {
                         return driver_.cuEventRecord(driver_event(event), driver_stream(stream));
                       }));
}

bool DriverDevice::is_in_another_context() const {
  CUcontext context = nullptr;
  CUdevice device = 0;
  return driver_.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr &&
         context != opened_.context && driver_.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
         device == opened_.device;
}

// A program that makes a green context current names that one's default stream by the handle that
// other threads name the primary context's by: both wait.
Status DriverDevice::wait(Stream stream, EventHandle event) {
  const auto wait = [&] {
    return driver_.cuStreamWaitEvent(driver_stream(stream), driver_event(event), 0);
  };
  if (is_special(stream) && is_in_another_context()) [[unlikely]] {
    if (Status waited = driver_.check("cuStreamWaitEvent", wait()); !waited) return waited;
  }
  return driver_.check("cuStreamWaitEvent", on(stream, wait));
}

Result<bool> DriverDevice::query(EventHandle event) {
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  const CUresult result = driver_.cuEventQuery(driver_event(event));
  if (result == CUDA_SUCCESS) return true;
  if (result == CUDA_ERROR_NOT_READY) return false;
  return driver_.error("cuEventQuery", result);
}

Status DriverDevice::synchronize(EventHandle event) {
  const ContextScope scope = current();
  const RelaxedCaptureScope relaxed(driver_);
  return driver_.check("cuEventSynchronize", driver_.cuEventSynchronize(driver_event(event)));
}

// Nothing is recorded before all contexts were asked whether that would break a capture.
Status DriverDevice::record_context(EventHandle event) {
  const ContextScope scope = current();
  const std::lock_guard lock(peers_mutex_);
  Status may = work_.may_record();
  for (const auto& peer : peers_) {
    if (may) may = peer->work.may_record();
  }
  if (!may) return may;
  if (peers_.empty()) return work_.record(driver_event(event));
  for (const auto& peer : peers_) {
    if (Status joined = peer->work.join(join_stream_); !joined) return joined;
  }
  if (Status joined = work_.join(join_stream_); !joined) return joined;
  return driver_.check("cuEventRecord", driver_.cuEventRecord(driver_event(event), join_stream_));
}

std::vector<ContextWork*> DriverDevice::all_work() {
  std::vector<ContextWork*> all{&work_};
  const std::lock_guard lock(peers_mutex_);
  for (const auto& peer : peers_) all.push_back(&peer->work);
  return all;
}

// The host waits for peers without the lock, under which others record and map.
Status DriverDevice::synchronize_context() {
  for (ContextWork* const work : all_work()) {
    if (Status done = work->synchronize(); !done) return done;
  }
  return {};
}

Status DriverDevice::prepare_to_synchronize() {
  for (ContextWork* const work : all_work()) {
    if (Status prepared = work->prepare_to_synchronize(); !prepared) return prepared;
  }
  return {};
}

Nanoseconds DriverDevice::now() const {
  const auto since = std::chrono::steady_clock::now() - opened_at_;
  return {std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()};
}

namespace {

bool has(const Driver& driver, CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

CUmemAllocationHandleType with_fabric(CUmemAllocationHandleType kinds) {
  return static_cast<CUmemAllocationHandleType>(static_cast<unsigned>(kinds) |
                                                static_cast<unsigned>(CU_MEM_HANDLE_TYPE_FABRIC));
}

enum class CanBeMade { yes, no, device_is_full };

// A page made so, and given to others in each way that it names.
CanBeMade can_be_made(const Driver& driver, const CUmemAllocationProp& page) {
  std::size_t size = 0;
  if (driver.cuMemGetAllocationGranularity(&size, &page, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
      CUDA_SUCCESS) {
    return CanBeMade::no;
  }
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver.cuMemCreate(&handle, size, &page, 0);
  // What is refused then has nothing to do with the description, and what is not may be so later.
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return CanBeMade::device_is_full;
  if (result != CUDA_SUCCESS) return CanBeMade::no;
  CUmemFabricHandle fabric{};
  const bool is_given = !exports(page, CU_MEM_HANDLE_TYPE_FABRIC) ||
                        driver.cuMemExportToShareableHandle(
                            &fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0) == CUDA_SUCCESS;
  driver.cuMemRelease(handle);
  return is_given ? CanBeMade::yes : CanBeMade::no;
}

}  // namespace

// Pages that others can be given, exported as a file descriptor and by the fabric, reached by a
// network card. What a device says it can do, the system around it (a container, a driver module, a
// fabric that has no channel for this user) may still refuse; so the first description that a page
// can really be made of is the one to use. On a device that is full it is tried again later.
PageKind find_page_kind(const Driver& driver, CUdevice device, int ordinal) {
  CUmemAllocationProp plain{};
  plain.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  plain.location = location_of(ordinal);
  CUmemAllocationProp exportable = plain;
  if (has(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  const bool has_rdma =
      has(driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  const bool has_fabric = has(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  for (const bool rdma : {true, false}) {
    for (const bool fabric : {true, false}) {
      if ((rdma && !has_rdma) || (fabric && !has_fabric)) continue;
      CUmemAllocationProp candidate = exportable;
      if (rdma) candidate.allocFlags.gpuDirectRDMACapable = 1;
      if (fabric) candidate.requestedHandleTypes = with_fabric(candidate.requestedHandleTypes);
      const CanBeMade made = can_be_made(driver, candidate);
      if (made == CanBeMade::yes) return {candidate, true};
      if (made == CanBeMade::device_is_full) return {exportable, false};
    }
  }
  return {plain, true};
}

CUmemAllocationProp DriverDevice::page_properties() {
  const std::lock_guard lock(page_mutex_);
  if (!page_.is_known) page_ = find_page_kind(driver_, opened_.device, opened_.ordinal);
  return page_.properties;
}

namespace {

Result<Bytes> page_granularity(const Driver& driver, const CUmemAllocationProp& page) {
  std::size_t size = 0;
  const CUresult result =
      driver.cuMemGetAllocationGranularity(&size, &page, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return driver.error("cuMemGetAllocationGranularity", result);
  return Bytes{size};
}

std::string device_name(const Driver& driver, CUdevice device) {
  std::array<char, 256> name{};
  if (driver.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device) != CUDA_SUCCESS) {
    return "CUDA device";
  }
  return name.data();
}

Result<std::unique_ptr<CudaDevice>> open_device(const Driver& driver, int ordinal) {
  OpenedContext opened;
  opened.ordinal = ordinal;
  if (Status got = driver.check("cuDeviceGet", driver.cuDeviceGet(&opened.device, ordinal)); !got) {
    return std::move(got).error();
  }
  opened.name = device_name(driver, opened.device);
  if (!has(driver, opened.device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
    return Error(ErrorCode::unavailable,
                 opened.name + " can't map its memory (no virtual memory management)");
  }
  const CUresult retained = driver.cuDevicePrimaryCtxRetain(&opened.context, opened.device);
  if (retained != CUDA_SUCCESS) return driver.error("cuDevicePrimaryCtxRetain", retained);

  const ContextScope scope(driver, opened.context);
  const PageKind page = find_page_kind(driver, opened.device, ordinal);
  Result<Bytes> granularity = page_granularity(driver, page.properties);
  if (!granularity) {
    driver.cuDevicePrimaryCtxRelease(opened.device);
    return std::move(granularity).error();
  }
  opened.granularity = *granularity;
  return std::unique_ptr<CudaDevice>(new DriverDevice(driver, std::move(opened), page));
}

}  // namespace
}  // namespace cuda

Result<int> CudaDevice::count() {
  Result<const cuda::Driver*> driver = cuda::Driver::get();
  if (!driver) return std::move(driver).error();
  int count = 0;
  const CUresult result = (*driver)->cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS) return (*driver)->error("cuDeviceGetCount", result);
  return count;
}

Result<int> CudaDevice::current() {
  Result<const cuda::Driver*> driver = cuda::Driver::get();
  if (!driver) return std::move(driver).error();
  CUdevice device = 0;
  const CUresult result = (*driver)->cuCtxGetDevice(&device);
  if (result == CUDA_ERROR_INVALID_CONTEXT) return 0;
  if (result != CUDA_SUCCESS) return (*driver)->error("cuCtxGetDevice", result);
  return static_cast<int>(device);  // a CUdevice is the ordinal
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int ordinal) {
  Result<int> devices = count();
  if (!devices) return std::move(devices).error();
  if (ordinal < 0 || ordinal >= *devices) {
    return Error(ErrorCode::unavailable, "there is no CUDA device " + std::to_string(ordinal) +
                                             ": this process sees " + std::to_string(*devices));
  }
  return cuda::open_device(**cuda::Driver::get(), ordinal);
}

}  // namespace weir
