// SPDX-License-Identifier: Apache-2.0
// One thread allocates, another one frees; a ring of 256 blocks between them.
#include <array>
#include <atomic>
#include <thread>

#include "bench/micro/micro.h"
#include "bench/support/together.h"

namespace weir::bench {
namespace {

// For one thread that puts and one that takes.
class Ring {
 public:
  void put(std::size_t number, void* block) {
    std::atomic<void*>& slot = slots_[number % slots_.size()].block;
    wait_until([&] { return slot.load(std::memory_order_acquire) == nullptr; });
    slot.store(block, std::memory_order_release);
  }

  void* take(std::size_t number) {
    std::atomic<void*>& slot = slots_[number % slots_.size()].block;
    void* block = nullptr;
    wait_until([&] { return (block = slot.load(std::memory_order_acquire)) != nullptr; });
    slot.store(nullptr, std::memory_order_release);
    return block;
  }

 private:
  struct alignas(64) Slot {
    std::atomic<void*> block = nullptr;  // null: empty
  };

  // The other thread may need this one's processor.
  template <class Condition>
  static void wait_until(Condition condition) {
    for (int tries = 0; !condition(); ++tries) {
      if (tries >= 1000) std::this_thread::yield();
    }
  }

  std::array<Slot, 256> slots_;
};

void handoff(benchmark::State& state, const Context& context, Bytes bytes) {
  HeapInterface interface(*context.target);
  const Stream stream = context.target->stream(0);
  const auto ring = std::make_unique<Ring>();
  const benchmark::IterationCount pairs = state.max_iterations;
  const auto run = [&](int thread, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      if (thread == 0) {
        ring->put(i, interface.allocate(bytes, stream));
      } else {
        interface.deallocate(ring->take(i));
      }
    }
  };
  while (state.KeepRunningBatch(pairs)) {
    // 512 is a multiple of the ring's size: the first slot is the next one again.
    state.SetIterationTime(seconds_together(
        2, [&](int thread) { run(thread, 512); },
        [&](int thread) { run(thread, static_cast<std::size_t>(pairs)); }));
  }
  expect_sound(state, interface.heap());
}

}  // namespace

void add_handoff(const Context& context) {
  for (const Bytes bytes : {512_B, 1_MiB}) {
    add_timed_by_itself(context, std::string("handoff/") + context.name + "/heap/" + name_of(bytes),
                        [=](benchmark::State& state) { handoff(state, context, bytes); });
  }
}

}  // namespace weir::bench
