// SPDX-License-Identifier: Apache-2.0
// What the workers of a soak share: a device, one allocator on it, and the oracles.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/soak/ledger_device.h"
#include "weir/allocator.h"
#include "weir/sim_device.h"

namespace weir::soak {

// What went wrong. Thread-safe.
class Complaints {
 public:
  void add(const std::string& who, const std::string& what);
  bool any() const;
  std::vector<std::string> all() const;  // the first few

 private:
  static constexpr std::size_t kKept = 20;
  mutable std::mutex mutex_;
  std::vector<std::string> kept_;  // guarded by mutex_
  std::size_t count_ = 0;          // guarded by mutex_
};

// Workers pass through it for each step; closed, it waits until nobody is inside, and lets nobody
// in. Thread-safe; one thread closes and opens it.
class Gate {
 public:
  void enter();
  void leave();
  void close();
  void open();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int inside_ = 0;       // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

// What the bytes of a block are known to be.
enum class Holds : std::uint8_t { pattern, zeros, anything };

struct Block {
  void* pointer = nullptr;
  Bytes bytes;
  std::uint64_t pattern = 0;
  std::uint64_t write = 0;  // on the simulated device: the number of the write of the pattern
  Stream home;
  std::vector<Stream> users = {};  // other streams that used it, and have no fence for that yet
  bool shared = false;             // other streams used it, and its own does not come after that
  std::string tag = {};
  Holds holds = Holds::anything;
};

// The addresses that are given out now, by what the workers see. Thread-safe.
class LiveRanges {
 public:
  // False where the block overlaps another one.
  bool insert(const Block& block);
  void erase(const Block& block);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // guarded by mutex_; first to end
};

// Blocks on their way from one worker to another. Thread-safe, but for blocks().
class Exchange {
 public:
  // False: it is full.
  bool put(const Block& block);
  std::optional<Block> take();
  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  static constexpr std::size_t kMost = 32;
  std::mutex mutex_;
  std::vector<Block> blocks_;  // guarded by mutex_
};

// A device, and work for it. Threads: as Device.
class Machine {
 public:
  explicit Machine(std::unique_ptr<test::Gpu> gpu);

  test::Gpu& gpu() const { return *gpu_; }
  SimDevice* sim() const { return sim_; }  // null: a GPU
  LedgerDevice& device() { return ledger_; }
  const LedgerDevice& device() const { return ledger_; }

  // Queues a kernel that fills the block with a pattern of its own.
  Status write(Stream stream, Block& block, std::uint64_t pattern, Nanoseconds delay) const;
  // Queues a kernel that compares; on the simulated device the bytes are compared at once, too.
  // What it finds by then is added to `complaints`.
  Status check(Stream stream, const Block& block, Nanoseconds delay, const std::string& who,
               Complaints& complaints) const;
  // What is wrong with the bytes of the block now; empty: nothing, or a GPU, which can't say.
  std::string wrong_bytes(const Block& block) const;
  // The host does something else for a while.
  void pass_time(Nanoseconds time) const;
  // All work queued so far is done.
  Status finish() const;

 private:
  const std::unique_ptr<test::Gpu> gpu_;
  SimDevice* const sim_;
  LedgerDevice ledger_;
};

struct World {
  World(Machine& on, const Config& config, Complaints& to)
      : machine(on), complaints(to), allocator(on.device(), config) {}

  DeviceHeap& heap() { return allocator.heap(0); }
  void complain(const std::string& who, const std::string& what) { complaints.add(who, what); }
  // May one more stream go, and another come in its place?
  bool may_change_stream();

  Machine& machine;
  Complaints& complaints;
  Allocator allocator;
  LiveRanges ranges;
  Exchange exchange;
  Gate gate;
  std::vector<Stream> streams;  // that all workers use; they live as long as this
  bool faults = true;           // calls of the device fail now and then
  bool fences = true;           // of eager blocks that other streams use
  bool plain = true;            // some blocks are asked for in plain memory
  bool told = true;             // Trust::told: launches and warm-ups of a pool are ordered by Weir
  // A device heap keeps something of each stream that it ever met (docs/incompatibilities.md).
  std::optional<double> streams_per_minute;  // none: as many as there may be
  bool sleeps = true;                        // memory sleeps now and then, which plain memory can't

 private:
  const std::chrono::steady_clock::time_point opened_ = std::chrono::steady_clock::now();
  std::atomic<std::uint64_t> changed_ = 0;
};

// Calls the function, whose exceptions of Weir's become errors.
template <class Function>
auto caught(Function&& function) -> Result<decltype(function())> {
  try {
    if constexpr (std::is_void_v<decltype(function())>) {
      function();
      return {};
    } else {
      return function();
    }
  } catch (const OutOfMemory& error) {
    return Error(ErrorCode::out_of_memory, error.what());
  } catch (const Exception& error) {
    return Error(error.code(), error.what());
  }
}

}  // namespace weir::soak
