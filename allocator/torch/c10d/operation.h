// SPDX-License-Identifier: Apache-2.0
// One operation of c10d: which memory it uses, what its thread did while it was queued, and what
// the code that sees operations (operations.h) asks of the allocator for it.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "weir/types.h"

namespace weir::pytorch {

// Noted by one thread, between begin() and end(): what the thread does meanwhile.
struct Operation {
  // A call of record_stream() that has not been carried out: the operation's fence replaces it.
  struct Recorded {
    void* block;
    c10::cuda::CUDAStream user;
  };

  // Addresses in the memory of its tensors, of whatever allocator: the caller's to fill in.
  c10::SmallVector<const void*, 8> memory;
  // Blocks that the thread has allocated: PyTorch's flattened copies of lists of tensors, say.
  c10::SmallVector<const void*, 4> allocated;
  std::vector<Recorded> recorded;
  // What the thread frees waits here, and goes back when the fence has been taken.
  bool holds_frees = false;
  std::vector<void*> freed;
  Operation* outer = nullptr;    // which was being noted before
  bool waits_for_ranks = false;  // it ends when other ranks come

  // Adds what `other` has noted.
  void add(const Operation& other);

  // Does any thread of the process note an operation? Cheap.
  static bool any_noted() { return noted_.load(std::memory_order_relaxed) != 0; }
  // The calling thread allocated a block. Nothing happens if it notes no operation.
  static void note_allocated(const void* block);
  // Does the operation that the thread notes keep the block for later, instead of its free?
  static bool holds_free(void* block);
  // Is record_stream() for this block left to the fence of the operation that the thread notes?
  static bool leaves_to_fence(void* block, c10::cuda::CUDAStream user);

  // From now on the calling thread notes `operation`; the one that it noted before.
  static void begin(Operation& operation);
  static void end(Operation& operation) noexcept;

 private:
  inline static constinit std::atomic<std::uint32_t> noted_{0};  // threads that note one
};

// Which of a group's communication streams runs an operation. PyTorch has one for each device, and
// one for each peer of operations between two ranks.
struct CommStreamKey {
  static constexpr int kNoPeer = -1;
  const void* group;
  int device;
  int peer = kNoPeer;
  friend auto operator<=>(const CommStreamKey&, const CommStreamKey&) = default;
};

// Threads: self-synchronised; an operation is one thread's. No call of an operation that was queued
// fails: what goes wrong is a warning, and the operation's memory is kept longer than it need be.
class CollectiveMemory {
 public:
  virtual ~CollectiveMemory() = default;

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
