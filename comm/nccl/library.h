// SPDX-License-Identifier: Apache-2.0
// NCCL's entry points, loaded at run time: a program starts on a machine without it, and shares the
// one that the process has already (PyTorch's).
#pragma once

#include <nccl.h>

#include <memory>
#include <string>
#include <string_view>

#include "cuda/driver.h"
#include "weir/comm/nccl.h"
#include "weir/comm/operation.h"
#include "weir/result.h"

namespace weir {

// clang-format off
#define WEIR_NCCL_CALLS(X)                                                               \
  X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId)                          \
  X(ncclCommInitRankConfig) X(ncclCommSplit) X(ncclCommDestroy)                          \
  X(ncclCommAbort) X(ncclCommRevoke) X(ncclCommGetAsyncError) X(ncclCommCount)           \
  X(ncclCommUserRank) X(ncclCommRegister) X(ncclCommDeregister) X(ncclMemAlloc)          \
  X(ncclMemFree) X(ncclGroupStart) X(ncclGroupEnd) X(ncclAllReduce) X(ncclAllGather)     \
  X(ncclReduceScatter) X(ncclBroadcast) X(ncclReduce) X(ncclAlltoAll) X(ncclGather)      \
  X(ncclScatter) X(ncclSend) X(ncclRecv)
// clang-format on

// Calls read nccl.ncclAllReduce(...).
struct NcclLibrary {
#define WEIR_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  WEIR_NCCL_CALLS(WEIR_NCCL_MEMBER)
#undef WEIR_NCCL_MEMBER
  int version = 0;  // 22809

  // Loads it, at the first call, after the settings that captures need were made. Errors:
  // unavailable.
  static Result<const NcclLibrary*> get();

  // Calls the function of the operation, which is known to be right (Operation::check()).
  ncclResult_t call(const Operation& operation, ncclComm_t comm, cudaStream_t stream) const;

  // `comm` may be null: the last words are then the process's.
  Status check(std::string_view call, ncclResult_t result, ncclComm_t comm = nullptr) const;
};

inline ncclResult_t NcclLibrary::call(const Operation& operation, ncclComm_t comm,
                                      cudaStream_t stream) const {
  const auto& [kind, send, receive, count, data_type, reduction, peer] = operation;
  const auto type = static_cast<ncclDataType_t>(data_type);
  const auto op = static_cast<ncclRedOp_t>(reduction);
  switch (kind) {
    case OperationKind::all_reduce:
      return ncclAllReduce(send, receive, count, type, op, comm, stream);
    case OperationKind::all_gather:
      return ncclAllGather(send, receive, count, type, comm, stream);
    case OperationKind::reduce_scatter:
      return ncclReduceScatter(send, receive, count, type, op, comm, stream);
    case OperationKind::broadcast:
      return ncclBroadcast(send, receive, count, type, peer, comm, stream);
    case OperationKind::reduce:
      return ncclReduce(send, receive, count, type, op, peer, comm, stream);
    case OperationKind::all_to_all:
      return ncclAlltoAll(send, receive, count, type, comm, stream);
    case OperationKind::gather:
      return ncclGather(send, receive, count, type, peer, comm, stream);
    case OperationKind::scatter:
      return ncclScatter(send, receive, count, type, peer, comm, stream);
    case OperationKind::send:
      return ncclSend(send, count, type, peer, comm, stream);
    case OperationKind::receive:
      return ncclRecv(receive, count, type, peer, comm, stream);
  }
  return ncclInvalidArgument;
}

// One GPU's NCCL. `nccl` and `driver` outlive it. It releases the primary context of `device`,
// which `context` is.
std::unique_ptr<Nccl> make_loaded_nccl(const NcclLibrary& nccl, const cuda::Driver& driver,
                                       CUdevice device, CUcontext context);
// The library behind it; null: it is none of the above.
const NcclLibrary* library_of(const Nccl& nccl);
inline ncclComm_t comm_of(CommHandle comm) {
  return static_cast<ncclComm_t>(Address{comm.value}.pointer());
}

// Errors: invalid_argument (a setting with which captures can't work).
Status check_settings();
Error calls_that_do_not_wait();

}  // namespace weir
