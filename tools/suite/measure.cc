// SPDX-License-Identifier: Apache-2.0
#include "suite/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "replay/units.h"
#include "suite/call_timer.h"

namespace weir::suite {
namespace {

using Kind = ProgramCall::Kind;

// What is live, as somebody who knows nothing of the allocator counts it.
class LiveBlocks {
 public:
  // Empty: the block is one that the program can use.
  std::string add(void* block, const ProgramCall& call) {
    const std::uint64_t begin = Address::of(block).value, end = begin + call.bytes;
    if (begin == 0) return "it gave out a null block";
    if (begin % kLeastAlignment.count != 0) {
      return fmt::format("it gave out a block that is not aligned to {} bytes",
                         kLeastAlignment.count);
    }
    const auto next = ends_.lower_bound(begin);
    if (next != ends_.end() && next->first < end) return overlap();
    if (next != ends_.begin() && std::prev(next)->second > begin) return overlap();
    ends_.emplace(begin, end);
    bytes_ += round_up(Bytes{call.bytes}, kLeastAlignment);
    return {};
  }
  void remove(void* block, const ProgramCall& call) {
    ends_.erase(Address::of(block).value);
    bytes_ -= round_up(Bytes{call.bytes}, kLeastAlignment);
  }
  Bytes bytes() const { return bytes_; }

 private:
  static std::string overlap() { return "it gave out memory that another live block has"; }

  std::map<std::uint64_t, std::uint64_t> ends_;  // by where a block begins
  Bytes bytes_;
};

// The call alone, for the clock.
Status make(SuiteAllocator& allocator, const ProgramCall& call, std::vector<void*>& blocks) {
  void*& block = blocks[call.block];
  switch (call.kind) {
    case Kind::allocate: {
      const Result<void*> made = allocator.allocate(call);
      if (made) block = *made;
      return made ? Status() : Status(made.error());
    }
    case Kind::use:
      return allocator.use(block, call);
    case Kind::free:
      return allocator.free(block, call);
    case Kind::trim:
      return allocator.trim();
  }
  return {};
}

// A program under way, with what is measured of memory.
class MemoryRun {
 public:
  MemoryRun(SuiteAllocator& allocator, const Program& program, Outcome& outcome)
      : allocator_(allocator), program_(program), outcome_(outcome), blocks_(program.blocks) {}

  void run() {
    for (std::size_t i = 0; i < program_.calls.size(); ++i) {
      allocator_.advance_to(program_.calls[i].time_us);
      std::string failure = make(program_.calls[i]);
      if (failure.empty()) failure = note(i);
      if (!failure.empty()) {
        outcome_.failure = fmt::format("call {}: {}", i + 1, failure);
        return;
      }
    }
    allocator_.advance_to(program_.end_us);
    if (const Status finished = allocator_.finish(); !finished) {
      outcome_.failure = finished.error().message();
      return;
    }
    const AllocatorFigures figures = allocator_.figures();
    outcome_.peak_held = std::max(outcome_.peak_held, figures.most_held);
    outcome_.driver_calls = figures.driver_calls;
    outcome_.waits = figures.waits;
    const auto peak = static_cast<double>(program_.needs.peak_live.count);
    outcome_.ratio = peak > 0 ? static_cast<double>(outcome_.peak_held) / peak : 1;
    outcome_.weighted_ratio = live_area_ > 0 ? held_area_ / live_area_ : 1;
  }

 private:
  std::string make(const ProgramCall& call) {
    if (call.kind == Kind::free) live_.remove(blocks_[call.block], call);
    if (const Status made = suite::make(allocator_, call, blocks_); !made) {
      return made.error().message();
    }
    return call.kind == Kind::allocate ? live_.add(blocks_[call.block], call) : "";
  }

  std::string note(std::size_t i) {
    const ProgramCall& call = program_.calls[i];
    if (call.kind == Kind::use) return {};
    const AllocatorFigures figures = allocator_.figures();
    if (figures.held < live_.bytes().count) {
      return fmt::format("it says that it holds {}, and {} is live", in_words(Bytes{figures.held}),
                         in_words(live_.bytes()));
    }
    outcome_.peak_held = std::max({outcome_.peak_held, figures.held, figures.most_held});
    const std::int64_t until =
        i + 1 < program_.calls.size() ? program_.calls[i + 1].time_us : program_.end_us;
    const auto length = static_cast<double>(std::max<std::int64_t>(until - call.time_us, 0));
    held_area_ += length * static_cast<double>(figures.held);
    live_area_ += length * static_cast<double>(program_.live[i]);
    return {};
  }

  SuiteAllocator& allocator_;
  const Program& program_;
  Outcome& outcome_;
  std::vector<void*> blocks_;  // by number
  LiveBlocks live_;
  double held_area_ = 0, live_area_ = 0;  // bytes times microseconds
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Outcome measure_memory(const AllocatorKind& kind, const Program& program) {
  Outcome outcome;
  outcome.allocator = kind.name;
  outcome.program = program.name;
  const Result<std::unique_ptr<SuiteAllocator>> allocator = kind.make(program, Purpose::memory);
  if (!allocator) {
    outcome.failure = allocator.error().message();
  } else {
    MemoryRun(**allocator, program, outcome).run();
  }
  return outcome;
}

Result<HostTime> measure_host_time(const AllocatorKind& kind, const Program& program) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kBatch = 100;  // allocations and frees
  const Result<std::unique_ptr<SuiteAllocator>> allocator = kind.make(program, Purpose::host_time);
  if (!allocator) return allocator.error();
  std::vector<void*> blocks(program.blocks);
  std::vector<double> batches;  // nanoseconds a pair
  bench::CallTimer timer;
  std::size_t in_batch = 0;
  const double clock_ns = bench::clock_cost_ns();
  timer.start();
  Clock::time_point begin = Clock::now();
  std::size_t calls_in_batch = 0;
  const auto end_batch = [&] {
    const Clock::time_point now = Clock::now();
    const double took = std::chrono::duration<double, std::nano>(now - begin).count() -
                        clock_ns * static_cast<double>(calls_in_batch);
    batches.push_back(std::max(took, 0.0) * 2 / static_cast<double>(in_batch));
    in_batch = calls_in_batch = 0;
    begin = now;
  };
  for (const ProgramCall& call : program.calls) {
    if (const Status made = make(**allocator, call, blocks); !made) return made.error();
    timer.called();
    ++calls_in_batch;
    in_batch += call.kind == Kind::allocate || call.kind == Kind::free;
    if (in_batch < kBatch) continue;
    end_batch();
  }
  if (batches.empty() && in_batch > 0) end_batch();  // a short program
  return HostTime{.median_ns_per_pair = median(std::move(batches)),
                  .slowest_call_us = timer.times().slowest_ns / 1000};
}

}  // namespace weir::suite
