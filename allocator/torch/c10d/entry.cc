// SPDX-License-Identifier: Apache-2.0
// What the Python package calls, by ctypes, of the library that sees c10d's operations.
#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <string>

#include "torch/c10d/operations.h"

namespace {

using weir::pytorch::Operations;

// Of the last call of this thread that failed.
std::string& failure() {
  thread_local std::string text;
  return text;
}

// 0; or -1, and failure() says why.
template <class Function>
int guarded(Function&& function) {
  try {
    function();
    return 0;
  } catch (const c10::Error& error) {
    failure() = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure() = error.what();
  }
  return -1;
}

// As ProcessGroup._id() in Python gives it.
const c10d::ProcessGroup* group_of(std::int64_t id) {
  return reinterpret_cast<const c10d::ProcessGroup*>(static_cast<std::intptr_t>(id));
}

}  // namespace

extern "C" {

// The PyTorch that this was built for ("2.11.0+cu130").
const char* weir_c10d_built_for() { return WEIR_TORCH_VERSION; }

const char* weir_c10d_failure() { return failure().c_str(); }

// `memory`: what weir_torch_collective_memory() gave.
int weir_c10d_enable(void* memory) {
  return guarded(
      [&] { Operations::enable(*static_cast<weir::pytorch::CollectiveMemory*>(memory)); });
}

// The operators that have a kernel of Weir's, separated by spaces.
const char* weir_c10d_operators() {
  static const std::string names = [] {
    std::string all;
    for (const char* const name : Operations::names()) all.append(name).append(" ");
    all.pop_back();
    return all;
  }();
  return names.c_str();
}

void weir_c10d_coalescing_begins(std::int64_t group) {
  if (Operations* const operations = Operations::in_use()) {
    operations->coalescing_begins(group_of(group));
  }
}

// `join` has the thread's current stream wait for the coalesced operation, and returns 0; null:
// there was none, or it ran on the current stream.
int weir_c10d_coalescing_ends(std::int64_t group, int (*join)()) {
  Operations* const operations = Operations::in_use();
  if (operations == nullptr) return 0;
  const auto checked_join = [&] { TORCH_CHECK(join() == 0, "weir: the coalesced work failed"); };
  return guarded([&] {
    if (join == nullptr) return operations->coalescing_ends(group_of(group), std::nullopt);
    operations->coalescing_ends(group_of(group), checked_join);
  });
}

void weir_c10d_enter_nccl_group() { Operations::enter_nccl_group(); }
void weir_c10d_leave_nccl_group() { Operations::leave_nccl_group(); }

}  // extern "C"
