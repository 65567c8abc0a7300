// What the listener of a page table holds usable: the free bytes of each mapping that is offered,
// or `told`; of a page that another heap took meanwhile still the whole of it, until tell().
#include <algorithm>

#include "core/page_table.h"

namespace weir {
namespace {

bool may_use(const Page& page, HeapId heap) { return !page.lease || *page.lease == heap; }

// Calls visit(addresses) for each stretch of a mapping that is told.
template <class Visitor>
void visit_told(const Page& page, const Mapping& mapping, Visitor&& visit) {
  if (!may_use(page, mapping.heap)) return visit(Range{mapping.at, page.size});
  Bytes at;
  for (std::size_t i = 0; i + 1 < page.edges.size(); i += 2) {
    if (at < page.edges[i]) visit(Range{mapping.at + at, page.edges[i] - at});
    at = page.edges[i + 1];
  }
  if (at < page.size) visit(Range{mapping.at + at, page.size - at});
}

}  // namespace

// What is free of the page is usable here from now on; if its heap may not use it, once it may.
void PageTable::offer(const Page& page, Mapping& mapping) {
  mapping.gives = Mapping::Gives::anything;
  if (mapping.told || !may_use(page, mapping.heap)) return;
  mapping.told = 1;
  visit_told(page, mapping, [&](Range range) { listener_.usable(mapping.heap, range); });
}

void PageTable::withdraw(const Page& page, Mapping& mapping, Mapping::Gives gives) {
  mapping.gives = gives;
  if (!mapping.told) return;
  visit_told(page, mapping, [&](Range range) { listener_.unusable(mapping.heap, range); });
  mapping.told = 0;
}

// Until at most so many of the heap's are offered, or all are in use. The heap's first stays: its
// neighbours are those that it was created with.
void PageTable::withdraw_long_unused(Page& page, HeapId heap, int most) {
  for (;;) {
    int offered = 0;
    Mapping* oldest = nullptr;
    for (Mapping& mapping : page.mappings) {
      if (mapping.heap != heap || !mapping.offered() || offered++ == 0) continue;
      if (mapping.used_grains > 0) continue;
      if (oldest == nullptr || mapping.used_at < oldest->used_at) oldest = &mapping;
    }
    if (offered <= most || oldest == nullptr) return;
    withdraw(page, *oldest, Mapping::Gives::known);
  }
}

// The mapping's heap had better look whether it may use the page.
void PageTable::list(Mapping& mapping) {
  if (mapping.listed) return;
  mapping.listed = 1;
  if (mapping.heap.value >= untold_.size()) untold_.resize(mapping.heap.value + 1);
  untold_[mapping.heap.value].push_back(mapping.at);
}

void PageTable::tell(HeapId heap) {
  if (heap.value >= untold_.size()) return;
  for (const Address at : untold_[heap.value]) {
    const GranuleMap::Entry* const entry = granules_.find(at);
    if (entry == nullptr) continue;
    Page& page = *entry->page;
    const auto found = std::find_if(page.mappings.begin(), page.mappings.end(),
                                    [&](const Mapping& one) { return one.at == at; });
    if (found == page.mappings.end() || !found->listed) continue;
    found->listed = 0;
    if (!found->offered()) continue;
    if (may_use(page, heap)) {
      offer(page, *found);
    } else {
      withdraw(page, *found, Mapping::Gives::anything);
    }
  }
  untold_[heap.value].clear();
}

bool PageTable::is_usable(Range run, HeapId heap) const {
  for (Address at = run.begin; at < run.end();) {
    const GranuleMap::Entry* const entry = granules_.find(at);
    if (entry == nullptr || !may_use(*entry->page, heap)) return false;
    const Page& page = *entry->page;
    const Bytes offset = entry->offset + Bytes{at.value % GranuleMap::kGranule.count};
    const Bytes size = std::min(run.end() - at, page.size - offset);
    const auto next = std::upper_bound(page.edges.begin(), page.edges.end(), offset);
    const bool is_free = (next - page.edges.begin()) % 2 == 0 &&
                         (next == page.edges.end() || offset + size <= *next);
    if (!is_free) return false;
    const PageMapping mapping = this->mapping(at - offset);
    if (mapping.heap != heap || mapping.retired()) return false;
    at = at + size;
  }
  return true;
}

}  // namespace weir
