// SPDX-License-Identifier: Apache-2.0
#include "core/heap/heap_blocks.h"

#include <map>

namespace weir {

std::vector<Tile*> HeapBlocks::runs_by_address() const {
  std::vector<Tile*> runs;
  for (Tile* run = runs_; run != nullptr; run = run->next) runs.push_back(run);
  std::sort(runs.begin(), runs.end(),
            [](const Tile* a, const Tile* b) { return a->begin < b->begin; });
  return runs;
}

BlockRef HeapBlocks::live_around(Address address) const {
  Tile* const run = run_near(address);
  if (run == nullptr || address < run->begin || address >= run->end()) return {};
  const BlockRef block =
      run->slab == nullptr ? BlockRef(run) : BlockRef(run->slab->tile_at(address));
  return address < block.end() && block.state() == BlockState::live ? block : BlockRef();
}

void HeapBlocks::validate_block(BlockRef block, const BlockCache& cache, Broken& broken) const {
  const bool small = block.size() <= Slabs::kLargest;
  broken.note_if(block.size() % kGrain != 0_B || small != block.is_small(),
                 "a block's size does not suit its place");
  const bool live = block.state() == BlockState::live;
  broken.note_if(live && !is_size_for(block.requested(), block.size()),
                 "a block's size is not what was asked for, rounded up");
  broken.note_if(
      cache.count({block.size(), block}) != (block.state() == BlockState::cached ? 1 : 0),
      "a block is cached and not kept, or kept twice, or the reverse");
  const BlockRef found = live ? block : BlockRef();
  broken.note_if(live_at(block.begin()) != found || live_around(block.end() - kGrain) != found,
                 "a block is not found at its addresses");
}

std::vector<std::string> HeapBlocks::validate(const BlockCache& cache,
                                              std::vector<Range>& runs) const {
  Broken broken{slabs_.validate()};
  std::map<const Slab*, Bytes> live_in_slabs;
  for (const Tile* run = runs_; run != nullptr; run = run->next) {
    runs.push_back(run->range());
    broken.note_if(!is_own(*run), "a run of it is another heap's");
    const bool linked = run->next == nullptr || run->next->previous == run;
    broken.note_if(!linked, "its runs are linked wrong");
    if (!linked) break;
    if (run->slab == nullptr) continue;
    broken.note_if(run->slab->run != run || run->slab->range() != run->range(),
                   "a slab and its run do not know each other");
    live_in_slabs[run->slab];
  }
  const std::size_t slabs = live_in_slabs.size();
  std::uint64_t cached = 0;
  for_each([&](BlockRef block) {
    validate_block(block, cache, broken);
    if (block.state() == BlockState::cached) ++cached;
    if (block.state() == BlockState::live && block.is_small()) {
      live_in_slabs[block.tile()->slab] += block.size();
    }
  });
  for (const auto& [slab, in_slab] : live_in_slabs) {
    broken.note_if(slab->live != in_slab, "the live bytes of a slab are counted wrong");
  }
  broken.note_if(slabs != slabs_.size(), "a slab is not among its runs");
  broken.note_if(cached != cache.count(), "a block is cached that it does not have");
  return broken.rules;
}

}  // namespace weir
