// SPDX-License-Identifier: Apache-2.0
// A range of addresses.
#pragma once

#include "weir/types.h"

namespace weir {

struct Range {
  Address begin;
  Bytes size;

  Address end() const { return begin + size; }
  bool contains(Range other) const { return begin <= other.begin && other.end() <= end(); }
  friend bool operator==(const Range&, const Range&) = default;
};

}  // namespace weir
