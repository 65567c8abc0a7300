// SPDX-License-Identifier: Apache-2.0
// Through which mapping each physical byte is visible to a viewer that knows one address a byte.
//
// A page may be mapped at several addresses. A byte is visible through the mapping of the block
// that used it last, or, before any block has, through one of its page's mappings. So visible bytes
// add up to the bytes of mapped pages, and every live block is visible whole.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "weir/event.h"
#include "weir/types.h"

namespace weir {

// Bytes at an address, of one page.
struct VisibleRange {
  Address at;
  Bytes bytes;
  PageId page;
  HeapId heap;  // of the mapping
};

struct VisibleRangeChange {
  enum class Why { mapped, unmapped, moved };  // moved: by a block, to or from another mapping
  bool visible = false;                        // from now on, or no longer
  Why why = Why::mapped;
  VisibleRange range;
};

// Not thread-safe.
class VisibleMapping {
 public:
  // Appends what changes. Of blocks, allocations count; of pages, mappings.
  void on_event(const Event& event, std::vector<VisibleRangeChange>& changes);

  // By address; what lies side by side through one mapping is one range.
  std::vector<VisibleRange> ranges() const;

 private:
  struct Piece {
    std::uint64_t end;      // offset within the page
    std::uint64_t mapping;  // through which it is visible
  };
  using Pieces = std::map<std::uint64_t, Piece>;  // by offset; all of the page, if it is mapped
  struct Page {
    std::vector<std::uint64_t> mappings;
    Pieces pieces;
  };
  struct Mapping {
    std::uint64_t bytes;
    std::uint32_t page, heap;
  };
  using Mappings = std::map<std::uint64_t, Mapping>;

  void map(const Event& event, std::vector<VisibleRangeChange>& changes);
  void unmap(std::uint64_t at, std::vector<VisibleRangeChange>& changes);
  void take(std::uint64_t begin, std::uint64_t end, std::vector<VisibleRangeChange>& changes);
  // Makes the bytes [begin, end) of the mapping's page visible through it.
  void show(Mappings::const_iterator mapping, std::uint64_t begin, std::uint64_t end,
            VisibleRangeChange::Why why, std::vector<VisibleRangeChange>& changes);
  VisibleRange range(std::uint64_t mapping, std::uint64_t begin, std::uint64_t end) const;

  Mappings mappings_;  // by address
  std::unordered_map<std::uint32_t, Page> pages_;
};

}  // namespace weir
