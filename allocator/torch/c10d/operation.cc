// SPDX-License-Identifier: Apache-2.0
#include "torch/c10d/operation.h"

#include <algorithm>

namespace weir::pytorch {
namespace {

constinit thread_local Operation* of_this_thread = nullptr;

}  // namespace

void Operation::add(const Operation& other) {
  memory.append(other.memory.begin(), other.memory.end());
  allocated.append(other.allocated.begin(), other.allocated.end());
  recorded.insert(recorded.end(), other.recorded.begin(), other.recorded.end());
  waits_for_ranks = waits_for_ranks || other.waits_for_ranks;
}

void Operation::note_allocated(const void* block) {
  if (of_this_thread != nullptr) of_this_thread->allocated.push_back(block);
}

bool Operation::holds_free(void* block) {
  if (of_this_thread == nullptr || !of_this_thread->holds_frees) return false;
  of_this_thread->freed.push_back(block);
  return true;
}

bool Operation::leaves_to_fence(void* block, c10::cuda::CUDAStream user) {
  if (of_this_thread == nullptr) return false;
  const auto& memory = of_this_thread->memory;
  if (std::find(memory.begin(), memory.end(), block) == memory.end()) return false;
  of_this_thread->recorded.push_back({block, user});
  return true;
}

void Operation::begin(Operation& operation) {
  operation.outer = of_this_thread;
  of_this_thread = &operation;
  noted_.fetch_add(1, std::memory_order_relaxed);
}

void Operation::end(Operation& operation) noexcept {
  of_this_thread = operation.outer;
  noted_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace weir::pytorch
