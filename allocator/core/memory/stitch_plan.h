// SPDX-License-Identifier: Apache-2.0
// Which free pieces of the home row are put side by side for a request that fits nowhere.
//
// Sees free stretches and page boundaries only, and changes nothing, so it is tested without a
// device.
#pragma once

#include <optional>
#include <vector>

#include "core/base/range.h"
#include "core/memory/home_pages.h"
#include "weir/types.h"

namespace weir {

struct StitchPlan {
  // In the order of the row: the free end of a page, or whole pages, from each stretch.
  std::vector<Range> front;
  Bytes create;               // then this much new memory, in whole pages,
  std::optional<Range> head;  // and bytes from the start of a page on

  // It fits in one piece after all: no row is needed.
  bool is_one_piece() const { return create == 0_B && front.size() + (head ? 1 : 0) == 1; }
};

// For `size` bytes, from `stretches`: free home addresses, disjoint. New pages are made of whole
// `granularity`. Of pairs of an end and a start that suffice, the smallest; else as much as there
// is, the largest stretches first, and the rest created.
StitchPlan plan_stitch(Bytes size, const std::vector<Range>& stretches, const HomePages& pages,
                       Bytes granularity);

}  // namespace weir
