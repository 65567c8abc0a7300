// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/block_worker.h"

#include <algorithm>
#include <array>
#include <utility>

namespace weir::soak {

BlockWorker::BlockWorker(World& world, std::string name, std::uint64_t seed)
    : Worker(world, name, seed), tag_(std::move(name)) {
  for (int i = 0; i < 2; ++i) {
    if (const std::optional<Stream> stream = new_stream()) own_.push_back(*stream);
  }
}

BlockWorker::~BlockWorker() {
  drop_all();
  for (const Stream stream : own_) end_stream(stream);
}

void BlockWorker::list(std::vector<const Block*>& blocks) const {
  for (const Block& block : blocks_) blocks.push_back(&block);
}

void BlockWorker::woke() {
  const SleepContents contents = contents_of(tag_);
  for (Block& block : blocks_) {
    if (block.tag == tag_) note_slept(block, contents);
  }
}

void BlockWorker::drop_all() {
  while (!blocks_.empty()) free(take());
  blocks_ = {};  // with its room, which would count as the allocator's
  while (std::optional<Block> block = world_.exchange.take()) free(std::move(*block));
}

Stream BlockWorker::any_stream() {
  const std::uint64_t number = below(world_.streams.size() + own_.size());
  return number < own_.size() ? own_[number] : world_.streams[number - own_.size()];
}

Block BlockWorker::take() {
  std::swap(any(blocks_), blocks_.back());
  Block block = std::move(blocks_.back());
  blocks_.pop_back();
  live_ -= block.bytes;
  return block;
}

void BlockWorker::step() {
  world_.machine.pass_time(Nanoseconds{static_cast<std::int64_t>(below(20'000))});
  if (live_ > kMost || blocks_.size() > kMostBlocks) return drop_half();
  if (blocks_.empty()) return add();
  const std::uint64_t choice = below(1000);
  if (choice < 380) return add();
  if (choice < 700) return free(take());
  if (choice < 800) return use_elsewhere();
  if (choice < 840) return use_at_home();
  if (choice < 870) return fence_several();
  if (choice < 910) return hand_over();
  if (choice < 950) return take_over();
  if (choice < 975) return misuse();
  if (choice < 980) return change_stream();
  if (choice < 984) return sleep();
  if (choice < 986) return drop_all();
  expect("synchronize", world_.machine.gpu().synchronize(any_stream()));
}

void BlockWorker::add() {
  AllocateOptions options;
  if (chance(20)) {
    options.tag = tag_;
  } else if (world_.plain && chance(4)) {
    options.plain = true;
  }
  std::optional<Block> block = allocate(random_size(), any_stream(), options);
  if (!block) return drop_half();
  live_ += block->bytes;
  blocks_.push_back(std::move(*block));
}

void BlockWorker::drop_half() {
  const std::size_t keep = blocks_.size() / 2;
  while (blocks_.size() > keep) free(take());
}

// Reads a block on another stream than its own; or writes it there, and its own stream comes after.
void BlockWorker::use_elsewhere() {
  Block& block = any(blocks_);
  const Stream other = any_stream();
  if (other == block.home) return use_at_home();
  order(block.home, other);
  check(block, other);
  if (std::find(block.users.begin(), block.users.end(), other) == block.users.end()) {
    block.users.push_back(other);
  }
  if (block.shared || !chance(30)) {
    block.shared = true;
    return;
  }
  write(block, other);
  order(other, block.home);
}

void BlockWorker::use_at_home() {
  Block& block = any(blocks_);
  check(block, block.home);
  if (!block.shared && chance(50)) write(block, block.home);
}

void BlockWorker::fence_several() {
  if (!world_.fences) return;
  const Stream user = any_stream();
  std::vector<void*> pointers;
  std::vector<Block*> used;
  for (Block& block : blocks_) {
    if (std::find(block.users.begin(), block.users.end(), user) == block.users.end()) continue;
    pointers.push_back(block.pointer);
    used.push_back(&block);
  }
  if (pointers.empty()) return;
  // The user stays among the users: what it does later needs a fence again.
  expect("a fence of several",
         attempt([&] { return caught([&] { world_.allocator.fence(pointers, user.handle); }); }));
  for (const Block* const block : used) check(*block, block->home);
}

// Blocks of streams that live as long as all workers, and of no tag.
void BlockWorker::hand_over() {
  Block block = take();
  const bool lasts =
      std::find(world_.streams.begin(), world_.streams.end(), block.home) != world_.streams.end();
  if (!lasts || !block.tag.empty()) {
    live_ += block.bytes;
    blocks_.push_back(std::move(block));
    return;
  }
  fence_users(block);
  if (!world_.exchange.put(block)) free(std::move(block));
}

void BlockWorker::take_over() {
  std::optional<Block> block = world_.exchange.take();
  if (!block) return;
  check(*block, block->home);
  live_ += block->bytes;
  blocks_.push_back(std::move(*block));
}

// What is no block is refused, and changes nothing.
void BlockWorker::misuse() {
  const Block& block = any(blocks_);
  char outside = 0;
  const std::array<void*, 3> wrong = {&outside, Address{8}.pointer(),
                                      static_cast<char*>(block.pointer) + 1};
  void* const pointer = wrong[below(wrong.size())];
  const Status done = below(2) == 0
                          ? world_.heap().deallocate(pointer)
                          : world_.heap().fence(std::array{block.pointer, pointer}, any_stream());
  if (done.ok() || done.error().code() != ErrorCode::unknown_pointer) {
    complain("what is no block was taken for one");
  }
}

void BlockWorker::change_stream() {
  if (!world_.may_change_stream()) return;
  Stream& slot = any(own_);
  const Stream old = slot;
  // Those that were allocated for it go back before it, or after.
  std::vector<Block> kept, its;
  for (Block& block : blocks_) {
    const auto user = std::find(block.users.begin(), block.users.end(), old);
    if (user != block.users.end()) {
      if (world_.fences)
        expect("fence", attempt([&] { return world_.heap().fence(block.pointer, old); }));
      block.users.erase(user);
    }
    (block.home == old ? its : kept).push_back(std::move(block));
  }
  blocks_ = std::move(kept);
  for (const Block& block : its) live_ -= block.bytes;
  const bool before = chance(50);
  for (Block& block : its) {
    if (before) free(std::move(block));
  }
  end_stream(old);
  if (const std::optional<Stream> stream = new_stream()) slot = *stream;
  for (Block& block : its) {
    if (!before) free(std::move(block));
  }
}

void BlockWorker::sleep() {
  const bool any_tagged =
      std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.tag == tag_; });
  if (!world_.sleeps || !any_tagged) return;
  static constexpr std::array kContents = {SleepContents::backup, SleepContents::discard,
                                           SleepContents::zero, SleepContents::immutable};
  const SleepContents contents = kContents[below(kContents.size())];
  SleepOptions options;
  options.tags = {tag_};
  options.contents = contents;
  if (contents == SleepContents::immutable) {
    expect("declare_changed", world_.heap().tags().declare_changed(tag_));
  }
  const bool slept = sleep_and_wake(options, [&] {
    const Result<void*> refused = caught([&] {
      return world_.allocator.allocate(4_KiB, own_.front().handle, AllocateOptions{.tag = tag_});
    });
    if (refused.ok() || refused.error().code() != ErrorCode::asleep) {
      complain("a request of a tag that sleeps was not refused");
    }
    std::vector<Block> kept;
    for (Block& block : blocks_) {
      if (block.tag == tag_ && chance(30)) {
        live_ -= block.bytes;
        free(std::move(block));
      } else {
        kept.push_back(std::move(block));
      }
    }
    blocks_ = std::move(kept);
  });
  // Where it failed on the way, some of the memory may have slept.
  for (Block& block : blocks_) {
    if (block.tag != tag_) continue;
    if (slept) note_slept(block, contents);
    if (!slept && contents != SleepContents::backup && contents != SleepContents::immutable) {
      block.holds = Holds::anything;
    }
    check(block, block.home);
  }
}

}  // namespace weir::soak
