// SPDX-License-Identifier: Apache-2.0
#include "look/report_pages.h"

#include <algorithm>

namespace weir {

void ReportPages::apply(const Event& event) {
  switch (event.kind) {
    case EventKind::create:
      pages_[event.page.value].bytes = event.bytes;
      pages_[event.page.value].plain = event.plain;
      break;
    case EventKind::release:
      pages_.erase(event.page.value);
      break;
    case EventKind::map:
      mappings_[event.address] = {event.page.value, event.bytes};
      if (const auto page = pages_.find(event.page.value); page != pages_.end()) {
        page->second.last_heap = event.heap;
      }
      break;
    case EventKind::unmap:
      mappings_.erase(event.address);
      break;
    case EventKind::lease:
    case EventKind::unlease:
      if (const auto page = pages_.find(event.page.value); page != pages_.end()) {
        page->second.last_heap = event.heap;
        page->second.lease.reset();
        if (event.kind == EventKind::lease) page->second.lease = event.heap;
      }
      break;
    default:
      break;
  }
}

Bytes ReportPages::add_block(Address at, Bytes bytes) {
  const Address end = at + bytes;
  Bytes found;
  auto mapping = mappings_.upper_bound(at);
  if (mapping != mappings_.begin()) --mapping;
  for (; mapping != mappings_.end() && mapping->first < end; ++mapping) {
    const auto page = pages_.find(mapping->second.page);
    if (page == pages_.end()) continue;
    const Bytes mapped = std::min(mapping->second.bytes, page->second.bytes);
    const Address from = std::max(at, mapping->first);
    const Address to = std::min(end, mapping->first + mapped);
    if (from >= to) continue;
    page->second.used.emplace_back((from - mapping->first).count, (to - mapping->first).count);
    found += to - from;
  }
  return found;
}

ReportPages::Free ReportPages::free_of(Page& page) {
  Free free;
  if (page.used.empty()) return free;
  std::sort(page.used.begin(), page.used.end());
  std::uint64_t reached = page.used.front().first;  // all before it has been counted
  free.edges = Bytes{reached};
  for (const auto& [begin, end] : page.used) {
    if (begin > reached) free.between += Bytes{begin - reached};
    free.twice += Bytes{std::min(end, reached) - std::min(begin, reached)};
    free.used += Bytes{std::max(end, reached) - std::max(begin, reached)};
    reached = std::max(reached, end);
  }
  free.edges += Bytes{std::max(page.bytes.count, reached) - reached};
  return free;
}

}  // namespace weir
