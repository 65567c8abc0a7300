#include "comm/bench_memory.h"

#include <iterator>
#include <utility>

namespace weir {

Result<BenchMemory> BenchMemory::allocate(BenchRank& rank, Bytes most, bool registered) {
  BenchMemory memory(rank);
  Status taken = registered ? memory.take_registered(most) : memory.take_blocks(most);
  if (!taken) return std::move(taken).error();
  return memory;
}

BenchMemory::BenchMemory(BenchMemory&& other) noexcept
    : rank_(other.rank_), pool_(std::move(other.pool_)), raw_(std::move(other.raw_)) {
  std::swap(places_, other.places_);
}

Status BenchMemory::take_blocks(Bytes most) {
  for (void*& place : places_) {
    const Result<void*> block = rank_->heap.allocate(most, rank_->compute);
    if (!block) return block.error();
    place = *block;
  }
  return {};
}

// Each a segment of its own.
Status BenchMemory::take_registered(Bytes most) {
  const Bytes segment = round_up(most, rank_->device.granularity());
  const int segments = static_cast<int>(std::size(places_));
  Result<RegisteredPool> pool =
      RegisteredPool::create(rank_->comm, {.segment = segment, .segments = segments});
  if (!pool) return std::move(pool).error();
  pool_.emplace(*std::move(pool));
  for (void*& place : places_) {
    const Result<void*> block = pool_->allocate(segment, rank_->compute);
    if (!block) return block.error();
    place = *block;
    if (rank_->raw.value == 0) continue;
    const auto record = rank_->nccl.register_range(rank_->raw, Address::of(place), segment);
    if (!record) return record.error();
    raw_.push_back(*record);
  }
  return {};
}

Status BenchMemory::free() {
  for (const RegistrationHandle record : std::exchange(raw_, {})) {
    if (Status gone = rank_->nccl.deregister(rank_->raw, record); !gone) return gone;
  }
  for (void*& place : places_) {
    void* const block = std::exchange(place, nullptr);
    if (block == nullptr) continue;
    Status freed = pool_ ? pool_->deallocate(block) : rank_->heap.deallocate(block);
    if (!freed) return freed;
  }
  return pool_ ? pool_->close() : Status();
}

}  // namespace weir
