// SPDX-License-Identifier: Apache-2.0
// What a call costs on the null device with more and more of what the call does not touch: streams,
// graph pools, fenced small blocks, holes in the addresses. And the host memory that a block takes.
//
// usage: weir_scaling [--quick] [PART...]
//
// PART: streams, pools, fenced, holes, memory; none: all. --quick: short programs, few numbers and
// one round, to see that all works.
//
// Prints a table. A time is of the thread's CPU time, in microseconds. A program runs in three
// rounds, each on a new heap; its calls are the same in each, so the time of a call is the least of
// its three. "times the first" compares a row with the first one of its kind.
//
// Exit: 0; 1 if a call failed; 2 for wrong arguments.
#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/support/mix.h"
#include "suite/null_device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#ifdef WEIR_HAVE_MALLINFO2
#include "bench/records/host_memory.h"
#endif

namespace weir::bench {
namespace {

constexpr int kRounds = 3;
constexpr std::size_t kPairs = 10'000;  // measured, after as many to warm up
constexpr std::size_t kLive = 4'000;    // blocks of an irregular program
constexpr std::size_t kPoolLive = 256;  // the same, of the programs beside pools and in one
constexpr std::size_t kMisses = 200;    // measured with so many holes
constexpr std::size_t kMixBlocks = 200'000;

bool quick = false;

[[noreturn]] void stop(const Error& error) {
  std::fprintf(stderr, "weir_scaling: %s\n", error.message().c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status.ok()) [[unlikely]]
    stop(status.error());
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) [[unlikely]]
    stop(result.error());
  return *std::move(result);
}

double thread_us() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// What two readings of the clock find where nothing was done between them.
double clock_us() {
  double least = 1e6;
  for (int i = 0; i < 10'000; ++i) {
    const double before = thread_us();
    least = std::min(least, thread_us() - before);
  }
  return least;
}

// The time of each call of a program: the least of all rounds.
class CallCosts {
 public:
  void begin_round() { next_ = 0; }

  template <class Call>
  auto time(Call&& call) {
    const double before = thread_us();
    auto result = call();
    const double took = std::max(0.0, thread_us() - before - clock_us_);
    if (next_ == us_.size()) us_.push_back(took);
    us_[next_] = std::min(us_[next_], took);
    ++next_;
    return result;
  }

  double sum() const {
    double all = 0;
    for (const double each : us_) all += each;
    return all;
  }
  double slowest() const { return *std::max_element(us_.begin(), us_.end()); }
  std::size_t calls() const { return us_.size(); }

 private:
  const double clock_us_ = clock_us();
  std::vector<double> us_;
  std::size_t next_ = 0;
};

// Rows of one kind: the same program with more and more of something.
void print_rows(const std::string& what, std::span<const std::size_t> numbers,
                std::size_t calls_a_unit,
                const std::function<void(CallCosts&, std::size_t)>& program) {
  double first = 0;
  for (const std::size_t n : quick ? numbers.first(2) : numbers) {
    CallCosts costs;
    for (int round = 0; round < (quick ? 1 : kRounds); ++round) {
      costs.begin_round();
      program(costs, n);
    }
    const double each =
        costs.sum() * static_cast<double>(calls_a_unit) / static_cast<double>(costs.calls());
    if (first == 0) first = each;
    std::printf("%-44s%8zu%12.2f%14.2f%14.1f\n", what.c_str(), n, each, each / first,
                costs.slowest());
    std::fflush(stdout);
  }
}

// Random, and the same in every run.
class Draw {
 public:
  std::size_t below(std::size_t n) { return random_() % n; }
  // From 2 to the power of `least` to 2 to the power of `most`, log-uniform, to the byte.
  Bytes size(double least, double most) {
    const double part = static_cast<double>(random_() >> 11) * 0x1p-53;
    return {static_cast<std::uint64_t>(std::exp2(least + (most - least) * part))};
  }

 private:
  std::mt19937_64 random_{kMixSeed};
};

std::vector<Stream> streams_of(NullDevice& device, std::size_t n) {
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < n; ++i) {
    streams.push_back(take(device.stream(NullDevice::stream_handle(static_cast<int>(i)))));
  }
  return streams;
}

using Allocate = std::function<Result<void*>(Bytes, Stream)>;

// Large blocks (280 KiB to 4 MiB), of which `live` live: frees one at random and allocates another,
// for each stream in turn.
void replace_large(CallCosts& costs, DeviceHeap& heap, const Allocate& allocate, std::size_t live,
                   std::span<const Stream> streams) {
  Draw draw;
  std::vector<void*> blocks;
  const auto size = [&] { return draw.size(18.1, 22); };
  for (std::size_t i = 0; i < live; ++i) {
    blocks.push_back(take(allocate(size(), streams[i % streams.size()])));
  }
  const std::size_t pairs = quick ? kPairs / 20 : kPairs;
  for (std::size_t i = 0; i < 2 * pairs; ++i) {
    void*& block = blocks[draw.below(live)];
    const Bytes bytes = size();
    const Stream stream = streams[i % streams.size()];
    if (i < pairs) {
      check(heap.deallocate(block));
      block = take(allocate(bytes, stream));
    } else {
      check(costs.time([&] { return heap.deallocate(block); }));
      block = take(costs.time([&] { return allocate(bytes, stream); }));
    }
  }
  for (void* const block : blocks) check(heap.deallocate(block));
}

Allocate from(DeviceHeap& heap) {
  return [&heap](Bytes bytes, Stream stream) { return heap.allocate(bytes, stream); };
}

void print_streams() {
  constexpr std::array<std::size_t, 5> kNumbers = {1, 10, 100, 300, 1'000};
  for (const Trust trust : {Trust::told, Trust::context}) {
    const char* const what =
        trust == Trust::told ? "streams: a pair, told" : "streams: a pair, context";
    print_rows(what, kNumbers, 2, [&](CallCosts& costs, std::size_t n) {
      NullDevice device;
      DeviceHeap heap(device, {.trust = trust});
      replace_large(costs, heap, from(heap), kLive, streams_of(device, n));
    });
  }
}

// Each holds memory: a block of 1 MiB is live in it.
std::vector<std::unique_ptr<GraphPool>> make_pools(DeviceHeap& heap, std::size_t n, Stream stream) {
  std::vector<std::unique_ptr<GraphPool>> pools;
  for (std::size_t i = 0; i < n; ++i) {
    pools.push_back(std::make_unique<GraphPool>(heap));
    take(pools.back()->allocate(1_MiB, stream));
  }
  return pools;
}

void print_pools() {
  constexpr std::array<std::size_t, 3> kNumbers = {1, 100, 1'000};
  const auto in = [](GraphPool& pool) -> Allocate {
    return [&pool](Bytes bytes, Stream stream) { return pool.allocate(bytes, stream); };
  };
  print_rows("pools: a pair in the device heap", kNumbers, 2, [&](CallCosts& costs, std::size_t n) {
    NullDevice device;
    DeviceHeap heap(device);
    const std::vector<Stream> streams = streams_of(device, 4);
    const auto pools = make_pools(heap, n, streams[0]);
    replace_large(costs, heap, from(heap), kPoolLive, streams);
  });
  print_rows("pools: a pair in one of them", kNumbers, 2, [&](CallCosts& costs, std::size_t n) {
    NullDevice device;
    DeviceHeap heap(device);
    const std::vector<Stream> streams = streams_of(device, 4);
    const auto pools = make_pools(heap, n, streams[0]);
    replace_large(costs, heap, in(*pools.front()), kPoolLive, streams);
  });
  print_rows("pools: a pair of 1 MiB in each in turn", kNumbers, 2,
             [&](CallCosts& costs, std::size_t n) {
               NullDevice device;
               DeviceHeap heap(device);
               const Stream stream = streams_of(device, 1)[0];
               const auto pools = make_pools(heap, n, stream);
               const std::size_t pairs = quick ? kPairs / 20 : kPairs;
               for (std::size_t i = 0; i < 2 * pairs; ++i) {
                 GraphPool& pool = *pools[i % n];
                 if (i < pairs) {
                   check(heap.deallocate(take(pool.allocate(1_MiB, stream))));
                   continue;
                 }
                 void* const block = take(costs.time([&] { return pool.allocate(1_MiB, stream); }));
                 check(costs.time([&] { return heap.deallocate(block); }));
               }
             });
}

// Small blocks of one stream, each used by another one; then all are freed.
void print_fenced() {
  constexpr std::array<std::size_t, 3> kNumbers = {500, 5'000, 20'000};
  print_rows("fenced small blocks: a free", kNumbers, 1, [](CallCosts& costs, std::size_t n) {
    NullDevice device;
    DeviceHeap heap(device);
    const std::vector<Stream> streams = streams_of(device, 2);
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < n; ++i) {
      blocks.push_back(take(heap.allocate(512_B, streams[0])));
      check(heap.fence(blocks.back(), streams[1]));
    }
    // At random: neighbours are most often fenced themselves, or live.
    Draw draw;
    for (std::size_t i = n; i > 1; --i) std::swap(blocks[i - 1], blocks[draw.below(i)]);
    for (void* const block : blocks) check(costs.time([&] { return heap.deallocate(block); }));
  });
}

// Every other one of many blocks was freed, and trim() gave its page back. A request needs new
// memory, and no hole has room for it, or each has.
void print_holes() {
  constexpr std::array<std::size_t, 3> kNumbers = {100, 1'000, 10'000};
  for (const bool fits : {false, true}) {
    const char* const what =
        fits ? "holes: a miss that fills one" : "holes: a miss that fits in none";
    print_rows(what, kNumbers, 1, [&](CallCosts& costs, std::size_t n) {
      NullDevice device;
      DeviceHeap heap(device);
      const Stream stream = streams_of(device, 1)[0];
      std::vector<void*> blocks;
      for (std::size_t i = 0; i < 2 * n; ++i) blocks.push_back(take(heap.allocate(2_MiB, stream)));
      for (std::size_t i = 0; i < n; ++i) check(heap.deallocate(blocks[2 * i]));
      if (take(heap.trim()) != 2_MiB * n) {
        stop(Error(ErrorCode::invalid_argument, "trim() made other holes than were meant"));
      }
      const Bytes bytes = fits ? 2_MiB : 6_MiB;
      for (std::size_t i = 0; i < std::min(kMisses, n / 2); ++i) {
        take(costs.time([&] { return heap.allocate(bytes, stream); }));
      }
    });
  }
}

#ifdef WEIR_HAVE_MALLINFO2
void print_memory() {
  const auto print = [](const char* what, const std::vector<Bytes>& sizes) {
    NullDevice device;
    DeviceHeap heap(device);
    const Stream stream = streams_of(device, 1)[0];
    for (const Bytes bytes : {512_B, 1_MiB}) {
      check(heap.deallocate(take(heap.allocate(bytes, stream))));
    }
    const HostMemory before = HostMemory::now();
    for (const Bytes bytes : sizes) take(heap.allocate(bytes, stream));
    const HostMemory added = HostMemory::now() - before;
    std::printf("%-44s%8zu%12.1f\n", what, sizes.size(),
                static_cast<double>(added.allocated) / static_cast<double>(sizes.size()));
  };
  std::printf("\n%-44s%8s%12s\n", "bytes of host memory from malloc", "of them", "each");
  const std::size_t blocks = quick ? kMixBlocks / 20 : kMixBlocks;
  print("live blocks of 512 B", std::vector<Bytes>(blocks, 512_B));
  print("live blocks of the random mix", make_mix(blocks, 0).first);
}
#else
void print_memory() { std::puts("\nhost memory: needs glibc 2.33"); }
#endif

struct Part {
  std::string_view name;
  void (*print)();
};
constexpr std::array kParts = {Part{"streams", print_streams}, Part{"pools", print_pools},
                               Part{"fenced", print_fenced}, Part{"holes", print_holes},
                               Part{"memory", print_memory}};

int run(std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    if (std::none_of(kParts.begin(), kParts.end(),
                     [&](const Part& part) { return part.name == name; })) {
      std::fprintf(stderr, "weir_scaling: no part is '%.*s'\n", static_cast<int>(name.size()),
                   name.data());
      return 2;
    }
  }
  std::printf("%-44s%8s%12s%14s%14s\n", "us of the thread's CPU time", "of them", "each",
              "times first", "slowest call");
  for (const Part& part : kParts) {
    if (names.empty() || std::find(names.begin(), names.end(), part.name) != names.end()) {
      part.print();
    }
  }
  return 0;
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) {
  std::vector<std::string_view> names(argv + 1, argv + argc);
  weir::bench::quick = std::erase(names, "--quick") > 0;
  return weir::bench::run(names);
}
