// SPDX-License-Identifier: Apache-2.0
// What the code that sees c10d's operations (operations.h) asks of the allocator. The two are
// libraries of their own, as PyTorch may have been built without c10d; this interface is all that
// they share.
#pragma once

#include <c10/util/FunctionRef.h>

#include <optional>

#include "torch/c10d/operation.h"
#include "weir/types.h"

namespace weir::pytorch {

// Which of a group's communication streams runs an operation. PyTorch has one for each device, and
// one for each peer of operations between two ranks.
struct CommStreamKey {
  static constexpr int kNoPeer = -1;
  const void* group;
  int device;
  int peer = kNoPeer;
  friend bool operator==(const CommStreamKey&, const CommStreamKey&) = default;
};

// Threads: self-synchronised; an operation is one thread's. No call of an operation that was queued
// fails: what goes wrong is a warning, and the operation's memory is kept longer than it need be.
class CollectiveMemory {
 public:
  virtual ~CollectiveMemory() = default;

  // The calling thread is about to queue the operation: from now on until end() what the thread
  // does is noted in it.
  virtual void begin(Operation& operation) = 0;
  virtual void end(Operation& operation) noexcept = 0;

  // The operation was queued. Its memory may be freed from now on: what gets it next is ordered, on
  // the GPU, behind the operation, and behind no later one of that communication stream. If some of
  // it is another allocator's, which knows no fences, this is record_uses(), and `join` is not
  // called: PyTorch keeps the tensors.
  //
  // `join` makes the stream that is then the thread's current one wait for the operation's end, and
  // has PyTorch let go of the tensors that it kept for the operation. It is called once at most,
  // and must run no Python. Returns the point that note_waited() takes, if there is one.
  virtual std::optional<Fence> fence(const CommStreamKey& stream, Operation& operation,
                                     c10::function_ref<void()> join) = 0;
  // The program has made the thread's current stream of the device wait for the operation.
  virtual void note_waited(int device, Fence fence) = 0;
  // The operation gets no fence: the calls of record_stream() that it has noted are carried out.
  virtual void record_uses(Operation& operation) noexcept = 0;
  // The same: it was queued on the thread's current stream of that device.
  virtual void on_current_stream(int device, Operation& operation) noexcept = 0;
};

}  // namespace weir::pytorch
