// SPDX-License-Identifier: Apache-2.0
// A graph pool's live blocks as a program saved them, and put back.
#include <algorithm>
#include <set>
#include <utility>

#include "core/base/format.h"
#include "core/pool/capture_pool.h"

namespace weir {
namespace {

using Places = std::set<std::pair<Address, Bytes>>;

Places places_of(std::span<const PlacedBlock> blocks) {
  Places places;
  for (const PlacedBlock& block : blocks) places.emplace(block.address, block.bytes);
  return places;
}

// Could it ever have been a block of the pool? Its addresses are those of the stream's heap here,
// or of one whose stream was retired.
bool is_block_of(const Pool& pool, const PlacedBlock& block) {
  const Address last{block.address.value + block.bytes.count - 1};
  const bool small = block.bytes <= Slabs::kLargest;
  const bool run_fits = small ? block.run_bytes == Slab::kSize || block.run_bytes == Slab::kLeast
                              : block.run_bytes == block.bytes;
  const bool fits = run_fits && block.requested > 0_B && block.requested <= block.bytes &&
                    Bytes{block.address.value} % kGrain == 0_B &&
                    Bytes{block.run.value} % kGrain == 0_B && block.run <= block.address &&
                    last >= block.address &&
                    (small ? last < block.run + block.run_bytes : block.run == block.address);
  if (!fits || !HeapBlocks::is_size_for(block.requested, block.bytes)) return false;
  const bool has_heap = pool.find(block.stream.id) != nullptr || pool.has_retired();
  return has_heap && pool.pages().listing()->has_addresses({block.run, block.run_bytes});
}

Status free_placed(Pool& pool, GraphOrder& graphs, const PlacedBlock& block) {
  StreamHeap* const heap = pool.heap_with(block.address);
  if (heap == nullptr) return {};
  graphs.note_free(*heap, block.address);
  Result<bool> done = heap->deallocate(block.address);
  return done ? Status() : std::move(done).error();
}

Status place(Pool& pool, const PlacedBlock& block) {
  const Result<Pool::Member*> member = pool.member_of(block.stream);
  return member ? (*member)->heap->allocate_at(block) : Status(member.error());
}

}  // namespace

std::vector<PlacedBlock> CapturePool::blocks() const {
  const MutexLock lock(mutex_);
  std::vector<PlacedBlock> blocks;
  for_each_heap([&](const StreamHeap& heap) { heap.list_placed(blocks); });
  std::sort(blocks.begin(), blocks.end(),
            [](const PlacedBlock& a, const PlacedBlock& b) { return a.address < b.address; });
  return blocks;
}

Status CapturePool::restore(std::span<const PlacedBlock> wanted) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::invalid_argument,
                 "graph pool " + std::to_string(id()) + " can't go back to that state: " + why);
  };
  for (const PlacedBlock& block : wanted) {
    if (!is_block_of(*this, block)) {
      return refuse("what lies at " + format(block.address) + " is no block of it");
    }
  }
  const MutexLock lock(mutex_);
  if (Status back = scratch_.take_back(); !back) return back;
  std::vector<PlacedBlock> live;
  for_each_heap([&](const StreamHeap& heap) { heap.list_placed(live); });
  const Places places_live = places_of(live), places_wanted = places_of(wanted);
  if (capture_) return refuse("a capture into it is going on");
  note_touched();
  struct Freed {
    PlacedBlock block;
    std::vector<TimelineId> users;
  };
  std::vector<PlacedBlock> made;
  std::vector<Freed> freed;
  Status status;
  for (const PlacedBlock& block : live) {
    if (places_wanted.contains({block.address, block.bytes})) continue;
    Freed each{.block = block};
    if (StreamHeap* const heap = heap_with(block.address)) {
      if (const LiveBlock its = heap->live(block.address)) each.users = its.users();
    }
    status = free_placed(*this, graphs_, block);
    if (!status) break;
    freed.push_back(std::move(each));
  }
  give_back_cached();  // of whichever stream: a place may be wanted for another
  for (const PlacedBlock& block : wanted) {
    if (!status) break;
    if (places_live.contains({block.address, block.bytes})) continue;
    status = place(*this, block);
    if (status) {
      made.push_back(block);
    } else if (status.error().code() == ErrorCode::invalid_argument) {
      status = refuse("the block of " + format(block.bytes) + " at " + format(block.address) +
                      ": " + status.error().message());
    }
  }
  if (status) {
    // What waited to be freed, and is live again, is freed no more.
    for (const PlacedBlock& block : wanted) shared_.waiting.forget(block.address);
    return {};
  }
  // As it was: what was free then is free now, and nobody else has been here.
  for (const PlacedBlock& block : made) (void)free_placed(*this, graphs_, block);
  give_back_cached();
  // Its stream now waits for what has used it; who uses it on is told again.
  for (const auto& [block, users] : freed) {
    (void)place(*this, block);
    StreamHeap* const heap = heap_with(block.address);
    if (heap == nullptr) continue;
    const LiveBlock again = heap->live(block.address, &timelines());
    if (!again) continue;
    for (const TimelineId user : users) again.add_user(user);
  }
  return status;
}

}  // namespace weir
