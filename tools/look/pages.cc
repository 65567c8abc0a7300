// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "look/block_lifetimes.h"

namespace weir {
namespace {

using Pages = std::unordered_map<std::uint32_t, PageAt>;

void apply(const Event& event, Pages& pages) {
  if (event.kind == EventKind::create) {
    pages.try_emplace(event.page.value, PageAt{event.page, event.bytes, BlockLifetime::kNone, {}});
    return;
  }
  const auto found = pages.find(event.page.value);
  if (found == pages.end()) return;
  PageAt& page = found->second;
  switch (event.kind) {
    case EventKind::release:
      pages.erase(found);
      break;
    case EventKind::map:
      page.mappings.push_back(event.address);
      break;
    case EventKind::unmap:
      std::erase(page.mappings, event.address);
      break;
    case EventKind::lease:
      page.lease = event.heap.value;
      break;
    case EventKind::unlease:
      page.lease = BlockLifetime::kNone;
      break;
    default:
      break;
  }
}

bool is_about_a_page(EventKind kind) {
  switch (kind) {
    case EventKind::create:
    case EventKind::release:
    case EventKind::map:
    case EventKind::unmap:
    case EventKind::lease:
    case EventKind::unlease:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::size_t events_until(const Recording& recording, Nanoseconds time) {
  return std::max(recording.initial, recording.events.count_before(time + 1_ns));
}

std::vector<PageAt> pages_at(const Recording& recording, Nanoseconds time) {
  return pages_after(recording, events_until(recording, time));
}

std::vector<PageAt> pages_after(const Recording& recording, std::size_t events) {
  Pages pages;
  const std::size_t end = std::min(events, recording.events.size());
  for (auto event = recording.events.begin(); event.index() < end; ++event) {
    if (is_about_a_page(event->kind)) apply(*event, pages);
  }
  std::vector<PageAt> by_id;
  by_id.reserve(pages.size());
  for (auto& [id, page] : pages) by_id.push_back(std::move(page));
  std::sort(by_id.begin(), by_id.end(),
            [](const PageAt& a, const PageAt& b) { return a.page < b.page; });
  return by_id;
}

}  // namespace weir
