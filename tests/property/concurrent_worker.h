// SPDX-License-Identifier: Apache-2.0
// One thread of a concurrent program, and what it does: random calls of the heap that keep the
// contract, each of them recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/property/concurrent_program.h"
#include "tests/property/concurrent_world.h"
#include "tests/property/history.h"
#include "tests/property/recorded_heap.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir::test {

class Worker {
 public:
  Worker(World& world, std::uint32_t number, std::vector<Stream> shared)
      : world_(world),
        scenario_(world.scenario),
        heap_(*world.heap, world.clock, number),
        random_(world.scenario.seed * 1000 + number),
        streams_(std::move(shared)),
        first_own_(streams_.size()) {
    for (std::uint32_t i = 0; i < scenario_.own_streams; ++i) {
      streams_.push_back(world_.sim.new_stream());
    }
  }

  // The one whose operator() this thread is in; null: none.
  static Worker* of_this_thread();

  // One half with everybody's blocks left alive, for a look when nobody is at work; and one in
  // which all goes back.
  void operator()();

  void look();
  // With nobody at work, and every block given back: whatever was cached, and for whichever stream,
  // serves one request for all there may be, on a stream that had nothing.
  void take_everything();

  void trim_all() { heap_.trim(0_B); }
  void adopt(Held held) { give_back(std::move(held)); }

  History take_calls() { return heap_.take_calls(); }
  std::vector<std::string> take_complaints() { return std::move(complaints_); }
  std::uint64_t handed_over() const { return handed_over_; }

  // The callback of a request that found no memory: another's blocks, or this one's, go back.
  void free_something();

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  Stream any_stream() { return streams_[below(streams_.size())]; }
  void complain(std::string what) { complaints_.push_back(std::move(what)); }
  void expect(const Status& status, const char* what) {
    if (!status.ok()) complain(std::string(what) + ": " + status.error().message());
  }

  void step();
  void hammer();
  void now_and_then();

  // Around every border: the grain, small and large, a page, many pages.
  Bytes random_size();

  bool allocate(Bytes bytes, Stream stream);
  void write(Held& held, Stream stream);

  // After the uses before it. On another stream than the block's, a fence is owed.
  void use(Held& held, Stream stream);

  void owe_fence(Held& held, Stream stream);

  // One fence for all blocks that owe one on `user`, and at times for others.
  void fence_many(Stream user);

  const Call& fence_one(void* block, Stream user) {
    return heap_.fence(std::span<void* const>(&block, 1), user);
  }

  void fence_what_is_owed(Held& held) {
    for (const Stream user : std::exchange(held.unfenced, {})) fence_one(held.pointer, user);
  }

  void give_back(Held held);
  void hand_over();
  void take_over();

  // A block of this thread's: its start, inside, its last byte, one past the end. Or what once was
  // the start of anybody's.
  const char* random_pointer();

  // What is no block must be refused, and change nothing.
  void misuse();

  void change_limit();

  // One of this thread's streams, for a new one. Others may hold blocks of it still.
  void retire();

  Held pop();

  World& world_;
  const Scenario& scenario_;
  RecordedHeap heap_;
  std::mt19937_64 random_;
  std::vector<Stream> streams_;
  const std::size_t first_own_;  // of streams_
  std::vector<Stream> seen_;     // with a block that find() found
  std::vector<Held> held_;
  std::vector<std::string> complaints_;
  std::uint64_t handed_over_ = 0;
};

}  // namespace weir::test
