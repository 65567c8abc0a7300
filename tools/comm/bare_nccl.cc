#include "comm/bare_nccl.h"

#include <utility>

#ifdef WEIR_HAVE_NCCL
#include "comm/nccl/loaded_nccl.h"
#endif

namespace weir {
namespace {

// As queue_bare(), of `library`, which has the calls.
template <class Library>
Status queue_all(const Library& library, std::span<const OperationGroup> groups, int times) {
  for (int i = 0; i < times; ++i) {
    const OperationGroup& group = groups[static_cast<std::size_t>(i) % groups.size()];
    const bool grouped = group.size() > 1;
    auto result = grouped ? library.begin() : Library::success();
    for (std::size_t at = 0; at < group.size() && library.good(result); ++at) {
      result = library.call(group[at]);
    }
    if (grouped && library.good(result)) result = library.end();
    if (!library.good(result)) return library.status(std::move(result));
  }
  return {};
}

struct SimulatedCalls {
  Nccl& nccl;
  CommHandle comm;
  Stream stream;
  static Status success() { return {}; }
  static bool good(const Status& result) { return result.ok(); }
  static Status status(Status result) { return result; }
  Status begin() const { return nccl.group_start(); }
  Status end() const { return nccl.group_end(); }
  Status call(const Operation& operation) const { return nccl.enqueue(comm, operation, stream); }
};

#ifdef WEIR_HAVE_NCCL
struct LoadedCalls {
  const NcclLibrary& nccl;
  ncclComm_t comm;
  CUstream stream;
  static ncclResult_t success() { return ncclSuccess; }
  static bool good(ncclResult_t result) { return result == ncclSuccess; }
  Status status(ncclResult_t result) const { return nccl.check("bare NCCL", result, comm); }
  ncclResult_t begin() const { return nccl.ncclGroupStart(); }
  ncclResult_t end() const { return nccl.ncclGroupEnd(); }
  ncclResult_t call(const Operation& operation) const {
    return nccl.call(operation, static_cast<ncclRedOp_t>(operation.reduction.op), comm, stream);
  }
};
#endif

}  // namespace

Status queue_bare(Nccl& nccl, CommHandle comm, std::span<const OperationGroup> groups, int times,
                  Stream stream) {
#ifdef WEIR_HAVE_NCCL
  if (const NcclLibrary* const library = library_of(nccl)) {
    return queue_all(LoadedCalls{*library, comm_of(comm), static_cast<CUstream>(stream.handle)},
                     groups, times);
  }
#endif
  return queue_all(SimulatedCalls{nccl, comm, stream}, groups, times);
}

}  // namespace weir
