// SPDX-License-Identifier: Apache-2.0
#include "core/memory/stitched_rows.h"

#include <iterator>
#include <set>
#include <utility>

namespace weir {

StitchedRows::Vacant::const_iterator StitchedRows::find_vacant(Bytes bytes) const {
  auto best = vacant_.end();
  for (auto at = vacant_.begin(); at != vacant_.end(); ++at) {
    if (at->second < bytes + gap_) continue;
    if (best == vacant_.end() || at->second < best->second) best = at;
  }
  return best;
}

StitchedRow& StitchedRows::add(Bytes bytes, HeapId heap) {
  const auto hole = find_vacant(bytes);
  const auto [begin, size] = *hole;
  const Bytes taken = bytes + gap_;
  vacant_.erase(hole);
  if (size > taken) vacant_[begin + taken] = size - taken;
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
  list(row);
}

void StitchedRows::remove(StitchedRow& row) {
  const Address begin = row.begin;
  Bytes size = row.reserved;
  rows_.erase(begin);
  auto after = vacant_.find(begin + size);
  if (after != vacant_.end()) {
    size += after->second;
    after = vacant_.erase(after);
  }
  auto before = vacant_.lower_bound(begin);
  if (before != vacant_.begin() && std::prev(before)->first + std::prev(before)->second == begin) {
    std::prev(before)->second += size;
  } else {
    vacant_[begin] = size;
  }
}

void StitchedRows::unlist(StitchedRow& row) {
  const auto [first, end] = idle_.equal_range(row.size);
  idle_.erase(std::find_if(first, end, [&](const auto& entry) { return entry.second == &row; }));
}

void StitchedRows::use(StitchedRow& row, std::uint64_t now) {
  unlist(row);
  row.state = StitchedRow::State::used;
  row.used_at = now;
}

void StitchedRows::free(StitchedRow& row, FenceSet users, std::uint64_t now) {
  row.state = StitchedRow::State::idle;
  row.users = std::move(users);
  row.used_at = now;
  list(row);
}

void StitchedRows::retire(StitchedRow& row) {
  unlist(row);
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

Bytes StitchedRows::addresses_in(Range region) const {
  Bytes found;
  const auto is_there = [&](Address at) { return region.begin <= at && at < region.end(); };
  for (const auto& [begin, row] : rows_) found += is_there(begin) ? row->reserved : 0_B;
  for (const auto& [begin, size] : vacant_) found += is_there(begin) ? size : 0_B;
  return found;
}

std::vector<std::string> StitchedRows::validate() const {
  std::vector<std::string> broken;
  std::size_t mappings = 0, idle = 0;
  Address end;
  for (const auto& [begin, row] : rows_) {
    const std::string name = "stitched row at " + std::to_string(begin.value) + ": ";
    mappings += row->pages.size();
    if (row->begin != begin) broken.push_back(name + "found by another address");
    if (begin < end) broken.push_back(name + "overlaps the one before");
    end = begin + row->reserved;
    Bytes size;
    std::set<const Page*> seen;
    for (const Page* const page : row->pages) {
      size += page->size;
      if (!seen.insert(page).second) broken.push_back(name + "has a page twice");
      if (std::find(page->rows.begin(), page->rows.end(), row.get()) == page->rows.end()) {
        broken.push_back(name + "a page of it does not know it");
      }
    }
    if (size + gap_ > row->reserved) broken.push_back(name + "larger than its addresses");
    const bool whole = row->state != StitchedRow::State::retired;
    if (whole && (row->pages.empty() || row->lead >= row->pages.front()->size ||
                  row->size + row->lead != size)) {
      broken.push_back(name + "its size is not that of its pages");
    }
    const auto [first, last] = idle_.equal_range(row->size);
    const StitchedRow* const mine = row.get();
    const bool listed =
        std::any_of(first, last, [mine](const auto& entry) { return entry.second == mine; });
    idle += listed ? 1 : 0;
    if (listed != (row->state == StitchedRow::State::idle)) {
      broken.push_back(name + (listed ? "listed as idle, and is not" : "idle, and not listed"));
    }
  }
  if (mappings != mappings_) broken.emplace_back("stitched rows: mappings are counted wrong");
  if (idle != idle_.size()) broken.emplace_back("stitched rows: the index of idle ones is wrong");
  Address before;
  for (const auto& [begin, size] : vacant_) {
    if (begin < before || size == 0_B)
      broken.emplace_back("stitched rows: vacant addresses overlap");
    if (const StitchedRow* const row = around(begin); row != nullptr) {
      broken.emplace_back("stitched rows: a row's addresses are vacant");
    }
    before = begin + size;
  }
  return broken;
}

}  // namespace weir
