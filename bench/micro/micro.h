// SPDX-License-Identifier: Apache-2.0
// What the families of benchmarks share: how they are added, the two ways in, and the last check.
//
// A benchmark is named FAMILY/DEVICE/INTERFACE/CASE, as in hot_pair/null/heap/1MiB. Its time is
// that of one pair (an allocation and a deallocation) in nanoseconds; for several threads, of one
// pair of one thread: the wall time from the first thread's start to the last one's end, over the
// pairs that each made.
//
// Nothing here needs benchmark::DoNotOptimize: the calls are into a library, and change its state.
// (Google Benchmark 1.7's, with GCC 12 at -O1, passed on a pointer that was never stored.)
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <string>

#include "bench/micro/target.h"
#include "suite/irregular_families.h"
#include "weir/allocator.h"
#include "weir/device_heap.h"

namespace weir::bench {

// One device, and how much is run on it.
struct Context {
  const char* name;  // of the device, in the benchmarks' names
  Target* target;
  bool quick = false;                   // few rounds: to see that all works, not for the figures
  HistoryLength history = {};           // of irregular programs
  std::uint64_t seed = kIrregularSeed;  // of the same

  std::size_t warm_up(std::size_t rounds) const { return quick ? rounds / 100 : rounds; }
};

void add_hot_pair(const Context& context);
void add_random_mix(const Context& context);
void add_threads(const Context& context);
void add_handoff(const Context& context);
void add_fenced(const Context& context);
void add_find(const Context& context);
void add_batches(const Context& context);
void add_recorded(const Context& context);
void add_irregular(const Context& context);
// Of a device that captures.
void add_captured(const Context& context);

using Body = std::function<void(benchmark::State&)>;
void add(const Context& context, const std::string& name, Body body);
// For a body with threads of its own, which sets the time.
void add_timed_by_itself(const Context& context, const std::string& name, Body body);
// For a body that takes long, with a time of its own: it runs so many rounds.
void add_rounds(const Context& context, const std::string& name, int rounds, Body body);

// "512B", "1MiB".
std::string name_of(Bytes bytes);

// Makes the benchmark an error, and the program's exit status 1.
void fail(benchmark::State& state, const std::string& why);
bool any_failed();

// Every benchmark ends with this: nothing is live, and every invariant holds.
void expect_sound(benchmark::State& state, const DeviceHeap& heap);

// Ends the program: a run in which a call failed has no figures.
[[noreturn]] void stop(const Error& error);

// The core, for a caller who has the Stream.
class HeapInterface {
 public:
  static constexpr const char* kName = "heap";
  using Queue = Stream;
  static Queue queue(Target& target, int number) { return target.stream(number); }

  explicit HeapInterface(Target& target, HeapOptions options = {})
      : heap_(target.device(), options) {}

  void* allocate(Bytes bytes, Stream stream) {
    Result<void*> block = heap_.allocate(bytes, stream);
    if (!block.ok()) [[unlikely]]
      stop(block.error());
    return *block;
  }
  void deallocate(void* block) { check(heap_.deallocate(block)); }
  void fence(void* block, Stream user) { check(heap_.fence(block, user)); }
  DeviceHeap& heap() { return heap_; }

 private:
  static void check(const Status& status) {
    if (!status.ok()) [[unlikely]]
      stop(status.error());
  }

  DeviceHeap heap_;
};

// The public allocator, for a caller who has the stream's handle. (Its exceptions end the program.)
class AllocatorInterface {
 public:
  static constexpr const char* kName = "allocator";
  using Queue = void*;
  static Queue queue(Target& target, int number) { return target.stream_handle(number); }

  explicit AllocatorInterface(Target& target) : allocator_(target.device()) {}

  void* allocate(Bytes bytes, void* stream) { return allocator_.allocate(bytes, stream); }
  void deallocate(void* block) { allocator_.deallocate(block); }
  DeviceHeap& heap() { return allocator_.heap(); }

 private:
  Allocator allocator_;
};

}  // namespace weir::bench
