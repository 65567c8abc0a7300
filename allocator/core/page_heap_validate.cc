// The invariants of PageHeap, checked by counting again.
#include <set>
#include <string>

#include "core/page_heap.h"

namespace weir {
namespace {

// Is every address of `range` mapped to a page that is there? Only then may it be walked.
bool is_mapped(const PageTable& table, Range range) {
  auto it = table.mappings().upper_bound(range.begin);
  if (it == table.mappings().begin()) return false;
  --it;
  for (Address at = range.begin; at < range.end(); ++it) {
    if (it == table.mappings().end() || at < it->first) return false;
    const auto page = table.pages().find(it->second.page.value);
    if (page == table.pages().end()) return false;
    const Address end = it->first + page->second.size;
    if (end <= at) return false;
    at = end;
  }
  return true;
}

}  // namespace

std::vector<std::string> PageHeap::validate(const std::vector<Range>& in_use) const {
  const MutexLock lock(mutex_);
  std::vector<std::string> broken =
      table_.validate([&](HeapId heap) WEIR_REQUIRES(mutex_) -> const RangeSet& {
        static const RangeSet none;
        const auto arena = arenas_.find(heap);
        return arena == arenas_.end() ? none : arena->second.usable();
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
    } else if (!page.lease && use->second.freed_at > 0 && !use->second.donor) {
      broken.push_back("page " + std::to_string(id) + ": idle after use, yet it has no donor");
    }
    if (use != uses_.end() && use->second.freed_at > requests_) {
      broken.push_back("page " + std::to_string(id) + ": freed by a request yet to come");
    }
  }
  if (table_.used() > peak_used_) broken.push_back("page heap: more in use than the peak");
  validate_arenas(broken);
  validate_runs(in_use, broken);
  return broken;
}

void PageHeap::validate_arenas(std::vector<std::string>& broken) const {
  std::map<HeapId, RangeSet> reserved;
  for (const Region& region : regions_) {
    if (!reserved[region.heap].overlaps(region.range)) {
      reserved[region.heap].insert(region.range);
    }
  }
  const auto is_reserved = [&](HeapId heap, Range range) { return reserved[heap].contains(range); };
  for (const auto& [heap, arena] : arenas_) {
    const std::string name = "heap " + std::to_string(heap.value) + ": ";
    for (const auto& [begin, size] : arena.vacant().members()) {
      if (!is_reserved(heap, {begin, size})) broken.push_back(name + "vacant, but not reserved");
    }
    const auto row = rows_.find(heap);
    if ((row == rows_.end()) != (arena.frontier() == Address{}) ||
        (row != rows_.end() && row->second.value >= next_row_)) {
      broken.push_back(name + "its current row has no number");
    }
    if (!arena.usable().consistent() || !arena.vacant().consistent()) {
      broken.push_back(name + "an index of its addresses is wrong");
    }
    for (const auto& [begin, size] : arena.usable().members()) {
      if (addresses_.find(begin) != heap) broken.push_back(name + "usable addresses not its own");
      if (!is_mapped(table_, {begin, size})) {
        broken.push_back(name + "usable, but not mapped");
        continue;
      }
      std::set<PageId> seen;
      table_.walk({begin, size}, [&](PageId page, Bytes, Bytes) {
        if (!seen.insert(page).second) broken.push_back(name + "a run has a page twice");
      });
    }
  }
  for (const auto& [at, mapping] : table_.mappings()) {
    const std::string name = "heap " + std::to_string(mapping.heap.value) + ": ";
    const auto page = table_.pages().find(mapping.page.value);
    const auto arena = arenas_.find(mapping.heap);
    if (page == table_.pages().end() || arena == arenas_.end()) {
      broken.push_back(name + "a mapping of a page or a heap that is not there");
      continue;
    }
    const Range mapped{at, page->second.size};
    if (arena->second.vacant().overlaps(mapped)) broken.push_back(name + "vacant, but mapped");
    if (!is_reserved(mapping.heap, mapped)) broken.push_back(name + "mapped, but not reserved");
  }
}

// The runs given out are exactly the bytes in use.
void PageHeap::validate_runs(const std::vector<Range>& in_use,
                             std::vector<std::string>& broken) const {
  std::map<PageId, RangeSet> used;
  for (const Range run : in_use) {
    const std::optional<HeapId> heap = addresses_.find(run.begin);
    if (!heap || !is_mapped(table_, run)) {
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
      const Range bytes{Address{offset.count}, size};
      if (size > 0_B && !expected.overlaps(bytes)) expected.insert(bytes);
    }
    if (!(used[PageId{id}] == expected)) {
      broken.push_back("page " + std::to_string(id) +
                       ": its bytes in use are not those that were given out");
    }
  }
}

}  // namespace weir
