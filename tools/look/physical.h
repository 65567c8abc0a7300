// SPDX-License-Identifier: Apache-2.0
// Which block had each byte of physical memory last, whatever address it had the byte through.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "weir/types.h"

namespace weir {

// Blocks are numbers of the caller's. What is not mapped has no physical bytes, and is passed over.
// Not thread-safe. Each call costs O(log n) for each page and each earlier block that it touches;
// a block that is taken is touched once.
class PhysicalOwners {
 public:
  void map(Address at, Bytes bytes, PageId page);
  void unmap(Address at) { mappings_.erase(at.value); }
  // The page's bytes are nobody's any more.
  void release(PageId page) { pages_.erase(page.value); }

  // `block` has the bytes mapped at [at, at + bytes) from now on. Appends those that had some of
  // them before, in order of address; one with several pieces, several times.
  void take(Address at, Bytes bytes, std::uint32_t block, std::vector<std::uint32_t>& before);

 private:
  struct Mapping {
    std::uint64_t end;
    std::uint32_t page;
  };
  struct Piece {
    std::uint64_t end;
    std::uint32_t block;
  };
  using Pieces = std::map<std::uint64_t, Piece>;  // by offset within the page; disjoint

  static void take(Pieces& pieces, std::uint64_t begin, std::uint64_t end, std::uint32_t block,
                   std::vector<std::uint32_t>& before);

  std::map<std::uint64_t, Mapping> mappings_;  // by address; disjoint
  std::unordered_map<std::uint32_t, Pieces> pages_;
};

}  // namespace weir
