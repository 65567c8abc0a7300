// SPDX-License-Identifier: Apache-2.0
// The pages of a recording at one moment, and what of their bytes live blocks use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weir/event.h"
#include "weir/types.h"

namespace weir {

class ReportPages {
 public:
  struct Page {
    Bytes bytes;
    bool plain = false;               // a segment of plain memory
    std::optional<HeapId> lease;      // the heap that used it first since it was idle
    std::optional<HeapId> last_heap;  // of the latest event about it
    std::vector<std::pair<std::uint64_t, std::uint64_t>> used;  // [begin, end), in its bytes
  };
  // What is left of a page beside its blocks.
  struct Free {
    Bytes used, edges, between;
    Bytes twice;  // bytes that two blocks have: events are missing
  };

  // Events of other kinds are passed over.
  void apply(const Event& event);
  // Bytes of the block that are on pages; call with every live block, after the last event.
  Bytes add_block(Address at, Bytes bytes);

  static Free free_of(Page& page);
  std::unordered_map<std::uint32_t, Page>& pages() { return pages_; }
  std::size_t mappings() const { return mappings_.size(); }

 private:
  struct Mapping {
    std::uint32_t page = 0;
    Bytes bytes;
  };
  std::unordered_map<std::uint32_t, Page> pages_;  // by PageId
  std::map<Address, Mapping> mappings_;
};

}  // namespace weir
