// SPDX-License-Identifier: Apache-2.0
// Sees the operations of c10d's groups, lets those of NCCL's connect within a capture, and gives
// them a fence (collective_fences.h); docs/decisions.md 025.
//
// Every operation of a group passes PyTorch's dispatcher, whoever calls it: Python, DDP's reducer,
// functional collectives, compiled code. So do those of groups that are made later, or split. The
// operators ("c10d::allreduce_") get a kernel at the dispatch key BackendSelect, which comes before
// those of the devices and has no other kernel for them. It hands the call on, and then looks at
// the Work that came back.
//
// PyTorch makes NCCL's communicator when an operation first needs it, in the calling thread. NCCL
// then makes calls that are not permitted while a stream is captured, unless the thread's capture
// mode is relaxed: so it is, while an operation is handed on.
//
// What goes past the dispatcher is left as PyTorch has it: methods of a backend that are called
// directly (`group._get_backend(device).allreduce(...)`).
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/c10d/operation.h"
#include "torch/versions.h"

namespace weir::pytorch {

// The Work of an operation that got a fence: all calls are those of PyTorch's own, and the
// allocator hears who waited for it.
//
// Without that a stream that has waited for an operation, as programs do, would be taken for one
// that has yet to: memory that the operation used would be avoided, or waited for a second time.
class FencedWork final : public c10d::Work {
 public:
  // `memory` must outlive this.
  FencedWork(c10::intrusive_ptr<c10d::Work> inner, CollectiveMemory& memory, int device,
             Fence fence)
      : Work(/*rank=*/-1, inner->retrieveOpType()),
        inner_(std::move(inner)),
        memory_(memory),
        device_(device),
        fence_(fence) {}

  const c10::intrusive_ptr<c10d::Work>& inner() const { return inner_; }

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override {
    inner_->synchronize();
    note_waited();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = inner_->wait(timeout);
    note_waited();
    return done;
  }
  void blockCurrentStream() override {
    inner_->blockCurrentStream();
    note_waited();
  }
  void abort() override { inner_->abort(); }
  // Who waits by the future is not noted. Its class is final and its wait() not virtual; PyTorch
  // has completed it when the operation is queued, so that callbacks run at once, on streams of
  // PyTorch's pool. A stream that has waited so waits again before it takes the memory: for what is
  // over by then.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
  float getDuration() const override { return inner_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
#if WEIR_TORCH_SINCE(14)
  std::chrono::milliseconds getTimeout() const override { return inner_->getTimeout(); }
#endif
#if WEIR_TORCH_SINCE(15)
  std::uint64_t getCompletionKey() const override { return inner_->getCompletionKey(); }
#endif

 private:
  void note_waited() {
    memory_.note_waited(device_, fence_);
    // PyTorch's own Work takes itself off this list, where this one stands for it.
    if (c10d::allow_inflight_collective_as_graph_input()) {
      c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(this));
    }
  }

  const c10::intrusive_ptr<c10d::Work> inner_;
  CollectiveMemory& memory_;
  const int device_;
  const Fence fence_;
};

// Threads: self-synchronised.
class Operations {
 public:
  // The one of the process, which the kernels use; null before enable().
  static Operations* in_use() { return in_use_.load(std::memory_order_acquire); }
  // Operations of NCCL's groups get fences from now on. `memory` must live as long as the process.
  // The operators get their kernel with the first call.
  static void enable(CollectiveMemory& memory);

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
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<const c10d::ProcessGroup*, Coalesced> coalesced_;
};

}  // namespace weir::pytorch
