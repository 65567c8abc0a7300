// Streams, copies, the all-gather of host memory; and how a LoadedNccl is made.
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "comm/bounded.h"
#include "comm/nccl/loaded_nccl.h"

namespace weir {
namespace {

// Memory of a host all-gather: this rank's bytes, and behind them every rank's.
constexpr Bytes kStaging = 2_MiB;

}  // namespace

Result<StreamCalls> StreamCalls::find(const cuda::Driver& driver) {
  StreamCalls calls;
#define WEIR_FIND(name, version)                                                      \
  calls.name = reinterpret_cast<decltype(calls.name)>(driver.find(#name, version));   \
  if (calls.name == nullptr) {                                                        \
    return Error(ErrorCode::unavailable, "libcuda.so.1 is too old: it lacks " #name); \
  }
  WEIR_FIND(cuCtxGetStreamPriorityRange, 5050)
  WEIR_FIND(cuStreamCreateWithPriority, 5050)
  WEIR_FIND(cuStreamDestroy, 4000)
  WEIR_FIND(cuMemcpyDtoDAsync, 3020)
  WEIR_FIND(cuMemcpyHtoDAsync, 3020)
  WEIR_FIND(cuMemcpyDtoHAsync, 3020)
#undef WEIR_FIND
  return calls;
}

// Of the highest priority: what other ranks wait for comes first.
Result<Stream> LoadedNccl::create_stream() {
  const cuda::ContextScope context(driver_, context_);
  int lowest = 0, highest = 0;
  streams_.cuCtxGetStreamPriorityRange(&lowest, &highest);
  CUstream made = nullptr;
  const CUresult result =
      streams_.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, highest);
  if (result != CUDA_SUCCESS) return driver_.error("cuStreamCreateWithPriority", result);
  unsigned long long id = 0;
  const CUresult named = driver_.cuStreamGetId(made, &id);
  if (named != CUDA_SUCCESS) return driver_.error("cuStreamGetId", named);
  return Stream{.handle = made, .id = id};
}

Status LoadedNccl::destroy_stream(Stream stream) {
  const cuda::ContextScope context(driver_, context_);
  return driver_.check("cuStreamDestroy",
                       streams_.cuStreamDestroy(static_cast<CUstream>(stream.handle)));
}

Status LoadedNccl::copy(void* to, const void* from, Bytes bytes, Stream stream) {
  const cuda::ContextScope context(driver_, context_);
  return driver_.check("cuMemcpyDtoDAsync", streams_.cuMemcpyDtoDAsync(
                                                Address::of(to).value, Address::of(from).value,
                                                bytes.count, static_cast<CUstream>(stream.handle)));
}

Result<LoadedNccl::Staging> LoadedNccl::take_staging() {
  {
    const std::lock_guard lock(staging_mutex_);
    if (!idle_.empty()) {
      const Staging staging = idle_.back();
      idle_.pop_back();
      return staging;
    }
  }
  Result<Stream> stream = create_stream();
  if (!stream) return std::move(stream).error();
  Result<Address> memory = allocate_segment(kStaging);
  if (!memory) {
    (void)destroy_stream(*stream);
    return std::move(memory).error();
  }
  return Staging{*stream, *memory};
}

void LoadedNccl::give_back(const Staging& staging, bool is_idle) {
  const std::lock_guard lock(staging_mutex_);
  (is_idle ? idle_ : given_up_).push_back(staging);
}

// Looks at an event, so that a rank that never comes is found out.
Status LoadedNccl::wait_for(CUstream stream, CommHandle comm, Nanoseconds timeout) {
  CUevent event = nullptr;
  CUresult result = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return driver_.error("cuEventCreate", result);
  const std::unique_ptr<CUevent_st, decltype(driver_.cuEventDestroy)> owner(event,
                                                                            driver_.cuEventDestroy);
  result = driver_.cuEventRecord(event, stream);
  if (result != CUDA_SUCCESS) return driver_.error("cuEventRecord", result);
  const auto until = std::chrono::steady_clock::now() + waitable(timeout);
  while (true) {
    result = driver_.cuEventQuery(event);
    if (result == CUDA_SUCCESS) return {};
    if (result != CUDA_ERROR_NOT_READY) return driver_.error("cuEventQuery", result);
    if (Status works = async_error(comm); !works) return works;
    if (std::chrono::steady_clock::now() > until) {
      return Error(ErrorCode::device, "not all ranks came in time to agree");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Result<std::vector<std::vector<std::byte>>> LoadedNccl::host_all_gather(
    CommHandle comm, std::span<const std::byte> mine, Nanoseconds timeout) {
  const Result<int> ranks = size(comm);
  if (!ranks) return ranks.error();
  const std::size_t all = mine.size() * static_cast<std::size_t>(*ranks);
  if (mine.size() + all > kStaging.count) {
    return Error(ErrorCode::invalid_argument, "host_all_gather: " + std::to_string(mine.size()) +
                                                  " bytes of each of " + std::to_string(*ranks) +
                                                  " ranks are more than 2 MiB");
  }
  const cuda::ContextScope context(driver_, context_);
  const cuda::RelaxedCaptureScope relaxed(driver_);
  const Result<Staging> staging = take_staging();
  if (!staging) return staging.error();
  auto gathered =
      host_all_gather_by(*staging, comm, mine, static_cast<std::size_t>(*ranks), timeout);
  give_back(*staging, gathered.ok());
  return gathered;
}

Result<std::vector<std::vector<std::byte>>> LoadedNccl::host_all_gather_by(
    const Staging& staging, CommHandle comm, std::span<const std::byte> mine, std::size_t ranks,
    Nanoseconds timeout) {
  auto* const stream = static_cast<CUstream>(staging.stream.handle);
  const Address into = staging.memory + Bytes{mine.size()};
  CUresult copied =
      streams_.cuMemcpyHtoDAsync(staging.memory.value, mine.data(), mine.size(), stream);
  if (copied != CUDA_SUCCESS) return driver_.error("cuMemcpyHtoDAsync", copied);
  const Operation gather{.kind = OperationKind::all_gather,
                         .send = staging.memory.pointer(),
                         .receive = into.pointer(),
                         .count = mine.size(),
                         .type = DataType::int8};
  if (Status queued = enqueue(comm, gather, staging.stream); !queued) {
    return std::move(queued).error();
  }
  if (Status done = wait_for(stream, comm, timeout); !done) return std::move(done).error();
  std::vector<std::byte> bytes(mine.size() * ranks);
  copied = streams_.cuMemcpyDtoHAsync(bytes.data(), into.value, bytes.size(), stream);
  if (copied != CUDA_SUCCESS) return driver_.error("cuMemcpyDtoHAsync", copied);
  if (Status done = wait_for(stream, comm, timeout); !done) return std::move(done).error();
  std::vector<std::vector<std::byte>> gathered;
  for (std::size_t at = 0; at < bytes.size(); at += mine.size()) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    gathered.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(mine.size()));
  }
  return gathered;
}

Result<std::unique_ptr<Nccl>> load_nccl(int number) {
  if (Status good = check_settings(); !good) return std::move(good).error();
  const Result<const cuda::Driver*> driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const Result<const NcclLibrary*> nccl = NcclLibrary::get();
  if (!nccl) return nccl.error();
  const Result<StreamCalls> streams = StreamCalls::find(**driver);
  if (!streams) return streams.error();
  CUdevice device = 0;
  CUresult result = (*driver)->cuDeviceGet(&device, number);
  if (result != CUDA_SUCCESS) return (*driver)->error("cuDeviceGet", result);
  CUcontext context = nullptr;
  result = (*driver)->cuDevicePrimaryCtxRetain(&context, device);
  if (result != CUDA_SUCCESS) return (*driver)->error("cuDevicePrimaryCtxRetain", result);
  return std::unique_ptr<Nccl>(
      std::make_unique<LoadedNccl>(**nccl, **driver, *streams, device, context));
}

}  // namespace weir
