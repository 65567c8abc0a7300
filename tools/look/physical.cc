// SPDX-License-Identifier: Apache-2.0
#include "look/physical.h"

#include <algorithm>
#include <iterator>

namespace weir {

void PhysicalOwners::map(Address at, Bytes bytes, PageId page) {
  mappings_[at.value] = {at.value + bytes.count, page.value};
}

void PhysicalOwners::take(Address at, Bytes bytes, std::uint32_t block,
                          std::vector<std::uint32_t>& before) {
  const std::uint64_t begin = at.value, end = at.value + bytes.count;
  auto mapping = mappings_.upper_bound(begin);
  if (mapping != mappings_.begin()) --mapping;
  for (; mapping != mappings_.end() && mapping->first < end; ++mapping) {
    const std::uint64_t from = std::max(begin, mapping->first);
    const std::uint64_t to = std::min(end, mapping->second.end);
    if (from >= to) continue;
    take(pages_[mapping->second.page], from - mapping->first, to - mapping->first, block, before);
  }
}

void PhysicalOwners::take(Pieces& pieces, std::uint64_t begin, std::uint64_t end,
                          std::uint32_t block, std::vector<std::uint32_t>& before) {
  auto piece = pieces.upper_bound(begin);
  if (piece != pieces.begin() && std::prev(piece)->second.end > begin) --piece;
  if (piece != pieces.end() && piece->first == begin && piece->second.end == end) {
    before.push_back(piece->second.block);  // the usual case: as large as the one before it
    piece->second.block = block;
    return;
  }
  while (piece != pieces.end() && piece->first < end) {
    const Piece old = piece->second;
    before.push_back(old.block);
    if (piece->first < begin) {
      piece->second.end = begin;
      ++piece;
    } else {
      piece = pieces.erase(piece);
    }
    if (old.end > end) piece = pieces.emplace_hint(piece, end, old);
  }
  pieces.emplace_hint(piece, begin, Piece{end, block});
}

}  // namespace weir
