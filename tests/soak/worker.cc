// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/worker.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <thread>

namespace weir::soak {

Bytes Worker::random_size() {
  static constexpr std::array kBorders = {512_B, 256_KiB, 2_MiB, 8_MiB};
  switch (below(6)) {
    case 0:
      return Bytes{kBorders[below(kBorders.size())].count - 511 + below(1023)};
    case 1:
      return Bytes{1 + below((16_MiB).count)};
    default:
      return Bytes{1 + below(std::uint64_t{1} << (9 + below(15)))};
  }
}

std::optional<Block> Worker::allocate(Bytes bytes, Stream stream, const AllocateOptions& options) {
  Result<void*> pointer = attempt([&] {
    return caught([&] { return world_.allocator.allocate(bytes, stream.handle, options); });
  });
  if (!pointer.ok()) {
    if (pointer.error().code() != ErrorCode::out_of_memory) expect("allocate", pointer);
    return std::nullopt;
  }
  Block block{.pointer = *pointer, .bytes = bytes, .home = stream, .tag = options.tag};
  if (!world_.ranges.insert(block)) complain("a block overlaps another one");
  write(block, stream);
  return block;
}

void Worker::write(Block& block, Stream stream) {
  expect("write", world_.machine.write(stream, block, random_(), delay()));
}

void Worker::check(const Block& block, Stream stream) {
  expect("check", world_.machine.check(stream, block, delay(), name_, world_.complaints));
}

void Worker::order(Stream earlier, Stream later) {
  expect("order", world_.machine.gpu().order(earlier, later));
}

void Worker::fence_users(Block& block) {
  if (!world_.fences) block.users.clear();
  for (const Stream user : block.users) {
    const bool recorded = chance(25);
    expect("fence", attempt([&] {
             return recorded ? world_.heap().record_stream(block.pointer, user)
                             : world_.heap().fence(block.pointer, user);
           }));
  }
  block.users.clear();
}

void Worker::free(Block block) {
  fence_users(block);
  forget(block);
  expect("deallocate",
         attempt([&] { return caught([&] { world_.allocator.deallocate(block.pointer); }); }));
}

std::optional<Stream> Worker::new_stream() {
  Result<Stream> stream = world_.machine.gpu().new_stream();
  if (!expect("a new stream", stream)) return std::nullopt;
  return *stream;
}

void Worker::end_stream(Stream stream) {
  if (!expect("retire", attempt([&] { return world_.heap().retire(stream); }))) return;
  expect("the end of a stream", world_.machine.gpu().destroy_stream(stream));
}

void Worker::note_slept(Block& block, SleepContents contents) {
  if (contents == SleepContents::discard) block.holds = Holds::anything;
  if (contents == SleepContents::zero) block.holds = Holds::zeros;
}

SleepContents Worker::contents_of(const std::string& tag) const {
  for (const TagInfo& info : world_.allocator.tags(0)) {
    if (info.tag == tag) return info.contents;
  }
  return SleepContents::backup;
}

bool Worker::fall_asleep(const SleepOptions& options) {
  const Result<SleepReport> slept = attempt([&] { return world_.heap().tags().sleep(options); });
  if (slept.ok()) return true;
  const ErrorCode code = slept.error().code();
  if (code != ErrorCode::capture && code != ErrorCode::out_of_memory) expect("sleep", slept);
  wake(options.tags);  // what fell asleep before it failed
  return false;
}

// Others may hold the memory for a while: those whose requests fail give back half of theirs.
void Worker::wake(const std::vector<std::string>& tags) {
  constexpr int kTries = 2000, kUnderTheLimit = 5;
  for (int tries = 0; tries < kTries; ++tries) {
    const Result<SleepReport> woke =
        attempt([&] { return world_.heap().tags().wake({.tags = tags, .keep_host = {}}); });
    if (woke.ok()) return;
    if (woke.error().code() != ErrorCode::out_of_memory || tries + 1 == kTries) {
      expect("wake", woke);
      return;
    }
    // Others set another one meanwhile.
    if (tries % kUnderTheLimit == kUnderTheLimit - 1) world_.allocator.set_limit(0_B, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace weir::soak
