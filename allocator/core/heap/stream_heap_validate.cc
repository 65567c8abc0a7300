// SPDX-License-Identifier: Apache-2.0
// The invariants of a stream heap.
#include <algorithm>
#include <cstddef>
#include <map>

#include "core/heap/stream_heap.h"

namespace weir {

void StreamHeap::validate_block(BlockRef block, std::vector<std::string>& broken) const {
  const bool small = block.size() <= Slabs::kLargest;
  if (block.size() % kGrain != 0_B || small != block.is_small()) {
    broken.push_back("a block's size does not suit its place");
  }
  const bool live = block.state() == BlockState::live;
  if (live && !is_size_for(block.requested(), block.size())) {
    broken.push_back("a block's size is not what was asked for, rounded up");
  }
  const auto kept =
      std::count(cached_.begin(), cached_.begin() + cached_count_, Cached{block.size(), block});
  if (kept != (block.state() == BlockState::cached ? 1 : 0)) {
    broken.push_back("a block is cached and not kept, or kept twice, or the reverse");
  }
  if (live_at(block.begin()) != (live ? block : BlockRef())) {
    broken.push_back("a block is not found at its address");
  }
}

std::vector<std::string> StreamHeap::validate(std::vector<Range>& runs) const {
  Bytes bytes, requested;
  std::uint64_t live = 0, cached = 0, slabs = 0;
  std::vector<std::string> broken = slabs_.validate();
  // In a pool it may be the captured one of the same stream.
  const std::uint64_t timeline =
      timelines_ == nullptr ? stream_.id : timelines_->stream(timeline_).id;
  if ((pool() == 0 && timeline != stream_.id) || (serves_ != timeline && serves_ != kNoStream)) {
    broken.push_back("its timeline is another stream's");
  }
  std::map<const Slab*, Bytes> live_in_slabs;
  for (const Tile* run = runs_; run != nullptr; run = run->next) {
    runs.push_back(run->range());
    if (run->heap != this) broken.push_back("a run of it is another heap's");
    if (run->next != nullptr && run->next->previous != run) {
      broken.push_back("its runs are linked wrong");
      break;
    }
    if (run->slab == nullptr) continue;
    ++slabs;
    if (run->slab->run != run || run->slab->range() != run->range()) {
      broken.push_back("a slab and its run do not know each other");
    }
    live_in_slabs[run->slab];
  }
  for_each_block([&](BlockRef block) WEIR_REQUIRES(mutex_) {
    validate_block(block, broken);
    if (block.state() == BlockState::cached) ++cached;
    if (block.state() != BlockState::live) return;
    ++live;
    bytes += block.size();
    requested += block.requested();
    if (block.is_small()) live_in_slabs[block.tile()->slab] += block.size();
  });
  for (const auto& [slab, in_slab] : live_in_slabs) {
    if (slab->live != in_slab) broken.push_back("the live bytes of a slab are counted wrong");
  }
  if (slabs != slabs_.size()) broken.push_back("a slab is not among its runs");
  if (cached != cached_count_) broken.push_back("a block is cached that it does not have");
  const HeapStatistics statistics = fold_.statistics();
  if (statistics.live_blocks.current != live || statistics.live_bytes.current != bytes.count ||
      statistics.requested_bytes.current != requested.count) {
    broken.push_back("its statistics differ from a recount of its blocks");
  }
  for (std::string& what : broken) what = "heap " + std::to_string(id_.value) + ": " + what;
  return broken;
}

}  // namespace weir
