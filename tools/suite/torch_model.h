// SPDX-License-Identifier: Apache-2.0
// PyTorch's caching allocator as a model: where CUDACachingAllocator.cpp (PyTorch 2.11) would put a
// program's blocks, and so how much memory it would hold, with its settings. No GPU and no PyTorch
// is needed. bench/peers has the allocator itself.
#pragma once

#include "suite/allocator.h"

namespace weir::suite {

struct TorchSettings {
  bool expandable_segments = false;
  Bytes max_split = Bytes{~std::uint64_t{0}};  // max_split_size_mb
  // Of the driver's memory. Cached segments go back before a request fails.
  Bytes limit = Bytes{~std::uint64_t{0}};
  friend bool operator==(const TorchSettings&, const TorchSettings&) = default;
};

AllocatorKind torch_model_kind(const TorchSettings& settings);

}  // namespace weir::suite
