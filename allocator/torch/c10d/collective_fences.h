// SPDX-License-Identifier: Apache-2.0
// Fences for the operations of c10d, so that their tensors may be dropped at once.
//
// PyTorch does not say which stream an operation runs on; it can only make the current stream wait
// for the operation's end. So for each of PyTorch's communication streams there is a private stream
// of Weir's, that is made to wait for the end of every operation in turn, and runs nothing. The
// fence is taken on the private stream. It is as exact as one on the communication stream: the ends
// of that stream's operations come in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "torch/backend.h"
#include "torch/c10d/operation.h"

namespace weir::pytorch {

// Threads: self-synchronised.
class CollectiveFences final : public CollectiveMemory {
 public:
  // `backend` must outlive this.
  explicit CollectiveFences(Backend& backend) : backend_(backend) {}

  std::optional<Fence> fence(const CommStreamKey& stream, Operation& operation,
                             c10::function_ref<void()> join) override;
  void note_waited(int device, Fence fence) noexcept override;
  void record_uses(Operation& operation) noexcept override;
  void on_current_stream(int device, Operation& operation) noexcept override;

  // Operations that got a fence so far.
  std::uint64_t fenced() const { return fenced_.load(std::memory_order_relaxed); }

 private:
  Stream private_stream(const CommStreamKey& key);
  std::optional<Fence> take_fence(const CommStreamKey& key, Operation& operation,
                                  c10::function_ref<void()> join);

  Backend& backend_;
  std::atomic<std::uint64_t> fenced_{0};
  std::mutex mutex_;
  // Never fewer. A group that is made where another one was has the streams of that one.
  std::map<CommStreamKey, Stream> private_streams_;  // guarded by mutex_
};

}  // namespace weir::pytorch
