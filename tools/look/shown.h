// At which address each physical byte is shown, where a page has several.
//
// A viewer that knows one address a byte is told of one: that of the block which has the byte, and,
// until another block gets it, of the block that had it last. So what is shown sums up to what is
// held, and every live block is shown whole.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "weir/event.h"
#include "weir/types.h"

namespace weir {

// Bytes at an address, of one page.
struct ShownRange {
  Address at;
  Bytes bytes;
  PageId page;
  HeapId heap;  // of the mapping
};

struct ShownChange {
  enum class Why { mapped, unmapped, moved };  // moved: by a block, to or from another mapping
  bool shown = false;                          // from now on, or no longer
  Why why = Why::mapped;
  ShownRange range;
};

// Not thread-safe.
class ShownMemory {
 public:
  // Appends what changes. Of blocks, allocations count; of pages, mappings.
  void on_event(const Event& event, std::vector<ShownChange>& changes);

  // By address; what lies side by side through one mapping is one range.
  std::vector<ShownRange> ranges() const;

 private:
  struct Piece {
    std::uint64_t end;      // offset within the page
    std::uint64_t mapping;  // through which it is shown
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

  void map(const Event& event, std::vector<ShownChange>& changes);
  void unmap(std::uint64_t at, std::vector<ShownChange>& changes);
  void take(std::uint64_t begin, std::uint64_t end, std::vector<ShownChange>& changes);
  // Shows the bytes [begin, end) of the mapping's page through it.
  void show(Mappings::const_iterator mapping, std::uint64_t begin, std::uint64_t end,
            ShownChange::Why why, std::vector<ShownChange>& changes);
  ShownRange range(std::uint64_t mapping, std::uint64_t begin, std::uint64_t end) const;

  Mappings mappings_;  // by address
  std::unordered_map<std::uint32_t, Page> pages_;
};

}  // namespace weir
