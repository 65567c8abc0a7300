// SPDX-License-Identifier: Apache-2.0
// For benchmarks that show what each mechanism is good for: a build with WEIR_ABLATION leaves out
// those that its program names (bench/fragmentation/run --without). Elsewhere `without` is a
// constant false. docs/performance.md says what leaving each out does.
#pragma once

#include <cstdint>

namespace weir {

// bench/fragmentation/run reads this list, one a line.
enum class Mechanism : std::uint8_t {
  stitched_rows,
  idle_rows,
  rows_by_size,
  remap_budget,
  remembered_places,
  brief_key,
  others_cached,
  cached_blocks,
  cached_names,
  two_ends,
  longest_free,
  avoiding_recent,
  growth_past_recent,
  growth_beside_used,
  slack,
  notes,
  large_pages,
  captured_pages,
  slab_best_fit,
};

#ifdef WEIR_ABLATION
bool without(Mechanism mechanism);  // the program's
#else
constexpr bool without(Mechanism /*mechanism*/) { return false; }
#endif

}  // namespace weir
