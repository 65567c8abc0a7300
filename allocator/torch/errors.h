// SPDX-License-Identifier: Apache-2.0
// Weir's errors as PyTorch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include <utility>

#include "weir/result.h"

namespace weir::pytorch {

// A c10::Error, which Python sees as a RuntimeError: of what the device refused, a
// c10::AcceleratorError, as C10_CUDA_CHECK throws it (torch.AcceleratorError).
[[noreturn]] void raise(const Error& error);

inline void check(const Status& status) {
  if (!status.ok()) [[unlikely]]
    raise(status.error());
}

template <class Value>
Value check(Result<Value> result) {
  if (!result.ok()) [[unlikely]]
    raise(result.error());
  return *std::move(result);
}

}  // namespace weir::pytorch
