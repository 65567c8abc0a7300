// SPDX-License-Identifier: Apache-2.0
// Stitched rows that a program has no more use for: without an end to them a program whose sizes
// never repeat adds some for ever, and the driver has room for so many mappings only.
#include <algorithm>
#include <utility>

#include "core/memory/page_heap.h"

namespace weir {
namespace {

// So many mappings in rows are kept for each page in any case.
constexpr std::size_t kMappingsAPage = 16;
constexpr std::size_t kMappingsLeast = 256;
// When there are more, one in so many goes, with what is beyond.
constexpr std::size_t kShareRetired = 8;
// Only what was not used for so many requests: else a program whose rounds need more would lose in
// each round what it needs in the next.
constexpr std::uint64_t kLongUnused = 8192;
// Retired rows are unmapped so many requests later. By then their work is done, on a slow machine
// as on a fast one: what is known complete then makes no difference to placement.
constexpr std::uint64_t kRequestsRetired = 1024;
// So often it is looked whether there are too many.
constexpr std::uint64_t kRequestsBetween = 64;
// Driver calls in one request.
constexpr int kUnmapsAtATime = 2;

}  // namespace

void PageHeap::retire_rows() {
  if (keeps_used_) return;  // nothing while a capture goes on
  if (!retired_.empty()) {
    unmap_retired();
    return;
  }
  const std::size_t most = std::max(kMappingsLeast, kMappingsAPage * pages_.all().size());
  if (rows_.mappings() <= most) {
    retire_next_ = requests_ + kRequestsBetween;
    return;
  }
  retire_long_unused(rows_.mappings() - most + most / kShareRetired);
  retire_next_ = requests_ + kRequestsRetired;
}

// The longest unused first, until `most` mappings or more are retired.
void PageHeap::retire_long_unused(std::size_t most) {
  std::vector<StitchedRow*> unused;
  rows_.visit_all([&](StitchedRow& row) WEIR_REQUIRES(mutex_) {
    const bool kept = std::any_of(row.pages.begin(), row.pages.end(),
                                  [](const Page* page) { return page->kept != Page::Kept::no; });
    if (row.state == StitchedRow::State::idle && !kept && requests_ - row.used_at > kLongUnused) {
      unused.push_back(&row);
    }
  });
  std::sort(unused.begin(), unused.end(), [](const StitchedRow* a, const StitchedRow* b) {
    return std::pair(a->used_at, a->begin) < std::pair(b->used_at, b->begin);
  });
  FenceSet recorded, refused;
  // One event a stream, now: who asks later asks about the work until now, and no more.
  const auto record = [&](Fence user) WEIR_REQUIRES(mutex_) {
    const auto is_users = [&](Fence fence) { return fence.timeline == user.timeline; };
    if (std::any_of(recorded.begin(), recorded.end(), is_users)) return true;
    if (std::any_of(refused.begin(), refused.end(), is_users)) return false;
    const Result<Fence> event = timelines_.record(user.timeline);
    (event ? recorded : refused).join(event ? *event : user);
    return event.ok();
  };
  std::size_t mappings = 0;
  for (StitchedRow* const row : unused) {
    if (mappings >= most) break;
    // What a stream used that is captured just now, or is no more, stays.
    if (!std::all_of(row->users.begin(), row->users.end(), record)) continue;
    mappings += row->pages.size();
    rows_.retire(*row);
    retired_.push_back(row);
  }
  retired_users_ = std::move(recorded);
}

void PageHeap::unmap_retired() {
  if (!timelines_.is_seen_complete(retired_users_)) {
    retire_next_ = requests_ + kRequestsRetired;
    return;
  }
  for (int i = 0; i < kUnmapsAtATime && !retired_.empty(); ++i) {
    StitchedRow& row = *retired_.back();
    if (!row.pages.empty() && !unmap_last(row)) {
      retire_next_ = requests_ + kRequestsRetired;
      return;
    }
    if (row.pages.empty()) (void)unmap_row(row);
  }
}

}  // namespace weir
