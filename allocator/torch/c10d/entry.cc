// What the Python package calls of the library that sees c10d's operations: by ctypes, and, where
// PyTorch's objects are passed, as an operator of PyTorch's.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <exception>
#include <string>

#include "torch/c10d/operations.h"

namespace {

using weir::pytorch::Operations;

void coalescing_begins(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  if (Operations* const operations = Operations::in_use()) {
    operations->coalescing_begins(group.get());
  }
}

void coalescing_ends(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                     const std::optional<c10::intrusive_ptr<c10d::Work>>& work) {
  if (Operations* const operations = Operations::in_use()) {
    operations->coalescing_ends(group.get(), work ? work->get() : nullptr);
  }
}

}  // namespace

TORCH_LIBRARY(weir_c10d, library) {
  library.def("coalescing_begins", coalescing_begins);
  library.def("coalescing_ends", coalescing_ends);
}

extern "C" {

// The PyTorch that this was built for ("2.11.0+cu130").
const char* weir_c10d_built_for() { return WEIR_TORCH_VERSION; }

// `memory`: what weir_torch_collective_memory() gave. Null, or what went wrong.
const char* weir_c10d_enable(void* memory) {
  thread_local std::string failure;
  try {
    Operations::enable(*static_cast<weir::pytorch::CollectiveMemory*>(memory));
    return nullptr;
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  return failure.c_str();
}

// The operators that have a kernel of Weir's, separated by spaces.
const char* weir_c10d_operators() {
  static const std::string names = [] {
    std::string all;
    for (const char* const name : Operations::names()) all += (all.empty() ? "" : " ") + std::string(name);
    return all;
  }();
  return names.c_str();
}

void weir_c10d_enter_nccl_group() { Operations::enter_nccl_group(); }
void weir_c10d_leave_nccl_group() { Operations::leave_nccl_group(); }

}  // extern "C"
