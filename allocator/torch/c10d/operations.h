// SPDX-License-Identifier: Apache-2.0
// Sees the operations of c10d's groups, lets those of NCCL's connect within a capture, and gives
// them a fence (collective_fences.h).
//
// Every operation of a group passes PyTorch's dispatcher, whoever calls it: Python, DDP's reducer,
// functional collectives, compiled code. So do those of groups that are made later, or split. The
// operators ("c10d::allreduce_") get a kernel at the dispatch key BackendSelect, which comes before
// those of the devices and has no other kernel for them. It hands the call on, and then looks at
// the Work that came back. Groups and their backends stay PyTorch's own objects.
//
// PyTorch makes NCCL's communicator when an operation first needs it, in the calling thread. NCCL
// then makes calls that are not permitted while a stream is captured, unless the thread's capture
// mode is relaxed: so it is, while an operation is handed on. The mode says what this thread may
// call; captures, their graphs, and who connects with whom and when, stay as PyTorch has them.
//
// What goes past the dispatcher is left as PyTorch has it: methods of a backend that are called
// directly (`group._get_backend(device).allreduce(...)`).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "torch/c10d/collective_memory.h"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace weir::pytorch {

// Threads: self-synchronised.
class Operations {
 public:
  // The one of the process, which the kernels use; null before enable().
  static Operations* in_use() { return in_use_.load(std::memory_order_acquire); }
  // Operations of NCCL's groups get fences from now on. `memory` must live as long as the process.
  // The operators get their kernel with the first call.
  static void enable(CollectiveMemory& memory);
  // The operators of c10d that have a kernel of Weir's.
  static std::vector<const char*> names();

  explicit Operations(CollectiveMemory& memory) : memory_(memory) {}

  CollectiveMemory& memory() { return memory_; }

  // The operation was queued, and `work` came back: null, if it ran on the current stream, or is
  // part of a coalesced one. `tensors` are its own; they may be moved from. Returns the work that
  // the program gets: this one, or a FencedWork around it.
  c10::intrusive_ptr<c10d::Work> queued(const CommStreamKey& stream, Operation& operation,
                                        c10::intrusive_ptr<c10d::Work> work,
                                        c10::SmallVectorImpl<at::Tensor>& tensors);

  // Between these two the group's operations are parts of one, which `work` is of. Null: they ran
  // on the current stream, or failed.
  void coalescing_begins(const c10d::ProcessGroup* group);
  void coalescing_ends(const c10d::ProcessGroup* group, const c10::intrusive_ptr<c10d::Work>& work);
  // Has the group coalesced operations of NCCL's since it began?
  bool has_coalesced(const c10d::ProcessGroup* group);

  // While this thread is within a group of NCCL's own (ncclGroupStart), operations are not launched
  // before its end, and PyTorch keeps their tensors.
  static void enter_nccl_group();
  static void leave_nccl_group();

 private:
  struct Coalesced {
    int device = 0;
    Operation operation;
    std::vector<at::Tensor> tensors;  // alive until their fence is taken
  };

  // The operation was queued, and is part of no other. Null `work`: it ran on the current stream.
  std::optional<Fence> fence_of(const CommStreamKey& stream, Operation& operation,
                                const c10::intrusive_ptr<c10d::Work>& work);
  bool add_to_coalesced(const CommStreamKey& stream, Operation& operation,
                        c10::SmallVectorImpl<at::Tensor>& tensors);

  inline static constinit std::atomic<Operations*> in_use_{nullptr};

  CollectiveMemory& memory_;
  std::atomic<int> coalescing_groups_{0};
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<const c10d::ProcessGroup*, std::unique_ptr<Coalesced>> coalesced_;
};

}  // namespace weir::pytorch
