// SPDX-License-Identifier: Apache-2.0
// One operation of c10d: which memory it uses, and what its thread did while it was queued.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace weir::pytorch {

// Noted by one thread, between CollectiveMemory::begin() and end().
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

  // Adds what `other` has noted. (Here, as two libraries use it.)
  void add(const Operation& other) {
    memory.append(other.memory.begin(), other.memory.end());
    allocated.append(other.allocated.begin(), other.allocated.end());
    recorded.insert(recorded.end(), other.recorded.begin(), other.recorded.end());
    waits_for_ranks = waits_for_ranks || other.waits_for_ranks;
  }

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

}  // namespace weir::pytorch
