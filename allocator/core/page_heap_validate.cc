// The invariants of PageHeap, checked by counting again.
#include <set>
#include <string>

#include "core/page_heap.h"

namespace weir {

std::vector<std::string> PageHeap::validate(const std::vector<Range>& in_use) const {
  const MutexLock lock(mutex_);
  std::vector<std::string> broken =
      table_.validate([&](HeapId heap) WEIR_REQUIRES(mutex_) -> const RangeSet& {
        return arenas_.at(heap).usable();
      });
  if (uses_.size() != table_.pages().size()) {
    broken.push_back("page heap: pages and their users differ in number");
  }
  for (const auto& [id, page] : table_.pages()) {
    const auto use = uses_.find(id);
    if (use == uses_.end()) {
      broken.push_back("page " + std::to_string(id) + ": nothing is known of its users");
    } else if (page.lease && use->second.donor) {
      broken.push_back("page " + std::to_string(id) + ": leased, yet it has a donor");
    }
  }
  if (table_.used() > peak_used_) broken.push_back("page heap: more in use than the peak");
  validate_arenas(broken);
  validate_runs(in_use, broken);
  return broken;
}

void PageHeap::validate_arenas(std::vector<std::string>& broken) const {
  for (const auto& [heap, arena] : arenas_) {
    const std::string name = "heap " + std::to_string(heap.value) + ": ";
    if (!arena.usable().consistent() || !arena.vacant().consistent()) {
      broken.push_back(name + "an index of its addresses is wrong");
    }
    for (const auto& [begin, size] : arena.usable().members()) {
      std::set<PageId> seen;
      table_.walk({begin, size}, [&](PageId page, Bytes, Bytes) {
        if (!seen.insert(page).second) broken.push_back(name + "a run has a page twice");
      });
      if (addresses_.find(begin) != heap) broken.push_back(name + "usable addresses not its own");
    }
  }
  for (const auto& [at, mapping] : table_.mappings()) {
    const Range mapped{at, table_.page(mapping.page).size};
    if (arenas_.at(mapping.heap).vacant().overlaps(mapped)) {
      broken.push_back("heap " + std::to_string(mapping.heap.value) + ": vacant, but mapped");
    }
  }
}

// The runs given out are exactly the bytes in use.
void PageHeap::validate_runs(const std::vector<Range>& in_use,
                             std::vector<std::string>& broken) const {
  std::map<PageId, RangeSet> used;
  for (const Range run : in_use) {
    const std::optional<HeapId> heap = addresses_.find(run.begin);
    const auto after = table_.mappings().upper_bound(run.begin);
    if (!heap || after == table_.mappings().begin()) {
      broken.push_back("page heap: a run given out is not mapped");
      continue;
    }
    table_.walk(run, [&](PageId id, Bytes offset, Bytes size) WEIR_REQUIRES(mutex_) {
      const Range bytes{Address{offset.count}, size};
      RangeSet& mine = used[id];
      if (mine.overlaps(bytes)) {
        broken.push_back("page " + std::to_string(id.value) + ": a byte was given out twice");
        return;
      }
      mine.insert(bytes);
      if (table_.page(id).lease != heap) {
        broken.push_back("page " + std::to_string(id.value) +
                         ": in use by a heap that has no lease on it");
      }
    });
  }
  for (const auto& [id, page] : table_.pages()) {
    RangeSet expected;
    for (const auto& [offset, size] : page.used_ranges) {
      expected.insert({Address{offset.count}, size});
    }
    if (!(used[PageId{id}] == expected)) {
      broken.push_back("page " + std::to_string(id) +
                       ": its bytes in use are not those that were given out");
    }
  }
}

}  // namespace weir
