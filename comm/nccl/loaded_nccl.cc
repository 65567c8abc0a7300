// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "comm/bounded.h"
#include "comm/nccl/library.h"
#include "comm/numbers.h"

namespace weir {
namespace {

static_assert(static_cast<int>(ncclFloat8e5m2) == static_cast<int>(DataType::float8_e5m2));
static_assert(static_cast<int>(ncclAvg) == static_cast<int>(ReduceOp::average));

// Memory of a host all-gather: this rank's bytes, and behind them every rank's.
constexpr Bytes kStaging = 2_MiB;

CUstream driver_stream(Stream stream) { return static_cast<CUstream>(stream.handle); }

Result<CommHandle> handle_of(const Result<ncclComm_t>& made) {
  if (!made) return made.error();
  return CommHandle{Address::of(*made).value};
}

// NCCL keeps the pointer as long as the communicator.
const char* lasting(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string>& names = *new std::set<std::string>;  // never destroyed
  const std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

ncclConfig_t config_of(const CommConfig& config) {
  ncclConfig_t made = NCCL_CONFIG_INITIALIZER;
  made.blocking = 1;
  made.commName = lasting(config.name);
  if (config.max_ctas) made.maxCTAs = *config.max_ctas;
  return made;
}

class LoadedNccl final : public Nccl {
 public:
  LoadedNccl(const NcclLibrary& nccl, const cuda::Driver& driver, CUdevice device,
             CUcontext context)
      : nccl_(nccl), driver_(driver), device_(device), context_(context) {}
  ~LoadedNccl() override {
    for (const std::vector<Staging>* const all : {&idle_, &given_up_}) {
      for (const Staging& staging : *all) {
        (void)LoadedNccl::free_segment(staging.memory);
        (void)LoadedNccl::destroy_stream(staging.stream);
      }
    }
    driver_.cuDevicePrimaryCtxRelease(device_);
  }

  const NcclLibrary& library() const { return nccl_; }
  std::string version() const override { return nccl_version_text(nccl_.version); }

  Result<UniqueId> unique_id() override {
    const Result<ncclUniqueId> made =
        make<ncclUniqueId>("ncclGetUniqueId", nullptr, nccl_.ncclGetUniqueId);
    if (!made) return made.error();
    return std::bit_cast<UniqueId>(*made);
  }
  Result<CommHandle> init(const UniqueId& id, int ranks, int rank,
                          const CommConfig& config) override {
    ncclConfig_t with = config_of(config);
    ncclComm_t comm = nullptr;
    const ncclResult_t result = with_context([&] {
      return nccl_.ncclCommInitRankConfig(&comm, ranks, std::bit_cast<ncclUniqueId>(id), rank,
                                          &with);
    });
    if (result == ncclInProgress) {
      with_context([&] { return nccl_.ncclCommAbort(comm); });
      return calls_that_do_not_wait();
    }
    Status status = nccl_.check("ncclCommInitRankConfig", result);
    if (!status) return std::move(status).error();
    return handle_of(comm);
  }
  Result<CommHandle> split(CommHandle comm, int color, int key, const CommConfig& config) override {
    ncclConfig_t with = config_of(config);
    return handle_of(make<ncclComm_t>("ncclCommSplit", comm_of(comm), [&](ncclComm_t* made) {
      return nccl_.ncclCommSplit(comm_of(comm), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, made,
                                 &with);
    }));
  }

  Status destroy(CommHandle comm) override {
    return checked("ncclCommDestroy", nullptr,
                   [&] { return nccl_.ncclCommDestroy(comm_of(comm)); });
  }
  Status abort(CommHandle comm) override {
    return checked("ncclCommAbort", nullptr, [&] { return nccl_.ncclCommAbort(comm_of(comm)); });
  }
  Status revoke(CommHandle comm) override {
    return checked("ncclCommRevoke", comm_of(comm),
                   [&] { return nccl_.ncclCommRevoke(comm_of(comm), NCCL_REVOKE_DEFAULT); });
  }
  // Reads memory only: no context is needed, and no capture knows of it.
  Status async_error(CommHandle comm) override {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t result = nccl_.ncclCommGetAsyncError(comm_of(comm), &found);
    if (result != ncclSuccess) return nccl_.check("ncclCommGetAsyncError", result, comm_of(comm));
    return nccl_.check("in the background", found, comm_of(comm));
  }
  Result<int> size(CommHandle comm) override {
    return make<int>("ncclCommCount", nullptr,
                     [&](int* size) { return nccl_.ncclCommCount(comm_of(comm), size); });
  }
  Result<int> rank(CommHandle comm) override {
    return make<int>("ncclCommUserRank", nullptr,
                     [&](int* rank) { return nccl_.ncclCommUserRank(comm_of(comm), rank); });
  }

  Status enqueue(CommHandle comm, std::span<const Operation> group, Stream stream) override {
    const cuda::ContextScope context(driver_, context_);
    const cuda::RelaxedCaptureScope relaxed(driver_);
    Status first;
    if (group.size() > 1) first = nccl_.check("ncclGroupStart", nccl_.ncclGroupStart());
    if (!first) return first;
    for (const Operation& operation : group) {
      if (!first) break;
      first =
          nccl_.check(name_of(operation.kind),
                      nccl_.call(operation, comm_of(comm), driver_stream(stream)), comm_of(comm));
    }
    if (group.size() == 1) return first;
    // A group that was begun is ended, whatever happened.
    Status ended = checked("ncclGroupEnd", nullptr, nccl_.ncclGroupEnd);
    return first ? std::move(ended) : std::move(first);
  }

  Result<Address> allocate_segment(Bytes bytes) override {
    const Result<void*> segment = make<void*>("ncclMemAlloc", nullptr, [&](void** made) {
      return nccl_.ncclMemAlloc(made, bytes.count);
    });
    if (!segment) return segment.error();
    return Address::of(*segment);
  }
  Status free_segment(Address segment) override {
    return checked("ncclMemFree", nullptr, [&] { return nccl_.ncclMemFree(segment.pointer()); });
  }
  Result<RegistrationHandle> register_range(CommHandle comm, Address address,
                                            Bytes bytes) override {
    const Result<void*> handle = make<void*>("ncclCommRegister", comm_of(comm), [&](void** made) {
      return nccl_.ncclCommRegister(comm_of(comm), address.pointer(), bytes.count, made);
    });
    if (!handle) return handle.error();
    return RegistrationHandle{Address::of(*handle).value};
  }
  Status deregister(CommHandle comm, RegistrationHandle registration) override {
    return checked("ncclCommDeregister", comm_of(comm), [&] {
      return nccl_.ncclCommDeregister(comm_of(comm), Address{registration.value}.pointer());
    });
  }

  // Of the highest priority: what other ranks wait for comes first.
  Result<Stream> create_stream() override {
    const cuda::ContextScope context(driver_, context_);
    int lowest = 0, highest = 0;
    driver_.cuCtxGetStreamPriorityRange(&lowest, &highest);
    CUstream made = nullptr;
    const CUresult result =
        driver_.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, highest);
    if (result != CUDA_SUCCESS) return driver_.error("cuStreamCreateWithPriority", result);
    unsigned long long id = 0;
    const CUresult named = driver_.cuStreamGetId(made, &id);
    if (named != CUDA_SUCCESS) return driver_.error("cuStreamGetId", named);
    return Stream{.handle = made, .id = id};
  }
  Status destroy_stream(Stream stream) override {
    const cuda::ContextScope context(driver_, context_);
    return driver_.check("cuStreamDestroy", driver_.cuStreamDestroy(driver_stream(stream)));
  }

  Result<std::vector<std::vector<std::byte>>> host_all_gather(CommHandle comm,
                                                              std::span<const std::byte> mine,
                                                              Nanoseconds timeout) override {
    const Result<int> ranks = size(comm);
    if (!ranks) return ranks.error();
    std::vector<std::vector<std::byte>> by_rank(static_cast<std::size_t>(*ranks));
    const std::size_t most = kStaging.count / (by_rank.size() + 1);  // of a rank, at a time
    if (most == 0) return Error(ErrorCode::invalid_argument, "host_all_gather: too many ranks");
    const cuda::ContextScope context(driver_, context_);
    const cuda::RelaxedCaptureScope relaxed(driver_);
    const Result<Staging> staging = take_staging();
    if (!staging) return staging.error();
    Status gathered;
    while (gathered && !mine.empty()) {
      const std::span<const std::byte> part = mine.first(std::min(mine.size(), most));
      mine = mine.subspan(part.size());
      std::vector<std::byte> all(part.size() * by_rank.size());
      gathered = gather_into(all, *staging, comm, part, timeout);
      for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        const auto theirs = std::span(all).subspan(rank * part.size(), part.size());
        by_rank[rank].insert(by_rank[rank].end(), theirs.begin(), theirs.end());
      }
    }
    const std::lock_guard lock(staging_mutex_);
    (gathered ? idle_ : given_up_).push_back(*staging);
    if (!gathered) return std::move(gathered).error();
    return by_rank;
  }

 private:
  // Makes a call of NCCL's: in this GPU's context, which is gone again afterwards whatever NCCL
  // made current meanwhile, and so that no capture is broken.
  template <class Call>
  ncclResult_t with_context(Call&& call) const {
    driver_.cuCtxPushCurrent(context_);
    const ncclResult_t result = [&] {
      const cuda::RelaxedCaptureScope relaxed(driver_);
      return call();
    }();
    CUcontext gone = nullptr;
    driver_.cuCtxPopCurrent(&gone);
    return result;
  }
  // The same; an error names the call. `comm` may be null.
  template <class Call>
  Status checked(const char* name, ncclComm_t comm, Call&& call) const {
    return nccl_.check(name, with_context(call), comm);
  }
  // The same, for what the call makes at the pointer that it is given.
  template <class Made, class Call>
  Result<Made> make(const char* name, ncclComm_t comm, Call&& call) const {
    Made made{};
    Status status = checked(name, comm, [&] { return call(&made); });
    if (!status) return std::move(status).error();
    return made;
  }

  // A stream and memory for one host all-gather. Whoever has it gives it back once its work is
  // done; what was not done in time is given up, and freed with the LoadedNccl.
  struct Staging {
    Stream stream;
    Address memory;
  };
  Result<Staging> take_staging() {
    {
      const std::lock_guard lock(staging_mutex_);
      if (!idle_.empty()) {
        const Staging staging = idle_.back();
        idle_.pop_back();
        return staging;
      }
    }
    const Result<Stream> stream = create_stream();
    if (!stream) return stream.error();
    const Result<Address> memory = allocate_segment(kStaging);
    if (memory) return Staging{*stream, *memory};
    (void)destroy_stream(*stream);
    return memory.error();
  }

  Status gather_into(std::span<std::byte> all, const Staging& staging, CommHandle comm,
                     std::span<const std::byte> mine, Nanoseconds timeout) {
    CUstream const stream = driver_stream(staging.stream);
    const Address into = staging.memory + Bytes{mine.size()};
    const CUresult copied =
        driver_.cuMemcpyHtoDAsync(staging.memory.value, mine.data(), mine.size(), stream);
    if (copied != CUDA_SUCCESS) return driver_.error("cuMemcpyHtoDAsync", copied);
    const Operation gather{.kind = OperationKind::all_gather,
                           .send = staging.memory.pointer(),
                           .receive = into.pointer(),
                           .count = mine.size(),
                           .type = DataType::int8};
    if (Status queued = enqueue(comm, {&gather, 1}, staging.stream); !queued) return queued;
    if (Status done = wait_for(stream, comm, timeout); !done) return done;
    const CUresult back = driver_.cuMemcpyDtoHAsync(all.data(), into.value, all.size(), stream);
    if (back != CUDA_SUCCESS) return driver_.error("cuMemcpyDtoHAsync", back);
    return wait_for(stream, comm, timeout);
  }

  // Looks at an event, so that a rank that never comes is found out.
  Status wait_for(CUstream stream, CommHandle comm, Nanoseconds timeout) {
    CUevent event = nullptr;
    CUresult result = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) return driver_.error("cuEventCreate", result);
    const std::unique_ptr<CUevent_st, decltype(driver_.cuEventDestroy)> owner(
        event, driver_.cuEventDestroy);
    result = driver_.cuEventRecord(event, stream);
    if (result != CUDA_SUCCESS) return driver_.error("cuEventRecord", result);
    const auto begin = std::chrono::steady_clock::now();
    while (true) {
      result = driver_.cuEventQuery(event);
      if (result == CUDA_SUCCESS) return {};
      if (result != CUDA_ERROR_NOT_READY) return driver_.error("cuEventQuery", result);
      if (Status works = async_error(comm); !works) return works;
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited > waitable(timeout)) {
        return Error(ErrorCode::device, "not all ranks came in time to agree");
      }
      // Ranks that come together leave together: benchmarks begin to measure then.
      if (waited < std::chrono::milliseconds(1)) continue;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  const NcclLibrary& nccl_;
  const cuda::Driver& driver_;
  const CUdevice device_;
  const CUcontext context_;

  std::mutex staging_mutex_;  // of what follows; not held while NCCL or another rank is waited for
  std::vector<Staging> idle_, given_up_;
};

}  // namespace

std::unique_ptr<Nccl> make_loaded_nccl(const NcclLibrary& nccl, const cuda::Driver& driver,
                                       CUdevice device, CUcontext context) {
  return std::make_unique<LoadedNccl>(nccl, driver, device, context);
}

const NcclLibrary* library_of(const Nccl& nccl) {
  const auto* const loaded = dynamic_cast<const LoadedNccl*>(&nccl);
  return loaded != nullptr ? &loaded->library() : nullptr;
}

Result<std::unique_ptr<Nccl>> load_nccl(int number) {
  if (Status good = check_settings(); !good) return std::move(good).error();
  const Result<const cuda::Driver*> driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const Result<const NcclLibrary*> nccl = NcclLibrary::get();
  if (!nccl) return nccl.error();
  CUdevice device = 0;
  CUresult result = (*driver)->cuDeviceGet(&device, number);
  if (result != CUDA_SUCCESS) return (*driver)->error("cuDeviceGet", result);
  CUcontext context = nullptr;
  result = (*driver)->cuDevicePrimaryCtxRetain(&context, device);
  if (result != CUDA_SUCCESS) return (*driver)->error("cuDevicePrimaryCtxRetain", result);
  return make_loaded_nccl(**nccl, **driver, device, context);
}

}  // namespace weir
