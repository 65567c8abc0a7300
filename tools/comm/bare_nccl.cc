// SPDX-License-Identifier: Apache-2.0
#include "comm/bare_nccl.h"

#ifdef WEIR_HAVE_NCCL
#include "comm/nccl/loaded_nccl.h"
#endif

namespace weir {

Status queue_bare(Nccl& nccl, CommHandle comm, const Operation& operation, int times,
                  Stream stream) {
#ifdef WEIR_HAVE_NCCL
  if (const NcclLibrary* const library = library_of(nccl)) {
    auto* const on = static_cast<CUstream>(stream.handle);
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < times && result == ncclSuccess; ++i) {
      result = library->call(operation, comm_of(comm), on);
    }
    return library->check("bare NCCL", result, comm_of(comm));
  }
#endif
  Status queued;
  for (int i = 0; i < times && queued; ++i) queued = nccl.enqueue(comm, {&operation, 1}, stream);
  return queued;
}

}  // namespace weir
