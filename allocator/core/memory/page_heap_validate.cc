// SPDX-License-Identifier: Apache-2.0
// The invariants of PageHeap, checked by counting again.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/memory/page_heap.h"

namespace weir {

std::vector<std::string> PageHeap::validate(const std::vector<Range>& in_use) const {
  const QueuedLock lock(mutex_);
  std::vector<std::string> broken;
  for (const auto& part : {pages_.validate(), chunks_.validate(), rows_.validate()}) {
    broken.insert(broken.end(), part.begin(), part.end());
  }
  // What follows walks them: it needs what they say of themselves to hold.
  if (!broken.empty()) return broken;
  if (pages_.used() > peak_used_) broken.emplace_back("page heap: more in use than the peak");
  validate_held(broken);
  validate_asleep(broken);
  validate_regions(broken);
  validate_addresses(broken);
  validate_users(broken);
  validate_runs(in_use, broken);
  return broken;
}

// Pages that are not mapped, and what is mapped and no page's.
void PageHeap::validate_held(std::vector<std::string>& broken) const {
  Bytes held;
  std::set<std::uint64_t> handles;
  for (const auto& [id, page] : pages_.all()) handles.insert(page.handle.value);
  for (const HeldPage& page : held_) {
    held += page.page.size;
    if (!handles.insert(page.page.handle.value).second) {
      broken.emplace_back("page heap: a page is held unmapped that is mapped, or held twice");
    }
  }
  if (held != held_bytes_) broken.emplace_back("page heap: what is held unmapped is summed wrong");
  for (const Range stray : strays_) {
    const Chunk* const chunk = chunks_.at(stray.begin);
    const StitchedRow* const row = rows_.around(stray.begin);
    const bool vacant = chunk != nullptr
                            ? chunk->state == Chunk::State::vacant && chunk->range().contains(stray)
                            : row != nullptr && stray.begin >= row->begin + row->mapped();
    // Or it is that of a page which sleeps, and has not got it back.
    const auto is_missing = [&](const auto& entry) WEIR_REQUIRES(mutex_) {
      const Page& page = entry.second;
      for (std::size_t i = 0; i <= page.rows.size(); ++i) {
        if (!is_mapped(page, i) && mapping(page, i).range == stray) return true;
      }
      return false;
    };
    if (!vacant && std::none_of(pages_.all().begin(), pages_.all().end(), is_missing))
      broken.emplace_back("page heap: a stray mapping lies where a page is mapped");
  }
}

// Each region belongs to the home row, or to stitched rows, as far as it is ever mapped.
void PageHeap::validate_regions(std::vector<std::string>& broken) const {
  if (plain_) {
    for (const Range region : regions_) {
      const Chunk* const first = chunks_.at(region.begin);
      if (first == nullptr || first->begin != region.begin || !first->begins_region ||
          !pages_.is_mapped(region) || pages_.at(region.begin).range() != region) {
        broken.push_back("segment at " + std::to_string(region.begin.value) +
                         ": its addresses are not one page");
      }
    }
    if (regions_.size() != pages_.all().size()) {
      broken.emplace_back("page heap: its pages are not its segments");
    }
    return;
  }
  for (const Range region : regions_) {
    Bytes home;
    for (const Chunk* chunk = chunks_.at(region.begin);
         chunk != nullptr && chunk->begin < region.end(); chunk = chunk->after) {
      home += chunk->size;
    }
    const Bytes stitched = rows_.addresses_in(region);
    if ((home == 0_B || stitched > 0_B || home + granularity_ != region.size) &&
        (home > 0_B || stitched != rows_.usable(region).size)) {
      broken.push_back("region at " + std::to_string(region.begin.value) +
                       ": its addresses are not those of the rows in it");
    }
  }
}

// Chunks have memory where pages are mapped, and nowhere else; all of it lies in regions.
void PageHeap::validate_addresses(std::vector<std::string>& broken) const {
  const auto is_reserved = [&](Range range) WEIR_REQUIRES(mutex_) {
    return std::any_of(regions_.begin(), regions_.end(),
                       [&](Range region) { return region.contains(range); });
  };
  for (const Chunk* chunk = chunks_.first(); chunk != nullptr; chunk = chunk->after) {
    if (!is_reserved(chunk->range())) broken.emplace_back("chunks: one lies beyond all regions");
    if (chunk->state != Chunk::State::vacant) {
      if (!pages_.is_mapped(chunk->range())) broken.emplace_back("chunks: one has no memory");
    }
  }
  bool any_kept = false;
  for (const auto& [id, page] : pages_.all()) {
    const std::string name = "page " + std::to_string(id) + ": ";
    Bytes used;
    const Chunk* chunk = chunks_.at(page.home);
    if (chunk == nullptr) broken.push_back(name + "mapped where no chunk is");
    for (; chunk != nullptr && chunk->begin < page.range().end(); chunk = chunk->after) {
      if (chunk->state == Chunk::State::vacant) broken.push_back(name + "mapped, yet vacant");
      if (chunk->state != Chunk::State::used) continue;
      used += std::min(chunk->end(), page.range().end()) - std::max(chunk->begin, page.home);
    }
    any_kept = any_kept || page.kept != Page::Kept::no;
    if (page.kept != Page::Kept::no && !keeps_any_) {
      broken.push_back(name + "kept, yet it is said that none is");
    }
    if (page.kept == Page::Kept::for_now && !keeps_used_) {
      broken.push_back(name + "kept for a capture, and none goes on");
    }
    if (used != page.used) broken.push_back(name + "its bytes in use are counted wrong");
    for (const StitchedRow* const row : page.rows) {
      const auto& pages = row->pages;
      if (std::find(pages.begin(), pages.end(), &page) == pages.end()) {
        broken.push_back(name + "in a row that does not have it");
      } else if (page.idle() && row->state == StitchedRow::State::used) {
        broken.push_back(name + "idle, in a row that is used");
      }
    }
  }
  if (keeps_any_ && !any_kept)
    broken.emplace_back("pages: none is kept, yet it is said that one is");
  rows_.visit_all([&](const StitchedRow& row) WEIR_REQUIRES(mutex_) {
    const std::string name = "stitched row at " + std::to_string(row.begin.value) + ": ";
    if (!is_reserved({row.begin, row.reserved})) broken.push_back(name + "beyond all regions");
    const bool waits = std::find(retired_.begin(), retired_.end(), &row) != retired_.end();
    if (waits != (row.state == StitchedRow::State::retired) && !row.pages.empty()) {
      broken.push_back(name + "retired, and nobody is going to unmap it; or the reverse");
    }
  });
}

void PageHeap::validate_users(std::vector<std::string>& broken) const {
  for (const Chunk* chunk = chunks_.first(); chunk != nullptr; chunk = chunk->after) {
    (void)chunk->freed.visit(chunk->range(), [&](const FreedRange& freed) WEIR_REQUIRES(mutex_) {
      const bool free = chunk->state == Chunk::State::free;
      if (single_timeline_ && (!freed.use.fences.empty() || (free && freed.use.by != first_))) {
        broken.emplace_back(
            "chunks: somebody must be waited for, yet it is said that nobody need be");
      }
      if (freed.use.freed_at > requests_) {
        broken.emplace_back("chunks: bytes freed by a request yet to come");
      }
      return true;
    });
  }
}

// The runs given out are exactly the chunks in use.
void PageHeap::validate_runs(const std::vector<Range>& in_use,
                             std::vector<std::string>& broken) const {
  std::set<const Chunk*> given;
  std::set<const StitchedRow*> rows;
  for (const Range run : in_use) {
    const std::string name = "run at " + std::to_string(run.begin.value) + ": ";
    const Place place = place_of(run);
    const StitchedRow* const row = place.row;
    if (place.chunk == nullptr && (row == nullptr || row->state != StitchedRow::State::used ||
                                   !row->fits(run.size) || !rows.insert(row).second)) {
      broken.push_back(name + "its stitched row is not there, or not its own");
      continue;
    }
    (void)visit_parts(place, [&](const Chunk& chunk, Range home) {
      if (chunk.state != Chunk::State::used || chunk.range() != home) {
        broken.push_back(name + "its bytes are not in use, or not by it alone");
      } else if (!given.insert(&chunk).second) {
        broken.push_back(name + "a byte was given out twice");
      }
      return true;
    });
  }
  for (const Chunk* chunk = chunks_.first(); chunk != nullptr; chunk = chunk->after) {
    if (chunk->state == Chunk::State::used && !given.contains(chunk)) {
      broken.emplace_back("chunks: bytes are in use that were not given out");
    }
  }
  rows_.visit_all([&](const StitchedRow& row) {
    if (row.state == StitchedRow::State::used && !rows.contains(&row)) {
      broken.emplace_back("stitched rows: one is used, and nobody has it");
    }
  });
}

}  // namespace weir
