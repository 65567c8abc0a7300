// SPDX-License-Identifier: Apache-2.0
// Runs a history over an allocator, and times each of its calls by the host's clock.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "bench/support/together.h"
#include "suite/call_timer.h"
#include "suite/irregular_families.h"

namespace weir::bench {

// An allocator that a history is run on. All but settle() are called from the history's threads;
// what they throw, run_history() throws. Streams are numbered from 0 to Family::all_streams() - 1.
template <class T>
concept HistoryTarget = requires(T target, void* block, const Call& call) {
  {target.enter_thread()};  // once in each thread that calls the others, before it does
  { target.allocate(call) } -> std::same_as<void*>;
  {target.use(block, call)};
  {target.free(block, call)};
  {target.settle()};  // between phases, and not timed: the host waits for the device
};

struct PhaseTimes {
  // Of wall time, as one thread sees it, fences included: with several threads, the time from the
  // first one's start to the last one's end, over the pairs that each made. The cost of reading the
  // clock is taken off.
  double ns_per_pair = 0;
  CallTimes calls;  // of all threads
};

struct HistoryTimes {
  std::vector<PhaseTimes> phases;  // the measured ones

  double first_ns() const { return phases.front().ns_per_pair; }
  double last_ns() const { return phases.back().ns_per_pair; }
  double later_ns() const;        // median of all phases but the first
  CallTimes later_calls() const;  // of the same
};

namespace internal {

PhaseTimes phase_times(double seconds, const History::Calls& calls,
                       std::span<const CallTimer> timers);

template <HistoryTarget Target>
void run_calls(Target& target, std::span<const Call> calls, std::vector<void*>& blocks,
               CallTimer& timer) {
  timer.start();
  for (const Call& call : calls) {
    void*& block = blocks[call.slot];
    switch (call.kind) {
      case Call::Kind::allocate:
        block = target.allocate(call);
        break;
      case Call::Kind::use:
        target.use(block, call);
        break;
      case Call::Kind::free:
        target.free(block, call);
        break;
    }
    timer.called();
  }
}

template <HistoryTarget Target>
PhaseTimes run_phase(Target& target, const History::Calls& calls, std::vector<void*>& blocks) {
  std::vector<CallTimer> timers(calls.size());
  std::vector<std::exception_ptr> errors(calls.size());
  const auto attempt = [&](int thread, const auto& work) {
    const auto at = static_cast<std::size_t>(thread);
    if (errors[at] != nullptr) return;
    try {
      work(at);
    } catch (...) {
      errors[at] = std::current_exception();
    }
  };
  const double seconds = seconds_together(
      static_cast<int>(calls.size()),
      [&](int thread) { attempt(thread, [&](std::size_t) { target.enter_thread(); }); },
      [&](int thread) {
        attempt(thread, [&](std::size_t at) { run_calls(target, calls[at], blocks, timers[at]); });
      });
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  return phase_times(seconds, calls, timers);
}

}  // namespace internal

// Runs all phases of `history`, which must be a new one, each in new threads, and then frees what
// is live. `after_phase(n)` is called after each phase, from 0, those that are not measured
// included.
template <HistoryTarget Target, std::invocable<unsigned> AfterPhase>
HistoryTimes run_history(Target& target, History& history, AfterPhase after_phase) {
  HistoryTimes times;
  std::vector<void*> blocks(history.slots(), nullptr);
  for (unsigned phase = 0; phase < history.phases(); ++phase) {
    const PhaseTimes one = internal::run_phase(target, history.next(), blocks);
    if (phase >= history.first_measured()) times.phases.push_back(one);
    target.settle();
    after_phase(phase);
  }
  internal::run_phase(target, history.frees(), blocks);
  target.settle();
  return times;
}

}  // namespace weir::bench
