// The invariants of PageHeap, checked by counting again.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/page_heap.h"

namespace weir {

std::vector<std::string> PageHeap::validate(const std::vector<Range>& in_use) const {
  const MutexLock lock(mutex_);
  std::vector<std::string> broken =
      table_.validate([&](HeapId heap) WEIR_REQUIRES(mutex_) -> const RangeSet& {
        static const RangeSet none;
        return heap.value < arenas_.size() ? arena(heap).usable() : none;
      });
  const auto users = std::count_if(uses_.begin(), uses_.end(),
                                   [](const PageUse& use) { return use.page.has_value(); });
  if (static_cast<std::size_t>(users) != table_.pages().size()) {
    broken.push_back("page heap: pages and their users differ in number");
  }
  for (const auto& [id, page] : table_.pages()) {
    const std::string name = "page " + std::to_string(id) + ": ";
    if (page.slot >= uses_.size() || use_of(page).page != PageId{id}) {
      broken.push_back(name + "nothing is known of its users");
      continue;
    }
    const PageUse& use = use_of(page);
    if (page.lease && use.donor) {
      broken.push_back(name + "leased, yet it has a donor");
    } else if (!page.lease && use.freed_at > 0 && !use.donor) {
      broken.push_back(name + "idle after use, yet it has no donor");
    }
    if (alone_ && (!use.fenced.empty() || (use.donor && use.donor->holder != first_))) {
      broken.push_back(name + "somebody must be waited for, yet it is said that nobody need be");
    }
    if (const auto wrong = use.fenced.validate(page.size.count)) broken.push_back(name + *wrong);
    if (use.freed_at > requests_) broken.push_back(name + "freed by a request yet to come");
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
  for (std::size_t i = 0; i < arenas_.size(); ++i) {
    const HeapId heap{static_cast<std::uint32_t>(i)};
    const Arena& arena = arenas_[i];
    const std::string name = "heap " + std::to_string(heap.value) + ": ";
    for (const auto& [begin, size] : arena.vacant()) {
      if (!is_reserved(heap, {begin, size})) broken.push_back(name + "vacant, but not reserved");
    }
    const std::optional<RowId> row = rows_[i];
    if (row.has_value() == (arena.frontier() == Address{}) || (row && row->value >= next_row_)) {
      broken.push_back(name + "its current row has no number");
    }
    if (!arena.usable().consistent() || !arena.vacant().consistent()) {
      broken.push_back(name + "an index of its addresses is wrong");
    }
    for (const auto& [begin, size] : arena.usable()) {
      if (addresses_.find(begin) != heap) broken.push_back(name + "usable addresses not its own");
      if (!table_.is_mapped({begin, size})) {
        broken.push_back(name + "usable, but not mapped");
        continue;
      }
      std::set<PageId> seen;
      table_.walk({begin, size}, [&](const Page& page, Bytes, Bytes) {
        if (!seen.insert(page.id).second) broken.push_back(name + "a run has a page twice");
      });
    }
  }
  for (const PageMapping& mapping : table_.list_mappings()) {
    const std::string name = "heap " + std::to_string(mapping.heap.value) + ": ";
    if (mapping.heap.value >= arenas_.size()) {
      broken.push_back(name + "a mapping of a heap that is not there");
      continue;
    }
    if (mapping.row.value >= next_row_) broken.push_back(name + "a row that is yet to be begun");
    const Range mapped{mapping.at, table_.page(mapping.page).size};
    if (arena(mapping.heap).vacant().overlaps(mapped))
      broken.push_back(name + "vacant, but mapped");
    if (!is_reserved(mapping.heap, mapped)) broken.push_back(name + "mapped, but not reserved");
  }
}

// The runs given out are exactly the bytes in use.
void PageHeap::validate_runs(const std::vector<Range>& in_use,
                             std::vector<std::string>& broken) const {
  using Parts = std::multimap<Bytes, Bytes>;  // offset to size
  std::map<PageId, Parts> used;
  std::map<Address, Bytes> used_at;  // mappings
  for (const Range run : in_use) {
    const std::optional<HeapId> heap = addresses_.find(run.begin);
    if (!heap || !table_.is_mapped(run)) {
      broken.push_back("page heap: a run given out is not mapped");
      continue;
    }
    Address at = run.begin;
    table_.walk(run, [&](const Page& page, Bytes offset, Bytes size) {
      used[page.id].emplace(offset, size);
      used_at[at - offset] += size;
      at = at + size;
      if (page.lease != heap) {
        broken.push_back("page " + std::to_string(page.id.value) +
                         ": in use by a heap that has no lease on it");
      }
    });
  }
  for (const PageMapping& mapping : table_.list_mappings()) {
    if (kGrain * std::uint64_t{mapping.used_grains} != used_at[mapping.at]) {
      broken.push_back("page " + std::to_string(mapping.page.value) +
                       ": a mapping's bytes in use are counted wrong");
    }
    if (mapping.retired() &&
        std::find(retired_.at.begin(), retired_.at.end(), mapping.at) == retired_.at.end()) {
      broken.push_back("page " + std::to_string(mapping.page.value) +
                       ": a mapping is retired, and nobody is going to unmap it");
    }
  }
  for (const auto& [id, page] : table_.pages()) {
    std::vector<std::pair<Bytes, Bytes>> merged;
    for (const auto& [offset, size] : used[PageId{id}]) {
      const Bytes end = merged.empty() ? 0_B : merged.back().first + merged.back().second;
      if (!merged.empty() && offset < end) {
        broken.push_back("page " + std::to_string(id) + ": a byte was given out twice");
      } else if (!merged.empty() && offset == end) {
        merged.back().second += size;
      } else {
        merged.emplace_back(offset, size);
      }
    }
    if (merged != page.used_ranges()) {
      broken.push_back("page " + std::to_string(id) +
                       ": its bytes in use are not those that were given out");
    }
  }
}

}  // namespace weir
