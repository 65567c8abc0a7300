#include "comm/nccl/loaded_nccl.h"

#include <cstring>
#include <memory>
#include <utility>

#include "comm/nccl/scalar.h"

namespace weir {
namespace {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(ncclFloat8e5m2) == static_cast<int>(DataType::float8_e5m2));
static_assert(static_cast<int>(ncclAvg) == static_cast<int>(ReduceOp::average));

CommHandle handle_of(ncclComm_t comm) { return {Address::of(comm).value}; }

ncclConfig_t config_of(const CommConfig& config) {
  ncclConfig_t made = NCCL_CONFIG_INITIALIZER;
  made.blocking = 1;
  made.commName = config.name.c_str();
  if (config.max_ctas) made.maxCTAs = *config.max_ctas;
  return made;
}

}  // namespace

template <class Call>
auto LoadedNccl::with_context(Call&& call) const {
  driver_.cuCtxPushCurrent(context_);
  const auto result = [&] {
    const cuda::RelaxedCaptureScope relaxed(driver_);
    return call();
  }();
  CUcontext gone = nullptr;
  driver_.cuCtxPopCurrent(&gone);
  return result;
}

template <class Call>
Status LoadedNccl::checked(const char* name, ncclComm_t comm, Call&& call) const {
  return nccl_.check(name, with_context(call), comm);
}

LoadedNccl::~LoadedNccl() {
  for (const std::vector<Staging>* const all : {&idle_, &given_up_}) {
    for (const Staging& staging : *all) {
      (void)free_segment(staging.memory);
      (void)destroy_stream(staging.stream);
    }
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

Result<UniqueId> LoadedNccl::unique_id() {
  ncclUniqueId made;
  Status status = checked("ncclGetUniqueId", nullptr, [&] { return nccl_.ncclGetUniqueId(&made); });
  if (!status) return std::move(status).error();
  UniqueId id;
  std::memcpy(id.bytes.data(), &made, sizeof made);
  return id;
}

Result<CommHandle> LoadedNccl::init(const UniqueId& id, int ranks, int rank,
                                    const CommConfig& config) {
  ncclUniqueId same;
  std::memcpy(&same, id.bytes.data(), sizeof same);
  ncclConfig_t with = config_of(config);
  ncclComm_t comm = nullptr;
  const ncclResult_t result =
      with_context([&] { return nccl_.ncclCommInitRankConfig(&comm, ranks, same, rank, &with); });
  if (result == ncclInProgress) {
    with_context([&] { return nccl_.ncclCommAbort(comm); });
    return calls_that_do_not_wait();
  }
  if (Status status = nccl_.check("ncclCommInitRankConfig", result); !status) {
    return std::move(status).error();
  }
  return handle_of(comm);
}

Result<CommHandle> LoadedNccl::split(CommHandle comm, int color, int key,
                                     const CommConfig& config) {
  ncclConfig_t with = config_of(config);
  ncclComm_t made = nullptr;
  Status status = checked("ncclCommSplit", comm_of(comm), [&] {
    return nccl_.ncclCommSplit(comm_of(comm), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &made,
                               &with);
  });
  if (!status) return std::move(status).error();
  return handle_of(made);
}

Result<CommHandle> LoadedNccl::shrink(CommHandle comm, std::span<const int> excluded, bool abort,
                                      const CommConfig& config) {
  ncclConfig_t with = config_of(config);
  std::vector<int> gone(excluded.begin(), excluded.end());
  ncclComm_t made = nullptr;
  Status status = checked("ncclCommShrink", comm_of(comm), [&] {
    return nccl_.ncclCommShrink(comm_of(comm), gone.data(), static_cast<int>(gone.size()), &made,
                                &with, abort ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT);
  });
  if (!status) return std::move(status).error();
  return handle_of(made);
}

Status LoadedNccl::destroy(CommHandle comm) {
  return checked("ncclCommDestroy", nullptr, [&] { return nccl_.ncclCommDestroy(comm_of(comm)); });
}
Status LoadedNccl::abort(CommHandle comm) {
  return checked("ncclCommAbort", nullptr, [&] { return nccl_.ncclCommAbort(comm_of(comm)); });
}
Status LoadedNccl::revoke(CommHandle comm) {
  return checked("ncclCommRevoke", comm_of(comm),
                 [&] { return nccl_.ncclCommRevoke(comm_of(comm), NCCL_REVOKE_DEFAULT); });
}

// Reads memory only: no context is needed, and no capture knows of it.
Status LoadedNccl::async_error(CommHandle comm) {
  ncclResult_t found = ncclSuccess;
  const ncclResult_t result = nccl_.ncclCommGetAsyncError(comm_of(comm), &found);
  if (Status status = nccl_.check("ncclCommGetAsyncError", result, comm_of(comm)); !status) {
    return status;
  }
  return nccl_.check("in the background", found, comm_of(comm));
}

Result<int> LoadedNccl::size(CommHandle comm) {
  int size = 0;
  const ncclResult_t result = nccl_.ncclCommCount(comm_of(comm), &size);
  if (Status status = nccl_.check("ncclCommCount", result); !status) {
    return std::move(status).error();
  }
  return size;
}

Result<int> LoadedNccl::rank(CommHandle comm) {
  int rank = 0;
  const ncclResult_t result = nccl_.ncclCommUserRank(comm_of(comm), &rank);
  if (Status status = nccl_.check("ncclCommUserRank", result); !status) {
    return std::move(status).error();
  }
  return rank;
}

Status LoadedNccl::enqueue(CommHandle comm, const Operation& operation, Stream stream) {
  const cuda::ContextScope context(driver_, context_);
  const cuda::RelaxedCaptureScope relaxed(driver_);
  auto op = static_cast<ncclRedOp_t>(operation.reduction.op);
  const auto type = static_cast<ncclDataType_t>(operation.type);
  if (operation.reduction.premul) {
    std::array<std::byte, 8> premul = scalar_of(*operation.reduction.premul, operation.type);
    Status made = nccl_.check("ncclRedOpCreatePreMulSum",
                              nccl_.ncclRedOpCreatePreMulSum(
                                  &op, premul.data(), type, ncclScalarHostImmediate, comm_of(comm)),
                              comm_of(comm));
    if (!made) return made;
  }
  Status called =
      nccl_.check(name_of(operation.kind),
                  nccl_.call(operation, op, comm_of(comm), static_cast<CUstream>(stream.handle)),
                  comm_of(comm));
  if (operation.reduction.premul) (void)nccl_.ncclRedOpDestroy(op, comm_of(comm));
  return called;
}

Status LoadedNccl::group_start() { return nccl_.check("ncclGroupStart", nccl_.ncclGroupStart()); }
Status LoadedNccl::group_end() {
  return checked("ncclGroupEnd", nullptr, [&] { return nccl_.ncclGroupEnd(); });
}

Result<Address> LoadedNccl::allocate_segment(Bytes bytes) {
  void* segment = nullptr;
  Status status =
      checked("ncclMemAlloc", nullptr, [&] { return nccl_.ncclMemAlloc(&segment, bytes.count); });
  if (!status) return std::move(status).error();
  return Address::of(segment);
}

Status LoadedNccl::free_segment(Address segment) {
  return checked("ncclMemFree", nullptr, [&] { return nccl_.ncclMemFree(segment.pointer()); });
}

Result<RegistrationHandle> LoadedNccl::register_range(CommHandle comm, Address address,
                                                      Bytes bytes) {
  void* handle = nullptr;
  Status status = checked("ncclCommRegister", comm_of(comm), [&] {
    return nccl_.ncclCommRegister(comm_of(comm), address.pointer(), bytes.count, &handle);
  });
  if (!status) return std::move(status).error();
  return RegistrationHandle{Address::of(handle).value};
}

Status LoadedNccl::deregister(CommHandle comm, RegistrationHandle registration) {
  return checked("ncclCommDeregister", comm_of(comm), [&] {
    return nccl_.ncclCommDeregister(comm_of(comm), Address{registration.value}.pointer());
  });
}

}  // namespace weir
