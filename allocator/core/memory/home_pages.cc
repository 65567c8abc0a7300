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
  index_.set_page(home, &page);
  total_ += home.size;
  return page;
}

void HomePages::remove(Page& page) {
  index_.set_page(page.range(), nullptr);
  total_ -= page.size;
  pages_.erase(page.id.value);
}

bool HomePages::is_mapped(Range range) const {
  for (Address at = range.begin; at < range.end();) {
    const Page* const page = index_.page(at);
    if (page == nullptr) return false;
    at = page->end();
  }
  return true;
}

std::vector<std::string> HomePages::validate() const {
  std::vector<std::string> broken;
  Bytes total;
  for (const auto& [id, page] : pages_) {
    const std::string name = "page " + std::to_string(id) + ": ";
    total += page.size;
    if (page.id.value != id) broken.push_back(name + "found by another's number");
    if (page.size == 0_B || page.size % TileIndex::kGranule != 0_B ||
        page.home.value % TileIndex::kGranule.count != 0) {
      broken.push_back(name + "not made of granules");
      continue;
    }
    for (Address at = page.home; at < page.end(); at = at + TileIndex::kGranule) {
      if (index_.page(at) == &page) continue;
      broken.push_back(name + "not found at its addresses");
      break;
    }
  }
  if (total != total_) broken.emplace_back("pages: their sizes are summed wrong");
  return broken;
}

}  // namespace weir
