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

void StitchedRows::add_vacant(Range range) {
  vacant_[range.begin] = range.size;
  vacant_by_size_.emplace(range.size, range.begin);
}

void StitchedRows::remove_vacant(Range range) {
  vacant_.erase(range.begin);
  vacant_by_size_.erase({range.size, range.begin});
}

StitchedRow& StitchedRows::add(Bytes bytes, HeapId heap) {
  const Bytes taken = bytes + gap_;
  const auto [size, begin] = *vacant_by_size_.lower_bound({taken, Address{}});
  remove_vacant({begin, size});
  if (size > taken) add_vacant({begin + taken, size - taken});
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

void StitchedRows::remove(StitchedRow& row) {
  Range range{row.begin, row.reserved};
  rows_.erase(row.begin);
  const auto join = [&](auto vacant) {
    const Range other{vacant->first, vacant->second};
    remove_vacant(other);
    range = {std::min(range.begin, other.begin), range.size + other.size};
  };
  const auto after = vacant_.lower_bound(range.begin);
  const auto before = after == vacant_.begin() ? after : std::prev(after);
  if (before != after && before->first + before->second == range.begin) join(before);
  if (after != vacant_.end() && after->first == range.end()) join(after);
  add_vacant(range);
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

Bytes StitchedRows::addresses_in(Range region) const {
  Bytes found;
  const auto is_there = [&](Address at) { return region.begin <= at && at < region.end(); };
  for (const auto& [begin, row] : rows_) found += is_there(begin) ? row->reserved : 0_B;
  for (const auto& [begin, size] : vacant_) found += is_there(begin) ? size : 0_B;
  return found;
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
  Address before;
  for (const auto& [begin, size] : vacant_) {
    broken.note_if(begin < before || size == 0_B || !vacant_by_size_.contains({size, begin}),
                   "stitched rows: vacant addresses overlap, or are listed wrong");
    broken.note_if(around(begin) != nullptr, "stitched rows: a row's addresses are vacant");
    before = begin + size;
  }
  broken.note_if(vacant_.size() != vacant_by_size_.size(),
                 "stitched rows: vacant addresses are listed twice");
  return broken.rules;
}

}  // namespace weir
