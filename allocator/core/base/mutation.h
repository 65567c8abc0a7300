// SPDX-License-Identifier: Apache-2.0
// For tests of the tests: a build with WEIR_MUTANTS leaves out one wait or fence at a time, and the
// happens-before checker must notice. Elsewhere `left_out` is a constant false.
#pragma once

namespace weir::mutation {

enum class Site {
  none,
  wait_for_bytes_of_same_heap,  // fences that other streams hold on bytes a heap uses again
  wait_for_donor,               // the work of the stream that freed bytes, when another takes them
  wait_for_fences_of_donated,   // fences of third streams on such bytes
  wait_for_small_bytes,         // the same for the bytes of small blocks
  fence_records,                // the event of an explicit fence
  fence_goes_with_block,        // a block's fences when it is freed into its pages
  fence_goes_with_small_block,  // ... or into its slab
  fence_goes_with_slab,         // a slab's fences when it goes back to its pages
  record_stream_fences,         // the fence of record_stream, taken at deallocate
  retire_records,               // the last fence of a stream about to be destroyed
  trim_checks_completion,       // that a page's work is done before it is unmapped
};

#ifdef WEIR_MUTANTS
Site left_out_site();
void leave_out(Site site);
inline bool left_out(Site site) { return left_out_site() == site; }
#else
constexpr bool left_out(Site /*site*/) { return false; }
#endif

}  // namespace weir::mutation
