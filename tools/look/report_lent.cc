// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "look/report_blocks.h"

namespace weir {
namespace {

struct Lender {
  Bytes now, most;
  // By stream and ReportNames::number_of(): bytes of blocks, each time that one was on a lent page.
  std::map<std::pair<std::uint64_t, std::uint32_t>, Bytes> to;
};
struct Mapping {
  Address end;
  std::uint32_t page;
};

}  // namespace

std::vector<LentScratch> lent_of(const Recording& recording, const ReportNames& names) {
  std::map<std::uint64_t, Lender> lenders;         // by GraphPool::id()
  std::unordered_map<std::uint32_t, Event> pages;  // that are lent
  std::map<Address, Mapping> mappings;             // of such pages
  for (const Event& event : recording.events) {
    if (event.kind == EventKind::create && event.pool != 0) {
      pages[event.page.value] = event;
      Lender& lender = lenders[event.pool];
      lender.now += event.bytes;
      lender.most = std::max(lender.most, lender.now);
    }
    switch (event.kind) {
      case EventKind::release:
      case EventKind::keep:
        if (const auto gone = pages.extract(event.page.value)) {
          lenders[gone.mapped().pool].now -= gone.mapped().bytes;
        }
        break;
      case EventKind::map:
        if (!pages.contains(event.page.value)) break;
        mappings[event.address] = {event.address + event.bytes, event.page.value};
        break;
      case EventKind::unmap:
        mappings.erase(event.address);
        break;
      case EventKind::allocate: {
        const Address end = event.address + event.bytes;
        auto at = mappings.upper_bound(event.address);
        if (at != mappings.begin()) --at;
        for (; at != mappings.end() && at->first < end; ++at) {
          const auto page = pages.find(at->second.page);
          const Address from = std::max(event.address, at->first);
          const Address to = std::min(end, at->second.end);
          if (page == pages.end() || from >= to || event.pool != 0) continue;
          lenders[page->second.pool].to[{event.stream, names.number_of(event.stack)}] += to - from;
        }
        break;
      }
      default:
        break;
    }
  }
  std::vector<LentScratch> list;
  for (const auto& [pool, lender] : lenders) {
    LentScratch& lent = list.emplace_back(LentScratch{.pool = pool, .most = lender.most});
    const auto most =
        std::max_element(lender.to.begin(), lender.to.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == lender.to.end()) continue;
    const auto [stream, stack] = most->first;
    lent.to = {.stream = stream, .stack = stack, .place = names.place(stack)};
  }
  return list;
}

}  // namespace weir
