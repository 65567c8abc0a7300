// SPDX-License-Identifier: Apache-2.0
#include "core/memory/home_pages.h"

#include "core/base/broken.h"

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
  if (pages_.empty()) records_.release();
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
  Broken broken;
  Bytes total;
  for (const auto& [id, page] : pages_) {
    const std::string name = "page " + std::to_string(id);
    const bool of_granules = page.size > 0_B && page.size % TileIndex::kGranule == 0_B &&
                             page.home.value % TileIndex::kGranule.count == 0;
    bool found = true;
    for (Address at = page.home; of_granules && at < page.end(); at = at + TileIndex::kGranule) {
      found = found && index_.page(at) == &page;
    }
    total += page.size;
    broken.note_if(page.id.value != id, name, "found by another's number");
    broken.note_if(!of_granules, name, "not made of granules");
    broken.note_if(!found, name, "not found at its addresses");
  }
  broken.note_if(total != total_, "pages: their sizes are summed wrong");
  return broken.rules;
}

}  // namespace weir
