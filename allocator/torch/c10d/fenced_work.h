// SPDX-License-Identifier: Apache-2.0
// The Work of an operation that got a fence: PyTorch's own, and the allocator hears who waited for
// it.
//
// Without that a stream that has waited for an operation, as programs do, would be taken for one
// that has yet to: memory that the operation used would be avoided, or waited for a second time.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "torch/c10d/collective_memory.h"

namespace weir::pytorch {

// All calls are the inner one's.
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

}  // namespace weir::pytorch
