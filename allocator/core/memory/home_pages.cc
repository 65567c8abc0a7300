// SPDX-License-Identifier: Apache-2.0
#include "core/memory/home_pages.h"

namespace weir {

Page& HomePages::add(PageId id, PhysicalHandle handle, Range home, HeapId heap) {
  Page& page = pages_[id.value];
  page.id = id;
  page.heap = heap;
  page.home = home.begin;
  page.size = home.size;
  page.handle = handle;
  granules_.set(home, page);
  total_ += home.size;
  return page;
}

void HomePages::remove(Page& page) {
  granules_.clear(page.range());
  total_ -= page.size;
  pages_.erase(page.id.value);
}

bool HomePages::is_mapped(Range range) const {
  for (Address at = range.begin; at < range.end();) {
    const GranuleMap::Entry* const entry = granules_.find(at);
    if (entry == nullptr) return false;
    at = entry->page->range().end();
  }
  return true;
}

std::vector<std::string> HomePages::validate() const {
  std::vector<std::string> broken;
  Bytes total, leased, used, mapped;
  for (const auto& [id, page] : pages_) {
    const std::string name = "page " + std::to_string(id) + ": ";
    total += page.size;
    used += page.used;
    if (page.id.value != id) broken.push_back(name + "found by another's number");
    if (!page.idle()) leased += page.size;
    if (page.idle() == page.lease.has_value()) {
      broken.push_back(name + (page.idle() ? "idle, yet leased" : "in use, yet not leased"));
    }
    if (page.used > page.size) broken.push_back(name + "more in use than it has");
    if (page.size == 0_B || page.size % GranuleMap::kGranule != 0_B ||
        page.home.value % GranuleMap::kGranule.count != 0) {
      broken.push_back(name + "not made of granules");
    }
  }
  granules_.visit([&](Address at, const GranuleMap::Entry& entry) {
    mapped += GranuleMap::kGranule;
    if (!entry.page->range().contains({at, GranuleMap::kGranule})) {
      broken.push_back("page " + std::to_string(entry.page->id.value) +
                       ": a granule of another place is its");
    }
  });
  if (mapped != total) broken.emplace_back("pages: the granules are not those of the pages");
  if (total != total_) broken.emplace_back("pages: their sizes are summed wrong");
  if (leased != leased_) broken.emplace_back("pages: those in use are summed wrong");
  if (used != used_) broken.emplace_back("pages: the bytes in use are summed wrong");
  return broken;
}

}  // namespace weir
