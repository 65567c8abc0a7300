// SPDX-License-Identifier: Apache-2.0
#include "tests/property/concurrent_worker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "weir/sim_device.h"

namespace weir::test {
namespace {

thread_local Worker* worker_of_this_thread = nullptr;

}  // namespace

Worker* Worker::of_this_thread() { return worker_of_this_thread; }

void Worker::operator()() {
  worker_of_this_thread = this;
  world_.started.arrive_and_wait();
  for (std::uint32_t i = 0; i < scenario_.steps / 2; ++i) step();
  world_.halfway.arrive_and_wait();
  world_.looked.arrive_and_wait();
  for (std::uint32_t i = 0; i < scenario_.steps / 2; ++i) step();
  while (!held_.empty()) give_back(pop());
  while (std::optional<Held> held = world_.exchange.take()) give_back(std::move(*held));
  worker_of_this_thread = nullptr;
}

void Worker::look() {
  heap_.statistics();
  heap_.snapshot();
  heap_.validate();
}

void Worker::take_everything() {
  const Bytes limit = scenario_.heap.limit > 0_B ? scenario_.heap.limit : scenario_.memory;
  const Bytes all = round_down(std::min(limit, scenario_.memory), 2_MiB);
  heap_.set_limit(scenario_.heap.limit);
  streams_.push_back(world_.sim.new_stream());
  if (!allocate(all, streams_.back())) {
    return complain("idle memory did not serve a request for all: " + heap_.last().message);
  }
  give_back(pop());
}

void Worker::free_something() {
  for (int i = 0; i < 4; ++i) {
    if (std::optional<Held> held = world_.exchange.take()) give_back(std::move(*held));
  }
  if (held_.size() > 1) give_back(pop());
}

void Worker::step() {
  const std::uint64_t dice = below(100);
  if (scenario_.hammers && below(50) != 0) return hammer();
  if (dice < 34) {
    if (held_.size() >= scenario_.most_held) give_back(pop());
    allocate(random_size(), any_stream());
  } else if (dice < 54) {
    if (!held_.empty()) give_back(pop());
  } else if (dice < 62) {
    if (!held_.empty()) use(held_[below(held_.size())], any_stream());
  } else if (dice < 72) {
    hand_over();
  } else if (dice < 82) {
    take_over();
  } else if (dice < 85) {
    fence_many(any_stream());
  } else if (dice < 92) {
    heap_.find(random_pointer());
  } else if (dice < 94) {
    misuse();
  } else {
    now_and_then();
  }
}

void Worker::hammer() {
  if (held_.size() < scenario_.most_held && below(2) == 0) {
    allocate(random_size(), any_stream());
  } else if (!held_.empty()) {
    give_back(pop());
  }
}

void Worker::now_and_then() {
  switch (below(12)) {
    case 0:
      return heap_.trim(Bytes{below(3) * (32_MiB).count});
    case 1:
      return heap_.validate();
    case 2:
    case 3:
      return heap_.snapshot();
    case 4:
    case 5:
      return heap_.statistics();
    case 6:
      return heap_.reset_peaks();
    case 7:
      if (scenario_.limits) change_limit();
      return;
    case 8:
      if (scenario_.retires && streams_.size() > first_own_) retire();
      return;
    case 9:
      return std::this_thread::yield();
    default:
      return world_.sim.advance({static_cast<std::int64_t>(below(300'000))});
  }
}

Bytes Worker::random_size() {
  if (!scenario_.hot.empty() && below(8) != 0) {
    return scenario_.hot[below(scenario_.hot.size())];
  }
  static constexpr std::array kBorders = {512_B, 256_KiB, 2_MiB, 32_MiB};
  switch (below(4)) {
    case 0:
      return Bytes{below(1024)};
    case 1: {
      const std::uint64_t border = kBorders[below(below(4) == 0 ? 4 : 3)].count;
      return Bytes{border - 511 + below(1023)};
    }
    case 2:
      return Bytes{1 + 2 * below(200'000)};
    default:
      return Bytes{1 + below(std::uint64_t{1} << (9 + below(15)))};
  }
}

bool Worker::allocate(Bytes bytes, Stream stream) {
  const Call& call = heap_.allocate(bytes, stream, world_.sim);
  if (call.error) {
    while (held_.size() > 2) give_back(pop());
    return false;
  }
  if (call.addresses.empty()) return true;  // of zero bytes: the checker sees to that
  void* const pointer = call.addresses.front().pointer();
  world_.rumours[below(world_.rumours.size())].store(Address::of(pointer).value,
                                                     std::memory_order_relaxed);
  Held held{pointer, bytes, stream, stream, {}, {}};
  if (scenario_.launches) {
    const Result<EventHandle> event = world_.sim.create_event();
    if (!event.ok()) return complain("create_event: " + event.error().message()), true;
    held.used = *event;
    write(held, stream);
  }
  held_.push_back(std::move(held));
  // So that each stream is seen with the heap that serves it.
  if (std::find(seen_.begin(), seen_.end(), stream) == seen_.end()) {
    seen_.push_back(stream);
    heap_.find(pointer);
  }
  return true;
}

void Worker::write(Held& held, Stream stream) {
  const Nanoseconds duration{static_cast<std::int64_t>(below(200'000))};
  const bool reads = below(4) == 0 && !(stream == held.owner);
  const Access access = reads ? Reads(held.pointer, held.bytes) : Writes(held.pointer, held.bytes);
  expect(world_.sim.launch(stream, access, duration), "launch");
  expect(world_.sim.record(held.used, stream), "record");
  held.used_on = stream;
}

void Worker::use(Held& held, Stream stream) {
  if (!scenario_.launches) {
    owe_fence(held, stream);
    return;
  }
  if (!(stream == held.used_on)) expect(world_.sim.wait(stream, held.used), "wait");
  write(held, stream);
  owe_fence(held, stream);
}

void Worker::owe_fence(Held& held, Stream stream) {
  if (stream == held.owner) return;
  if (below(4) == 0) {
    heap_.record_stream(held.pointer, stream);
    return;
  }
  if (std::find(held.unfenced.begin(), held.unfenced.end(), stream) == held.unfenced.end()) {
    held.unfenced.push_back(stream);
  }
}

void Worker::fence_many(Stream user) {
  std::vector<void*> blocks;
  for (Held& held : held_) {
    if (std::erase(held.unfenced, user) > 0 || below(8) == 0) blocks.push_back(held.pointer);
  }
  if (below(4) == 0) blocks.push_back(nullptr);
  if (!blocks.empty()) heap_.fence(blocks, user);
}

void Worker::give_back(Held held) {
  fence_what_is_owed(held);
  heap_.deallocate(held.pointer);
  if (scenario_.launches) expect(world_.sim.destroy_event(held.used), "destroy_event");
}

void Worker::hand_over() {
  if (held_.empty()) return;
  Held held = pop();
  fence_what_is_owed(held);  // the streams may be this thread's, and gone before the block is
  ++handed_over_;
  world_.exchange.put(std::move(held));
}

void Worker::take_over() {
  std::optional<Held> held = world_.exchange.take();
  if (!held) return;
  if (below(2) == 0) use(*held, any_stream());
  if (below(2) == 0 && held_.size() < scenario_.most_held) {
    held_.push_back(std::move(*held));
  } else {
    give_back(std::move(*held));
  }
}

const char* Worker::random_pointer() {
  if (held_.empty() || below(2) == 0) {
    const std::uint64_t rumour =
        world_.rumours[below(world_.rumours.size())].load(std::memory_order_relaxed);
    return static_cast<const char*>(Address{rumour + below(2) * below(4096)}.pointer());
  }
  const Held& held = held_[below(held_.size())];
  const std::uint64_t end = round_up(held.bytes, kGrain).count;
  const std::array offsets = {std::uint64_t{0}, below(end), end - 1, end};
  return static_cast<const char*>(held.pointer) + offsets[below(offsets.size())];
}

void Worker::misuse() {
  char outside = 0;
  std::vector<void*> wrong = {&outside, Address{8}.pointer()};
  if (!held_.empty()) {
    wrong.push_back(static_cast<char*>(held_.back().pointer) + kGrain.count);
    wrong.push_back(static_cast<char*>(held_.back().pointer) + 1);
    // One past a block's end may be another's start; inside one of one grain is past its end.
    if (held_.back().bytes <= kGrain) wrong.erase(wrong.begin() + 2);
  }
  void* const pointer = wrong[below(wrong.size())];
  const bool refused = [&] {
    switch (below(3)) {
      case 0:
        return heap_.deallocate(pointer).error.has_value();
      case 1:
        return fence_one(pointer, any_stream()).error.has_value();
      default:
        if (held_.empty()) return true;
        return heap_.fence(std::array{held_.back().pointer, pointer}, any_stream())
            .error.has_value();
    }
  }();
  if (!refused) complain("what is no block was taken: " + describe(heap_.last()));
}

void Worker::change_limit() {
  static constexpr std::array kLimits = {0_B, 16_MiB, 64_MiB, 512_MiB};
  heap_.set_limit(kLimits[below(kLimits.size())]);
}

void Worker::retire() {
  Stream& slot = streams_[first_own_ + below(streams_.size() - first_own_)];
  const Stream old = slot;
  fence_many(old);
  heap_.retire(old);
  expect(world_.sim.destroy_stream(old), "destroy_stream");
  slot = world_.sim.new_stream();
}

Held Worker::pop() {
  std::swap(held_[below(held_.size())], held_.back());
  Held held = std::move(held_.back());
  held_.pop_back();
  return held;
}

}  // namespace weir::test
