// SPDX-License-Identifier: Apache-2.0
#include "tests/stress/program.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace weir::stress {

Tally& Tally::operator+=(const Tally& other) {
  allocations += other.allocations;
  deallocations += other.deallocations;
  cross_uses += other.cross_uses;
  fences += other.fences;
  rewrites += other.rewrites;
  handed_over += other.handed_over;
  out_of_memory += other.out_of_memory;
  trims += other.trims;
  allocated += other.allocated;
  return *this;
}

void Exchange::put(const Block& block) {
  const std::scoped_lock lock(mutex_);
  blocks_.push_back(block);
}

bool Exchange::take(Block* block) {
  const std::scoped_lock lock(mutex_);
  if (blocks_.empty()) return false;
  *block = blocks_.back();
  blocks_.pop_back();
  return true;
}

Status Program::run() {
  for (std::uint64_t i = 0; i < environment_.options.steps; ++i) {
    if (Status done = step(); !done) return done;
  }
  for (Block block; environment_.exchange.take(&block);) {
    if (Status done = deallocate(block); !done) return done;
  }
  while (!blocks_.empty()) {
    if (Status done = deallocate_one(); !done) return done;
  }
  return {};
}

Status Program::step() {
  // Together the threads ask for somewhat more than there is, now and then.
  const Bytes share = environment_.options.limit / environment_.options.threads;
  if (blocks_.empty() || (blocks_.size() < 8 && live_ < share / 4)) return allocate();
  if (live_ > share - share / 10) return deallocate_one();
  const std::uint64_t choice = below(1000);
  if (choice < 380) return allocate();
  if (choice < 600) return use_elsewhere();
  if (choice < 650) return use_at_home();
  if (choice < 680) return fence_several();
  if (choice < 985) return deallocate_one();
  if (choice < 995) return hand_over();
  return choice < 998 ? trim() : environment_.gpu.synchronize(stream(random_stream()));
}

Bytes Program::random_size() {
  if (chance(1)) return 0_B;
  if (chance(10)) return {1 + below(4096)};
  const int magnitude = static_cast<int>(
      below(static_cast<std::uint64_t>(std::bit_width(environment_.options.max_bytes.count))));
  const std::uint64_t most =
      std::min(std::uint64_t{2} << magnitude, environment_.options.max_bytes.count);
  return {1 + below(most)};
}

Nanoseconds Program::random_delay() {
  if (chance(60) || environment_.options.max_delay == 0_ns) return 0_ns;
  const auto most = static_cast<std::uint64_t>(environment_.options.max_delay.count);
  return {static_cast<std::int64_t>(below(most))};
}

Status Program::allocate() {
  Block block{.pointer = nullptr,
              .bytes = random_size(),
              .pattern = 0,
              .home = random_stream(),
              .users = 0};
  Result<void*> pointer = environment_.heap.allocate(block.bytes, stream(block.home));
  if (!pointer.ok()) {
    if (pointer.error().code() != ErrorCode::out_of_memory) return std::move(pointer).error();
    ++tally_.out_of_memory;
    const std::size_t keep = blocks_.size() / 2;
    while (blocks_.size() > keep) {
      if (Status done = deallocate_one(); !done) return done;
    }
    return {};
  }
  block.pointer = *pointer;
  ++tally_.allocations;
  tally_.allocated += block.bytes;
  live_ += block.bytes;
  Status written = write(&block, block.home);
  blocks_.push_back(block);
  return written;
}

Status Program::write(Block* block, unsigned stream_index) {
  block->pattern = random_();
  if (block->pointer == nullptr) return {};
  return environment_.gpu.write(stream(stream_index),
                                {block->pointer, block->bytes, block->pattern}, random_delay());
}

Status Program::check(const Block& block, unsigned stream_index) {
  if (block.pointer == nullptr) return {};
  return environment_.gpu.check(stream(stream_index), {block.pointer, block.bytes, block.pattern},
                                random_delay());
}

// The order that the program itself owes: between its own uses of a block.
Status Program::order(unsigned earlier, unsigned later) {
  return environment_.gpu.order(stream(earlier), stream(later));
}

// Reads a block on another stream than its own; perhaps writes it there, and then its own stream
// sees what was written.
Status Program::use_elsewhere() {
  Block& block = blocks_[below(blocks_.size())];
  const unsigned other = random_stream();
  if (other == block.home) return use_at_home();
  ++tally_.cross_uses;
  if (Status done = order(block.home, other); !done) return done;
  if (Status done = check(block, other); !done) return done;
  block.users |= std::uint64_t{1} << other;
  // A write needs order after all the other streams' reads too, so only where there are none.
  if (!chance(30) || block.users != std::uint64_t{1} << other) return {};
  ++tally_.rewrites;
  if (Status done = write(&block, other); !done) return done;
  return order(other, block.home);
}

Status Program::use_at_home() {
  Block& block = blocks_[below(blocks_.size())];
  if (Status done = check(block, block.home); !done) return done;
  if (!chance(50) || block.users != 0) return {};
  ++tally_.rewrites;
  return write(&block, block.home);
}

// Several blocks that one stream used get one fence.
Status Program::fence_several() {
  const unsigned user = random_stream();
  const std::uint64_t bit = std::uint64_t{1} << user;
  std::vector<void*> pointers;
  for (Block& block : blocks_) {
    if ((block.users & bit) == 0 || block.pointer == nullptr || environment_.options.omit_fences) {
      continue;
    }
    pointers.push_back(block.pointer);
  }
  if (pointers.empty()) return {};
  ++tally_.fences;
  return environment_.heap.fence(pointers, stream(user));
}

Status Program::fence_users(Block* block) {
  if (block->pointer == nullptr || environment_.options.omit_fences) return {};
  for (unsigned user = 0; user < environment_.streams.size(); ++user) {
    if ((block->users >> user & 1) == 0) continue;
    ++tally_.fences;
    Status done = chance(25) ? environment_.heap.record_stream(block->pointer, stream(user))
                             : environment_.heap.fence(block->pointer, stream(user));
    if (!done) return done;
  }
  return {};
}

Block Program::take_random() {
  std::swap(blocks_[below(blocks_.size())], blocks_.back());
  const Block block = blocks_.back();
  blocks_.pop_back();
  live_ -= block.bytes;
  return block;
}

Status Program::deallocate_one() {
  if (blocks_.empty()) return {};
  return deallocate(take_random());
}

Status Program::deallocate(Block block) {
  if (!chance(15)) {
    if (Status done = check(block, block.home); !done) return done;
  }
  if (Status done = fence_users(&block); !done) return done;
  ++tally_.deallocations;
  return environment_.heap.deallocate(block.pointer);
}

// Blocks change threads: another one uses and deallocates them.
Status Program::hand_over() {
  if (blocks_.empty()) return {};
  ++tally_.handed_over;
  environment_.exchange.put(take_random());
  if (Block other; chance(80) && environment_.exchange.take(&other)) {
    live_ += other.bytes;
    blocks_.push_back(other);
  }
  return {};
}

Status Program::trim() {
  ++tally_.trims;
  Result<Bytes> trimmed = environment_.heap.trim(environment_.options.limit / 2);
  if (!trimmed.ok()) return std::move(trimmed).error();
  return {};
}

}  // namespace weir::stress
