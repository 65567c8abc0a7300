// SPDX-License-Identifier: Apache-2.0
// Blocks at places of somebody else's choice: where they lay before.
#include "core/heap/stream_heap.h"
#include "weir/heap_types.h"

namespace weir {

Tile* StreamHeap::claim_run(Range run, bool for_slab, Status& status) {
  const Owner owner = this->owner();
  Request request{.owner = owner, .size = run.size, .keys = {}, .create = Create::may};
  Tile* const claimed = pages_->allocate_at(request, run.begin);
  if (claimed == nullptr) {
    status = std::move(request.status);
    return nullptr;
  }
  return add_run(claimed, history_.note(for_slab ? Slab::kSize : run.size), for_slab);
}

Status StreamHeap::allocate_at(const PlacedBlock& wanted) {
  const MutexLock lock(mutex_);
  if (pages_->is_asleep()) return PageHeap::asleep_error();
  give_back_cached_locked();
  Status status;
  const Range range{wanted.address, wanted.bytes};
  BlockRef block;
  if (wanted.bytes > Slabs::kLargest) {
    block = BlockRef(claim_run(range, /*for_slab=*/false, status));
  } else {
    Tile* slab = run_near(wanted.address);
    if (slab == nullptr || slab->slab == nullptr || !slab->range().contains(range)) {
      slab = claim_run({wanted.run, wanted.run_bytes}, /*for_slab=*/true, status);
      if (slab != nullptr) enter_slab(*slab);
    }
    if (slab != nullptr) block = BlockRef(slabs_.take_at(*slab->slab, range));
  }
  if (!status) return status;
  if (!block) return Error(ErrorCode::invalid_argument, "the memory there is in use");
  block.set_epoch(epoch_);
  give_out(block, wanted.requested);
  fold_.publish();
  if (recording_) record(EventKind::allocate, block);
  return {};
}

void StreamHeap::list_placed(std::vector<PlacedBlock>& blocks) const {
  const MutexLock lock(mutex_);
  for_each_block([&](BlockRef block) WEIR_REQUIRES(mutex_) {
    if (block.state() != BlockState::live) return;
    const Range run = block.is_small() ? block.tile()->slab->range() : block.range();
    blocks.push_back(
        {block.begin(), block.size(), block.requested(), stream_, run.begin, run.size});
  });
}

}  // namespace weir
