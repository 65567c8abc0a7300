// SPDX-License-Identifier: Apache-2.0
// A request that fits nowhere: a new stitched row for it.
#include <algorithm>
#include <utility>

#include "core/memory/page_heap.h"

namespace weir {
namespace {

// How often a request is planned anew because the device had less room than was thought.
constexpr int kStitchAttempts = 4;
// Free chunks that are looked at, the largest first; and none that are smaller.
constexpr int kChunksLookedAt = 64;
constexpr Bytes kLeastPiece = 64_KiB;

}  // namespace

// The parts of each free chunk that `skip` leaves.
template <class Skip>
std::vector<Range> PageHeap::stretches(Skip&& skip) const {
  std::vector<Range> found;
  const auto add = [&](Address begin, Address end) {
    if (begin + kLeastPiece <= end) found.push_back({begin, end - begin});
  };
  int left = kChunksLookedAt;
  chunks_.free().visit_down([&](const Chunk& chunk) WEIR_NO_THREAD_ANALYSIS {
    if (chunk.size < kLeastPiece) return false;
    if (!skip(chunk, chunk.range())) {
      add(chunk.begin, chunk.end());
      return --left > 0;
    }
    Address begin = chunk.begin;
    (void)chunk.freed.visit(chunk.range(), [&](const FreedRange& freed) WEIR_NO_THREAD_ANALYSIS {
      if (!skip(chunk, freed.range())) return true;
      add(begin, freed.begin);
      begin = freed.end;
      return true;
    });
    add(begin, chunk.end());
    return --left > 0;
  });
  return found;
}

std::optional<Address> PageHeap::place_beside_used(Owner& owner, Bytes size, Bytes most_created) {
  const std::vector<Range> unused =
      stretches([&](const Chunk& chunk, Range home)
                    WEIR_REQUIRES(mutex_) { return is_in_use(owner, chunk, home); });
  const StitchPlan plan = plan_stitch(size, unused, pages_, granularity_);
  if (plan.create > most_created) return std::nullopt;
  if (plan.create > 0_B && create_ != Create::may) return std::nullopt;
  if (!has_room_for_mappings(plan.mappings(pages_) + page_sizes(plan.create).size() * 2)) {
    return std::nullopt;
  }
  const Result<Address> at = build(owner, plan);
  if (!at) return std::nullopt;
  return *at;
}

StitchPlan PageHeap::plan(const Owner& owner, Bytes size) {
  const std::vector<Range> free = stretches([&](const Chunk& chunk, Range home) WEIR_REQUIRES(
                                                mutex_) { return is_refused(owner, chunk, home); });
  return plan_stitch(size, free, pages_, granularity_);
}

Result<Address> PageHeap::stitch(Owner& owner, Bytes size) {
  // When the device turns out to be full, what it has left is known, and the next plan keeps to it.
  for (int attempt = 0; attempt < kStitchAttempts; ++attempt) {
    const StitchPlan plan = this->plan(owner, size);
    if (plan.create > room()) break;
    if (plan.create > 0_B && !may_create()) {
      return Error(ErrorCode::out_of_memory, "new memory may not be had");
    }
    const std::optional<Frontier> end = frontier(owner, size);
    const bool as_much = plan.create >= (end ? end->missing : round_up(size, granularity_));
    Result<Address> at = as_much ? grow(owner, size) : build(owner, plan);
    if (at || at.error().code() != ErrorCode::out_of_memory || plan.create == 0_B) return at;
  }
  return Error(ErrorCode::out_of_memory, "no free memory fits");
}

Result<Address> PageHeap::build(Owner& owner, const StitchPlan& plan) {
  if (plan.is_one_piece()) return plan.head ? plan.head->begin : plan.front.front().begin;
  const std::size_t mappings =
      plan.mappings(pages_) + (plan.create > 0_B ? page_sizes(plan.create).size() * 2 : 0);
  if (Status status = make_room_for_mappings(mappings); !status) return std::move(status).error();

  Bytes head_size = plan.head ? plan.head->size : 0_B;
  std::vector<Page*> pages;
  Bytes all;
  const auto add = [&](Page& page, Bytes = {}, Bytes = {}) {
    pages.push_back(&page);
    all += page.size;
  };
  for (const Range piece : plan.front) pages_.walk(piece, add);
  if (plan.create > 0_B) {
    const Result<Address> at = vacancy(plan.create + held_bytes_);
    if (!at) return at.error();
    const Result<std::vector<Page*>> created = extend(owner, *at, plan.create);
    if (!created) return created.error();
    Bytes have;
    for (Page* const page : *created) {
      add(*page);
      have += page->size;
    }
    // What was held may be larger than what was to be created: then less of the head is needed.
    const Bytes more = have - plan.create;
    head_size -= std::min(head_size, more);
  }
  if (head_size > 0_B) pages_.walk({plan.head->begin, head_size}, add);

  if (!rows_.has_room(all)) {
    const Result<Range> region = reserve(rows_.region_for(all));
    if (!region) return region.error();
    rows_.add_region(*region);
  }
  StitchedRow& row = rows_.add(all, owner.id);
  if (Status status = map_row(owner, row, pages); !status) {
    retired_.push_back(&row);
    (void)unmap_row(row);
    return status.error();
  }
  rows_.finish(row, plan.front.empty() ? 0_B : plan.front.front().begin - pages.front()->home);
  return row.run();
}

Status PageHeap::map_row(Owner& owner, StitchedRow& row, const std::vector<Page*>& pages) {
  for (Page* const page : pages) {
    const Range at{row.begin + row.size, page->size};
    if (Status status = map_page(owner, page->id, page->handle, at); !status) return status;
    rows_.append(row, *page);
    remap_budget_.spend(1);
  }
  return {};
}

}  // namespace weir
