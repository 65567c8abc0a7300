// SPDX-License-Identifier: Apache-2.0
// What the threads of a concurrent program share: one heap on one device, and blocks for others.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/property/concurrent_program.h"
#include "tests/property/history.h"
#include "weir/device_heap.h"
#include "weir/event.h"
#include "weir/sim_device.h"

namespace weir::test {

// A block as its holder knows it. It is handed over whole.
struct Held {
  void* pointer = nullptr;
  Bytes bytes;
  Stream owner;
  // The last use, and an event that was recorded after it.
  Stream used_on;
  EventHandle used;
  std::vector<Stream> unfenced;  // streams whose work on it has no fence yet
};

// Where threads leave blocks for others to use and to deallocate.
class Exchange {
 public:
  void put(Held held) {
    const std::scoped_lock lock(mutex_);
    blocks_.push_back(std::move(held));
  }
  std::optional<Held> take() {
    const std::scoped_lock lock(mutex_);
    if (blocks_.empty()) return std::nullopt;
    Held held = std::move(blocks_.front());
    blocks_.erase(blocks_.begin());
    return held;
  }

 private:
  std::mutex mutex_;
  std::vector<Held> blocks_;  // guarded by mutex_
};

// Lets other threads run in the middle of calls: events are told under the locks of the heap. It
// shares nothing between threads, and so orders nothing.
class Interruptions final : public EventSink {
 public:
  void on_event(const Event& event) override {
    thread_local std::minstd_rand random(static_cast<std::uint32_t>(event.address.value) + 1);
    if (random() % 64 == 0) std::this_thread::yield();
  }
};

inline SimOptions sim_options(const Scenario& scenario) {
  SimOptions options;
  options.memory = scenario.memory;
  return options;
}

struct World {
  explicit World(const Scenario& of)
      : scenario(of),
        sim(sim_options(of)),
        heap(std::make_unique<DeviceHeap>(sim, of.heap, of.interrupts ? &interruptions : nullptr)),
        started(of.threads),
        halfway(of.threads + 1),
        looked(of.threads + 1) {}

  const Scenario& scenario;
  SimDevice sim;
  Interruptions interruptions;
  std::unique_ptr<DeviceHeap> heap;
  StampClock clock;
  Exchange exchange;
  // Starts of blocks that somebody has or had, for others to ask find() for. They order nothing.
  std::array<std::atomic<std::uint64_t>, 32> rumours{};
  std::barrier<> started, halfway, looked;
};

}  // namespace weir::test
