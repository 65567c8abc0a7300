// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "suite/allocator.h"

namespace weir::suite {

std::span<const AllocatorKind> built_in_allocators() {
  static const std::vector<AllocatorKind> kKinds = {
      // in the order of tables
      weir_heap_kind(),
      best_fit_kind(),
      driver_alone_kind(),
  };
  return kKinds;
}

}  // namespace weir::suite
