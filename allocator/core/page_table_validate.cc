// The invariants of PageTable, checked by counting again.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "core/page_table.h"

namespace weir {

std::vector<std::string> PageTable::validate_pages() const {
  std::vector<std::string> broken = validate_indexes();
  const auto say = [&](std::uint32_t id, const std::string& what) {
    broken.push_back("page " + std::to_string(id) + ": " + what);
  };
  Bytes total, leased, used;
  std::set<std::uint32_t> slots(free_slots_.begin(), free_slots_.end());
  for (const auto& [id, page] : pages_) {
    if (page.id.value != id) say(id, "is listed under another number");
    if (page.slot >= slots_ || !slots.insert(page.slot).second) say(id, "its slot is not its own");
    if (page.edges.size() % 2 != 0) say(id, "a used range has no end");
    if (std::adjacent_find(page.edges.begin(), page.edges.end(), std::greater_equal<>()) !=
        page.edges.end()) {
      say(id, "its used ranges overlap or touch");
    }
    if (!page.edges.empty() && page.edges.back() > page.size) {
      say(id, "a used range ends behind the page");
    }
    Bytes in_ranges;
    for (const auto& [offset, size] : page.used_ranges()) in_ranges += size;
    if (in_ranges != page.used) say(id, "its used bytes differ from its used ranges");
    if (page.lease.has_value() != (page.used > 0_B)) say(id, "leased, but idle; or the reverse");
    total += page.size;
    used += page.used;
    if (page.lease) leased += page.size;
  }
  if (total != total_ || leased != leased_ || used != used_) {
    broken.push_back("page table: the sums of total, leased or used bytes are wrong");
  }
  if (slots.size() != slots_) broken.push_back("page table: slots of no page");
  for (std::string& what : validate_mappings()) broken.push_back(std::move(what));
  return broken;
}

bool PageTable::is_listed(const Mapping& mapping) const {
  if (mapping.heap.value >= untold_.size()) return false;
  const std::vector<Address>& list = untold_[mapping.heap.value];
  return std::find(list.begin(), list.end(), mapping.at) != list.end();
}

// The granules are exactly those of the mappings that pages list.
std::vector<std::string> PageTable::validate_mappings() const {
  std::vector<std::string> broken;
  const auto say = [&](PageId id, const std::string& what) {
    broken.push_back("page " + std::to_string(id.value) + ": " + what);
  };
  const std::vector<PageMapping> mappings = list_mappings();
  if (mappings.size() != mappings_) {
    broken.push_back("page table: the number of mappings is wrong");
  }
  for (const auto& [id, page] : pages_) {
    if (page.home != (page.mappings.empty() ? Address{} : page.mappings.front().at)) {
      say(page.id, "its home is not its first mapping");
    }
    std::set<Address> listed;
    for (const Mapping& mine : page.mappings) {
      if (!listed.insert(mine.at).second) say(page.id, "lists a mapping twice");
      const GranuleMap::Entry* const there = granules_.find(mine.at);
      if (there != nullptr && there->page != &page) {
        say(page.id, "lists a mapping that is not its own");
      }
      if (mine.used_at > uses_) say(page.id, "a mapping was used by a run yet to come");
      const bool usable = mine.offered() && (!page.lease || *page.lease == mine.heap);
      if (!mine.offered() && mine.told) say(page.id, "a mapping is told of that is not offered");
      if (mine.offered() && mine.told != usable && !mine.listed) {
        say(page.id, "nobody is going to tell of a change");
      }
      if (mine.listed && !is_listed(mine)) say(page.id, "a mapping is not on the list it names");
      if (mine.retired() && mine.used_grains > 0) say(page.id, "a retired mapping is in use");
    }
  }
  std::map<Address, std::pair<const Page*, Bytes>> granules;
  const PageMapping* before = nullptr;
  Address end;
  for (const PageMapping& mapping : mappings) {
    const Page& page = pages_.at(mapping.page.value);
    if (mapping.at.value % GranuleMap::kGranule.count != 0) {
      broken.push_back("page table: a mapping is not where it can be");
    }
    if (before != nullptr && mapping.at < end) {
      broken.push_back("page table: two mappings overlap");
    }
    if (before != nullptr && mapping.at == end && before->row != mapping.row) {
      broken.push_back("page table: two rows touch");
    }
    before = &mapping;
    end = mapping.at + page.size;
    for (Bytes offset; offset < page.size; offset += GranuleMap::kGranule) {
      granules[mapping.at + offset] = {&page, offset};
    }
  }
  granules_.visit([&](Address at, const GranuleMap::Entry& entry) {
    const auto expected = granules.find(at);
    if (expected == granules.end()) {
      broken.push_back("page table: an address is mapped that no page lists");
      return;
    }
    if (expected->second != std::pair<const Page*, Bytes>(entry.page, entry.offset)) {
      say(expected->second.first->id, "another page, or part of it, is found where it is mapped");
    }
    granules.erase(expected);
  });
  for (const auto& [at, mine] : granules) say(mine.first->id, "lists a mapping that is not there");
  return broken;
}

std::vector<std::string> PageTable::validate_indexes() const {
  refresh();
  BySize idle;
  std::map<HeapId, Ends> ends;
  for (const auto& [heap, indexed] : ends_) ends[heap];
  for (const auto& [id, page] : pages_) {
    if (!page.lease) {
      idle.emplace(page.size, PageId{id});
      continue;
    }
    if (page.tail() > 0_B) ends[*page.lease].tails.emplace(page.tail(), PageId{id});
    if (page.head() > 0_B) ends[*page.lease].heads.emplace(page.head(), PageId{id});
  }
  std::vector<std::string> broken;
  if (idle != idle_) broken.push_back("page table: the index of idle pages is wrong");
  for (const auto& [heap, expected] : ends) {
    if (this->ends(heap).tails != expected.tails || this->ends(heap).heads != expected.heads) {
      broken.push_back("page table: the index of heap " + std::to_string(heap.value) +
                       "'s free page ends is wrong");
    }
  }
  return broken;
}

std::map<HeapId, RangeSet> PageTable::usable_by_recount() const {
  std::map<HeapId, RangeSet> usable;
  for (const PageMapping& mapping : list_mappings()) {
    RangeSet& heap = usable[mapping.heap];
    const Page& page = pages_.at(mapping.page.value);
    if (!mapping.told) continue;
    Bytes at;
    const auto add = [&](Bytes end) {
      if (at < end && !heap.overlaps({mapping.at + at, end - at})) {
        heap.insert({mapping.at + at, end - at});  // what overlaps is reported elsewhere
      }
    };
    if (!page.lease || *page.lease == mapping.heap) {
      for (const auto& [offset, size] : page.used_ranges()) {
        add(offset);
        at = offset + size;
      }
    }
    add(page.size);
  }
  return usable;
}

}  // namespace weir
