// SPDX-License-Identifier: Apache-2.0
// Random programs that use memory of a device heap: each block is filled with a pattern of its own
// when it is allocated, and found whole whenever it is read, or memory was given out twice, too
// early, or at two addresses that share bytes they should not.
#pragma once

#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/stress/gpu.h"
#include "weir/device_heap.h"

namespace weir::stress {

struct Options {
  std::uint64_t seed = 1;
  double seconds = 10;
  unsigned streams = 4;
  unsigned threads = 2;
  std::uint64_t steps = 3000;  // of each thread in a round
  Bytes limit = 4_GiB;
  Bytes max_bytes = 256_MiB;       // of one block
  Nanoseconds max_delay = 200_us;  // of one kernel
  bool simulated = false;
  int ordinal = 0;           // of the CUDA device
  bool omit_fences = false;  // a program with this mistake must be caught
};

struct Block {
  void* pointer = nullptr;
  Bytes bytes;
  std::uint64_t pattern = 0;
  unsigned home = 0;        // the stream it is for, as an index
  std::uint64_t users = 0;  // other streams that have used it, as bits
};

// What is done so far. Sums of several threads' add up.
struct Tally {
  std::uint64_t allocations = 0, deallocations = 0, cross_uses = 0, fences = 0, rewrites = 0;
  std::uint64_t handed_over = 0, out_of_memory = 0, trims = 0;
  Bytes allocated;
  Tally& operator+=(const Tally& other);
};

// Blocks on their way from one thread to another. Thread-safe.
class Exchange {
 public:
  void put(const Block& block);
  bool take(Block* block);

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

struct Environment {
  const Options& options;
  DeviceHeap& heap;
  Gpu& gpu;
  const std::vector<Stream>& streams;
  Exchange& exchange;
};

// One thread's part of a round. Not thread-safe; everything it does follows from its seed.
class Program {
 public:
  Program(const Environment& environment, std::uint64_t seed)
      : environment_(environment), random_(seed) {}

  // Runs all steps, and deallocates what is then left. An error ends it at once.
  Status run();
  const Tally& tally() const { return tally_; }

 private:
  Status step();
  Status allocate();
  Status use_elsewhere();
  Status use_at_home();
  Status fence_several();
  Status hand_over();
  Status trim();
  Status deallocate_one();
  Status deallocate(Block block);
  Status fence_users(Block* block);
  Status order(unsigned earlier, unsigned later);
  Status write(Block* block, unsigned stream);
  Status check(const Block& block, unsigned stream);

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }
  Bytes random_size();
  Nanoseconds random_delay();
  unsigned random_stream() { return static_cast<unsigned>(below(environment_.streams.size())); }
  Stream stream(unsigned index) const { return environment_.streams[index]; }
  Block take_random();

  const Environment environment_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  Bytes live_;
  Tally tally_;
};

}  // namespace weir::stress
