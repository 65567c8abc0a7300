// SPDX-License-Identifier: Apache-2.0
#include "core/memory/stitched_rows.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/base/broken.h"

namespace weir {

std::vector<PageMapping> mappings_of(const Page& page) {
  std::vector<PageMapping> mappings{{page.range(), page.heap}};
  for (const StitchedRow* const row : page.rows) {
    Address at = row->begin;
    for (const Page* const each : row->pages) {
      if (each == &page) break;
      at = at + each->size;
    }
    mappings.push_back({{at, page.size}, row->heap});
  }
  return mappings;
}

std::vector<PageMapping> mapped_of(const Page& page) {
  std::vector<PageMapping> mappings = mappings_of(page);
  mappings.resize(page.sleeps() ? page.lent_mappings : mappings.size() - page.unmapped);
  return mappings;
}

Range StitchedRows::vacancy_around(Address address) const {
  const auto region = std::prev(regions_.upper_bound(address));
  const auto after = rows_.upper_bound(address);
  Address from = region->first, to = region->second;
  if (after != rows_.end()) to = std::min(to, after->first);
  if (after != rows_.begin()) {
    const StitchedRow& before = *std::prev(after)->second;
    from = std::max(from, before.begin + before.reserved);
  }
  return {from, to - from};
}

bool StitchedRows::has_addresses(Range pages) const {
  const auto behind = regions_.upper_bound(pages.begin);
  if (behind == regions_.begin() || pages.end() <= pages.begin) return false;
  const Address end = std::prev(behind)->second;
  return pages.end() < end && gap_ <= end - pages.end();
}

bool StitchedRows::has_room_at(Range pages) const {
  return has_addresses(pages) && around(pages.begin) == nullptr &&
         pages.end() + gap_ <= vacancy_around(pages.begin).end();
}

StitchedRow& StitchedRows::add(Bytes bytes, HeapId heap) {
  return add_at(vacant_.lower_bound({bytes + gap_, Address{}})->second, bytes, heap);
}

StitchedRow& StitchedRows::add_at(Address begin, Bytes bytes, HeapId heap) {
  const Bytes taken = bytes + gap_;
  const Range vacant = vacancy_around(begin);
  const Address end = begin + taken;
  vacant_.erase({vacant.size, vacant.begin});
  if (begin > vacant.begin) vacant_.emplace(begin - vacant.begin, vacant.begin);
  if (end < vacant.end()) vacant_.emplace(vacant.end() - end, end);
  std::unique_ptr<StitchedRow>& row = rows_[begin];
  row = std::make_unique<StitchedRow>();
  row->begin = begin;
  row->reserved = taken;
  row->heap = heap;
  row->state = StitchedRow::State::retired;  // until it is finished
  return *row;
}

void StitchedRows::append(StitchedRow& row, Page& page) {
  row.pages.push_back(&page);
  row.size += page.size;
  page.rows.push_back(&row);
  ++mappings_;
}

void StitchedRows::drop_last(StitchedRow& row) {
  Page& page = *row.pages.back();
  std::erase(page.rows, &row);
  row.pages.pop_back();
  --mappings_;
}

void StitchedRows::finish(StitchedRow& row, Bytes lead) {
  row.lead = lead;
  row.size -= lead;
  row.state = StitchedRow::State::idle;
  idle_.add(&row);
}

// What is vacant beside it, and its own addresses, become one.
void StitchedRows::remove(StitchedRow& row) {
  const Address begin = row.begin, end = begin + row.reserved;
  rows_.erase(begin);
  const Range vacant = vacancy_around(begin);
  vacant_.erase({begin - vacant.begin, vacant.begin});
  vacant_.erase({vacant.end() - end, end});
  vacant_.emplace(vacant.size, vacant.begin);
}

void StitchedRows::use(StitchedRow& row, std::uint64_t now) {
  idle_.remove(&row);
  row.state = StitchedRow::State::used;
  row.used_at = now;
}

void StitchedRows::free(StitchedRow& row, FenceSet users, std::uint64_t now) {
  row.state = StitchedRow::State::idle;
  row.users = std::move(users);
  row.used_at = now;
  row.tile = nullptr;
  row.parts.clear();
  idle_.add(&row);
}

void StitchedRows::retire(StitchedRow& row) {
  idle_.remove(&row);
  row.state = StitchedRow::State::retired;
}

StitchedRow* StitchedRows::around(Address address) const {
  const auto after = rows_.upper_bound(address);
  if (after == rows_.begin()) return nullptr;
  StitchedRow& row = *std::prev(after)->second;
  return address < row.begin + row.reserved ? &row : nullptr;
}

StitchedRow* StitchedRows::at(Address run) const {
  StitchedRow* const row = around(run);
  return row != nullptr && row->run() == run && !row->pages.empty() ? row : nullptr;
}

StitchedRow* StitchedRows::next_after(Address address) const {
  if (rows_.empty()) return nullptr;
  const auto after = rows_.upper_bound(address);
  return (after == rows_.end() ? rows_.begin() : after)->second.get();
}

std::vector<std::string> StitchedRows::validate() const {
  Broken broken{idle_.validate("idle rows")};
  std::size_t mappings = 0, idle = 0;
  Address end;
  for (const auto& [begin, row] : rows_) {
    const std::string name = "stitched row at " + std::to_string(begin.value);
    mappings += row->pages.size();
    idle += row->state == StitchedRow::State::idle ? 1 : 0;
    broken.note_if(row->begin != begin, name, "found by another address");
    broken.note_if(begin < end, name, "overlaps the one before");
    end = begin + row->reserved;
    std::set<const Page*> seen;
    for (const Page* const page : row->pages) {
      const auto& rows = page->rows;
      broken.note_if(!seen.insert(page).second, name, "has a page twice");
      broken.note_if(std::find(rows.begin(), rows.end(), row.get()) == rows.end(), name,
                     "a page of it does not know it");
    }
    broken.note_if(row->mapped() + gap_ > row->reserved, name, "larger than its addresses");
    broken.note_if((row->state == StitchedRow::State::used) != (row->tile != nullptr), name,
                   "used by nobody, or the reverse");
    broken.note_if(row->state != StitchedRow::State::retired &&
                       (row->pages.empty() || row->lead >= row->pages.front()->size ||
                        row->size + row->lead != row->mapped()),
                   name, "its size is not that of its pages");
  }
  broken.note_if(mappings != mappings_, "stitched rows: mappings are counted wrong");
  broken.note_if(idle != idle_.count(), "stitched rows: one is idle, and not listed");
  std::set<std::pair<Bytes, Address>> vacant;
  for (const auto& [begin, region_end] : regions_) {
    Address at = begin;
    for (auto row = rows_.lower_bound(begin); row != rows_.end() && row->first < region_end;
         ++row) {
      if (at < row->first) vacant.emplace(row->first - at, at);
      at = row->first + row->second->reserved;
    }
    if (at < region_end) vacant.emplace(region_end - at, at);
  }
  broken.note_if(vacant != vacant_, "stitched rows: vacant addresses are listed wrong");
  return broken.rules;
}

}  // namespace weir
