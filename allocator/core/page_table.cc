#include "core/page_table.h"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace weir {

Bytes Page::tail() const {
  if (used_ranges.empty()) return size;
  const auto& [offset, length] = *used_ranges.rbegin();
  return size - (offset + length);
}

Bytes Page::head() const { return used_ranges.empty() ? size : used_ranges.begin()->first; }

namespace {

// Calls visit(offset, size) for each free stretch of the page.
template <class Visitor>
void visit_free(const Page& page, Visitor&& visit) {
  Bytes at = 0_B;
  for (const auto& [offset, size] : page.used_ranges) {
    if (at < offset) visit(at, offset - at);
    at = offset + size;
  }
  if (at < page.size) visit(at, page.size - at);
}

bool may_use(const Page& page, HeapId heap) { return !page.lease || *page.lease == heap; }

}  // namespace

const PageTable::Ends& PageTable::ends(HeapId heap) const {
  static const Ends none;
  const auto known = ends_.find(heap);
  return known == ends_.end() ? none : known->second;
}

void PageTable::index(PageId id, const Page& page) {
  if (!page.lease) {
    idle_.emplace(page.size, id);
    return;
  }
  Ends& ends = ends_[*page.lease];
  if (const Bytes tail = page.tail(); tail > 0_B) ends.tails.emplace(tail, id);
  if (const Bytes head = page.head(); head > 0_B) ends.heads.emplace(head, id);
}

void PageTable::unindex(PageId id, const Page& page) {
  if (!page.lease) {
    idle_.erase({page.size, id});
    return;
  }
  Ends& ends = ends_[*page.lease];
  ends.tails.erase({page.tail(), id});
  ends.heads.erase({page.head(), id});
}

PageId PageTable::add(PhysicalHandle handle, Bytes size) {
  const PageId id{next_page_++};
  Page& page = pages_[id.value];
  page.size = size;
  page.handle = handle;
  total_ += size;
  index(id, page);
  return id;
}

void PageTable::remove(PageId id) {
  const Page& page = pages_.at(id.value);
  assert(!page.lease && page.mappings.empty());
  unindex(id, page);
  total_ -= page.size;
  pages_.erase(id.value);
}

void PageTable::add_mapping(PageId id, HeapId heap, Address at, RowId row) {
  Page& page = pages_.at(id.value);
  const Mapping mapping{at, id, heap, row};
  mappings_.emplace(at, mapping);
  page.mappings.push_back(mapping);
  if (!may_use(page, heap)) return;
  visit_free(page, [&](Bytes offset, Bytes size) { listener_.usable(heap, {at + offset, size}); });
}

void PageTable::remove_mapping(Address at) {
  const auto mapping = mappings_.find(at);
  Page& page = pages_.at(mapping->second.page.value);
  assert(!page.lease);
  listener_.unusable(mapping->second.heap, {at, page.size});
  std::erase_if(page.mappings, [&](const Mapping& mine) { return mine.at == at; });
  mappings_.erase(mapping);
}

void PageTable::use(PageId id, Bytes offset, Bytes size, HeapId heap) {
  Page& page = pages_.at(id.value);
  assert(may_use(page, heap));
  unindex(id, page);
  if (!page.lease) {
    page.lease = heap;
    leased_ += page.size;
    for (const Mapping& mapping : page.mappings) {
      if (mapping.heap != heap) listener_.unusable(mapping.heap, {mapping.at, page.size});
    }
  }
  for (const Mapping& mapping : page.mappings) {
    if (mapping.heap == heap) listener_.unusable(heap, {mapping.at + offset, size});
  }
  page.used += size;
  used_ += size;

  auto next = page.used_ranges.lower_bound(offset);
  assert(next == page.used_ranges.end() || offset + size <= next->first);
  if (next != page.used_ranges.end() && next->first == offset + size) {
    size += next->second;
    next = page.used_ranges.erase(next);
  }
  if (next != page.used_ranges.begin()) {
    const auto previous = std::prev(next);
    assert(previous->first + previous->second <= offset);
    if (previous->first + previous->second == offset) {
      size += previous->second;
      offset = previous->first;
    }
  }
  page.used_ranges[offset] = size;
  index(id, page);
}

void PageTable::free(PageId id, Bytes offset, Bytes size) {
  Page& page = pages_.at(id.value);
  assert(page.lease);
  unindex(id, page);
  const auto member = std::prev(page.used_ranges.upper_bound(offset));
  const Bytes begin = member->first, end = member->first + member->second;
  assert(begin <= offset && offset + size <= end);
  page.used_ranges.erase(member);
  if (begin < offset) page.used_ranges[begin] = offset - begin;
  if (offset + size < end) page.used_ranges[offset + size] = end - (offset + size);
  page.used -= size;
  used_ -= size;

  const HeapId heap = *page.lease;
  for (const Mapping& mapping : page.mappings) {
    if (mapping.heap == heap) listener_.usable(heap, {mapping.at + offset, size});
  }
  if (page.used == 0_B) {
    page.lease.reset();
    leased_ -= page.size;
    for (const Mapping& mapping : page.mappings) {
      if (mapping.heap != heap) listener_.usable(mapping.heap, {mapping.at, page.size});
    }
  }
  index(id, page);
}

bool PageTable::row_has(RowId row, PageId id) const {
  const Page& page = pages_.at(id.value);
  return std::any_of(page.mappings.begin(), page.mappings.end(),
                     [&](const Mapping& mapping) { return mapping.row == row; });
}

std::vector<std::string> PageTable::validate_pages() const {
  std::vector<std::string> broken = validate_indexes();
  const auto say = [&](std::uint32_t id, const std::string& what) {
    broken.push_back("page " + std::to_string(id) + ": " + what);
  };
  Bytes total, leased, used;
  std::size_t mappings = 0;
  for (const auto& [id, page] : pages_) {
    if (id >= next_page_) say(id, "has a number that is yet to be given out");
    Bytes in_ranges;
    std::optional<Bytes> end;
    for (const auto& [offset, size] : page.used_ranges) {
      if (size == 0_B || (end && offset <= *end)) say(id, "its used ranges overlap or touch");
      in_ranges += size;
      end = offset + size;
    }
    if (end && *end > page.size) say(id, "a used range ends behind the page");
    if (in_ranges != page.used) say(id, "its used bytes differ from its used ranges");
    if (page.lease.has_value() != (page.used > 0_B)) say(id, "leased, but idle; or the reverse");
    std::set<Address> listed;
    for (const Mapping& mine : page.mappings) {
      if (!listed.insert(mine.at).second) say(id, "lists a mapping twice");
      const auto mapping = mappings_.find(mine.at);
      if (mapping == mappings_.end() || mapping->second.page.value != id ||
          mapping->second.heap != mine.heap || mapping->second.row != mine.row) {
        say(id, "lists a mapping that is not its own");
      }
    }
    mappings += page.mappings.size();
    total += page.size;
    used += page.used;
    if (page.lease) leased += page.size;
  }
  if (total != total_ || leased != leased_ || used != used_) {
    broken.push_back("page table: the sums of total, leased or used bytes are wrong");
  }
  if (mappings != mappings_.size()) {
    broken.push_back("page table: mappings that no page lists");
  }
  const Mapping* before = nullptr;
  Address end;
  for (const auto& [at, mapping] : mappings_) {
    if (mapping.at != at) broken.push_back("page table: a mapping is not where it says");
    if (before != nullptr && at < end) broken.push_back("page table: two mappings overlap");
    if (before != nullptr && at == end && before->row != mapping.row) {
      broken.push_back("page table: two rows touch");
    }
    const auto page = pages_.find(mapping.page.value);
    if (page == pages_.end()) broken.push_back("page table: a mapping is of no page");
    before = &mapping;
    end = page == pages_.end() ? at : at + page->second.size;
  }
  return broken;
}

std::vector<std::string> PageTable::validate_indexes() const {
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
  for (const auto& [at, mapping] : mappings_) {
    RangeSet& heap = usable[mapping.heap];
    const auto page = pages_.find(mapping.page.value);
    if (page == pages_.end() || !may_use(page->second, mapping.heap)) continue;
    visit_free(page->second, [&, at = at](Bytes offset, Bytes size) {
      const Range free{at + offset, size};
      if (!heap.overlaps(free)) heap.insert(free);  // what overlaps is reported elsewhere
    });
  }
  return usable;
}

}  // namespace weir
