// SPDX-License-Identifier: Apache-2.0
#include "look/visible_mapping.h"

#include <algorithm>
#include <iterator>

namespace weir {

void VisibleMapping::on_event(const Event& event, std::vector<VisibleRangeChange>& changes) {
  switch (event.kind) {
    case EventKind::map:
      return map(event, changes);
    case EventKind::unmap:
      return unmap(event.address.value, changes);
    case EventKind::allocate:
      return take(event.address.value, event.address.value + event.bytes.count, changes);
    default:
      return;
  }
}

void VisibleMapping::map(const Event& event, std::vector<VisibleRangeChange>& changes) {
  const std::uint64_t at = event.address.value;
  mappings_[at] = {event.bytes.count, event.page.value, event.heap.value};
  Page& page = pages_[event.page.value];
  page.mappings.push_back(at);
  if (page.mappings.size() > 1) return;
  page.pieces.emplace(0, Piece{event.bytes.count, at});
  changes.push_back({true, VisibleRangeChange::Why::mapped, range(at, 0, event.bytes.count)});
}

void VisibleMapping::unmap(std::uint64_t at, std::vector<VisibleRangeChange>& changes) {
  const auto mapping = mappings_.find(at);
  if (mapping == mappings_.end()) return;
  Page& page = pages_[mapping->second.page];
  std::erase(page.mappings, at);
  if (page.mappings.empty()) {
    for (const auto& [begin, piece] : page.pieces) {
      changes.push_back(
          {false, VisibleRangeChange::Why::unmapped, range(piece.mapping, begin, piece.end)});
    }
    pages_.erase(mapping->second.page);
    mappings_.erase(mapping);
    return;
  }
  const auto next = mappings_.find(page.mappings.front());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> moved;
  for (const auto& [begin, piece] : page.pieces) {
    if (piece.mapping == at) moved.emplace_back(begin, piece.end);
  }
  for (const auto& [begin, end] : moved) {
    show(next, begin, end, VisibleRangeChange::Why::unmapped, changes);
  }
  mappings_.erase(mapping);
}

void VisibleMapping::take(std::uint64_t begin, std::uint64_t end,
                          std::vector<VisibleRangeChange>& changes) {
  auto mapping = mappings_.upper_bound(begin);
  if (mapping != mappings_.begin()) --mapping;
  for (; mapping != mappings_.end() && mapping->first < end; ++mapping) {
    const std::uint64_t from = std::max(begin, mapping->first);
    const std::uint64_t to = std::min(end, mapping->first + mapping->second.bytes);
    if (from >= to) continue;
    show(mapping, from - mapping->first, to - mapping->first, VisibleRangeChange::Why::moved,
         changes);
  }
}

void VisibleMapping::show(Mappings::const_iterator mapping, std::uint64_t begin, std::uint64_t end,
                          VisibleRangeChange::Why why, std::vector<VisibleRangeChange>& changes) {
  Pieces& pieces = pages_[mapping->second.page].pieces;
  auto piece = std::prev(pieces.upper_bound(begin));
  while (piece != pieces.end() && piece->first < end) {
    const std::uint64_t from = std::max(begin, piece->first), to = std::min(end, piece->second.end);
    const std::uint64_t before = piece->second.mapping;
    if (before == mapping->first || from >= to) {
      ++piece;
      continue;
    }
    changes.push_back({false, why, range(before, from, to)});
    changes.push_back({true, why, range(mapping->first, from, to)});
    // Split off what stays, on either side; then join what is visible through one mapping.
    if (to < piece->second.end) pieces.emplace(to, Piece{piece->second.end, before});
    if (piece->first < from) {
      piece->second.end = from;
      piece = pieces.emplace(from, Piece{to, mapping->first}).first;
    } else {
      piece->second = {to, mapping->first};
    }
    if (piece != pieces.begin() && std::prev(piece)->second.mapping == mapping->first) {
      std::prev(piece)->second.end = to;
      piece = std::prev(pieces.erase(piece));
    }
    const auto next = std::next(piece);
    if (next != pieces.end() && next->second.mapping == mapping->first) {
      piece->second.end = next->second.end;
      pieces.erase(next);
    }
    ++piece;
  }
}

VisibleRange VisibleMapping::range(std::uint64_t at, std::uint64_t begin, std::uint64_t end) const {
  const Mapping& mapping = mappings_.at(at);
  return {{at + begin}, {end - begin}, {mapping.page}, {mapping.heap}};
}

std::vector<VisibleRange> VisibleMapping::ranges() const {
  std::vector<VisibleRange> all;
  for (const auto& [id, page] : pages_) {
    for (const auto& [begin, piece] : page.pieces) {
      all.push_back(range(piece.mapping, begin, piece.end));
    }
  }
  std::sort(all.begin(), all.end(),
            [](const VisibleRange& a, const VisibleRange& b) { return a.at < b.at; });
  return all;
}

}  // namespace weir
