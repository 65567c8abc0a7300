// SPDX-License-Identifier: Apache-2.0
// Blocks at places of somebody else's choice: where they lay before.
#include "core/heap/stream_heap.h"
#include "weir/heap_types.h"

namespace weir {

Block* StreamHeap::claim_run(Range run, bool for_slab, Status& status) {
  PageHeap::Owner owner = this->owner();
  status = pages_.allocate_at(owner, run);
  if (!status) return nullptr;
  return add_run(run, history_.note(for_slab ? Slab::kSize : run.size), for_slab);
}

Status StreamHeap::allocate_at(const PlacedBlock& wanted) {
  const MutexLock lock(mutex_);
  if (pages_.is_asleep()) return PageHeap::asleep_error();
  give_back_cached_locked();
  Status status;
  const Range range{wanted.address, wanted.bytes};
  Block* block = nullptr;
  if (wanted.bytes > Slabs::kLargest) {
    block = claim_run(range, /*for_slab=*/false, status);
  } else if (block = slabs_.allocate_at(range); block == nullptr) {
    Block* const slab = claim_run({wanted.run, wanted.run_bytes}, /*for_slab=*/true, status);
    if (slab == nullptr) return status;
    slabs_.add(slab);
    block = slabs_.allocate_at(range);
  }
  if (!status) return status;
  if (block == nullptr) {
    return Error(ErrorCode::invalid_argument, "the memory there is in use");
  }
  block->epoch = epoch_;
  if (give_out(*block, wanted.requested)) fold_.raise_peaks();
  if (recording_) record(EventKind::allocate, *block);
  return {};
}

void StreamHeap::list_placed(std::vector<PlacedBlock>& blocks) const {
  const MutexLock lock(mutex_);
  for_each_block([&](const Block& block) WEIR_REQUIRES(mutex_) {
    if (block.state != Block::State::live) return;
    const Block& run = block.slab == nullptr ? block : *block.slab->run;
    blocks.push_back({block.begin, block.size, block.requested, stream_, run.begin, run.size});
  });
}

}  // namespace weir
