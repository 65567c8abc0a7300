// SPDX-License-Identifier: Apache-2.0
#include "comm/bare_nccl.h"

#include <utility>

#ifdef WEIR_HAVE_NCCL
#include "comm/nccl/loaded_nccl.h"
#endif

namespace weir {
namespace {

#ifdef WEIR_HAVE_NCCL
Status queue_one(const NcclLibrary& nccl, ncclComm_t comm, const OperationGroup& group,
                 CUstream stream) {
  ncclResult_t result = group.size() > 1 ? nccl.ncclGroupStart() : ncclSuccess;
  for (const Operation& operation : group) {
    if (result != ncclSuccess) break;
    const auto op = static_cast<ncclRedOp_t>(operation.reduction.op);
    result = nccl.call(operation, op, comm, stream);
  }
  if (group.size() > 1 && result == ncclSuccess) result = nccl.ncclGroupEnd();
  return nccl.check("bare NCCL", result, comm);
}
#endif

// On simulated ranks.
Status queue_one(Nccl& nccl, CommHandle comm, const OperationGroup& group, Stream stream) {
  Status queued = group.size() > 1 ? nccl.group_start() : Status();
  for (const Operation& operation : group) {
    if (queued) queued = nccl.enqueue(comm, operation, stream);
  }
  return group.size() > 1 && queued ? nccl.group_end() : std::move(queued);
}

template <class Queue>
Status queue_all(std::span<const OperationGroup> groups, int times, Queue&& queue) {
  for (int i = 0; i < times; ++i) {
    Status queued = queue(groups[static_cast<std::size_t>(i) % groups.size()]);
    if (!queued) return queued;
  }
  return {};
}

}  // namespace

Status queue_bare(Nccl& nccl, CommHandle comm, std::span<const OperationGroup> groups, int times,
                  Stream stream) {
#ifdef WEIR_HAVE_NCCL
  if (const NcclLibrary* const library = library_of(nccl)) {
    return queue_all(groups, times, [&, of = comm_of(comm)](const OperationGroup& group) {
      return queue_one(*library, of, group, static_cast<CUstream>(stream.handle));
    });
  }
#endif
  return queue_all(groups, times, [&](const OperationGroup& group) {
    return queue_one(nccl, comm, group, stream);
  });
}

}  // namespace weir
