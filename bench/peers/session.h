// SPDX-License-Identifier: Apache-2.0
// Runs the loops over one allocator, and prints a line of JSON for each.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/irregular.h"
#include "bench/peers/loops.h"
#include "bench/peers/recorded.h"
#include "weir/device_heap.h"

namespace weir::peers {

struct Options {
  bool gpu = true;
  std::vector<std::string> peers;  // empty: every one
  std::vector<std::string> loops;  // beginnings of names; empty: every one
  std::vector<unsigned> threads = {1, 2, 4, 8, 16};
  std::string torch_backend;     // a library; empty: PyTorch's own allocator
  double seconds = 0.2;          // each loop, once it is warm
  std::vector<Trace> traces;     // recorded programs: two loops for each
  bench::HistoryLength history;  // of programs that never repeat
  std::uint64_t seed = bench::kIrregularSeed;
};

// A line of JSON on stdout: {"peer", "loop", "mean", "median", "low", "high", "pairs"}; for the mix
// and for traces also "peak_live_bytes" and, where it is known, "reserved_bytes".
void print_result(const std::string& peer, const std::string& loop, const Sample& sample);
void print_held(const std::string& peer, const std::string& loop, const MixSample& sample);
// Of programs that never repeat, whose batches are the phases after the first: the same, "title",
// "first_ns" and "last_ns" a pair in the first phase and the last, "over_10us" (share of calls that
// took longer) and "slowest_us" in the phases after the first, "first_slowest_us", and "preempted"
// calls, which neither counts.
void print_history(const std::string& peer, const bench::Family& family,
                   const HistorySample& sample);
// {"peer", "loop", "error"}.
void print_error(const std::string& peer, const std::string& loop, const std::string& message);

class Session {
 public:
  Session(const Options& options, const Gpu& gpu) : options_(options), gpu_(gpu) {}

  // `make(policy)` makes the allocator, with nothing in it: once for each loop, so that the order
  // of the loops makes no difference. What fails is printed, and the rest goes on.
  template <class Make>
  void run(const std::string& name, Make make) {
    run_hot(name, make);
    attempt(name, "mix", make,
            [&](auto& peer) { print_held(name, "mix", random_mix(peer, gpu_, mix(), length())); });
    for (const Trace& trace : options_.traces) {
      for (const Caches caches : {Caches::hot, Caches::cold}) {
        const std::string loop = loop_of(trace, caches);
        attempt(name, loop, make,
                [&](auto& peer) { print_held(name, loop, recorded(peer, gpu_, trace, caches)); });
      }
    }
    run_irregular(name, make);
    for (const bool own : {true, false}) {
      for (const unsigned threads : options_.threads) run_crowd(name, make, threads, own);
    }
    using P = decltype(make(ReusePolicy::wait));
    if constexpr (P::kFences && !requires { P::kOtherStreams; }) {
      run_fenced(name, "fenced.512B", 512, ReusePolicy::wait, make);
      run_fenced(name, "fenced.1MiB", 1 << 20, ReusePolicy::wait, make);
    }
  }

  // Checks that a fence is kept, and measures. `policy` is for Weir alone.
  template <class Make>
  void run_fenced(const std::string& name, const std::string& loop, std::size_t bytes,
                  ReusePolicy policy, Make make) {
    const auto same = [&](ReusePolicy) { return make(policy); };
    bool kept = false;
    attempt(name, loop, same, [&](auto& peer) {
      check_fence(peer, gpu_, bytes);
      kept = true;
    });
    if (!kept) return;
    attempt(name, loop, same,
            [&](auto& peer) { print_result(name, loop, fenced(peer, gpu_, bytes, length())); });
  }

  bool failed() const { return failed_; }

 private:
  // Waits at its end: an allocator that goes waits for no work, whatever ended the loop.
  struct Settle {
    const Gpu& gpu;
    ~Settle();
  };

  template <class Make>
  void run_hot(const std::string& name, Make make) {
    const std::pair<const char*, std::size_t> sizes[] = {
        {"hot.512B", 512}, {"hot.1MiB", 1 << 20}, {"hot.32MiB", 32 << 20}};
    for (const auto& [loop, bytes] : sizes) {
      attempt(name, loop, make, [&, loop = loop, bytes = bytes](auto& peer) {
        print_result(name, loop, hot(peer, gpu_, bytes, length()));
      });
    }
  }

  template <class Make>
  void run_crowd(const std::string& name, Make make, unsigned threads, bool own) {
    const std::string loop = (own ? "own." : "shared.") + std::to_string(threads);
    attempt(name, loop, make, [&](auto& peer) {
      print_result(name, loop, crowd(peer, gpu_, threads, own, std::size_t{1} << 20, length()));
    });
  }

  template <class Make>
  void run_irregular(const std::string& name, Make make) {
    using P = decltype(make(ReusePolicy::wait));
    for (const bench::Family& family : bench::families()) {
      if (!P::kFences && needs_fences(family)) continue;
      attempt(name, loop_of(family), make, [&](auto& peer) {
        print_history(name, family, irregular(peer, gpu_, family, options_.seed, options_.history));
      });
    }
  }

  // Weir's default policy, but in the fenced loops.
  template <class Make, class Body>
  void attempt(const std::string& name, const std::string& loop, Make make, Body body) {
    if (!wanted(loop)) return;
    try {
      gpu_.synchronize();
      auto peer = make(ReusePolicy::balanced);
      const Settle settle{gpu_};
      body(peer);
    } catch (const std::exception& error) {
      print_error(name, loop, error.what());
      failed_ = true;
    }
  }

  bool wanted(const std::string& loop) const;
  Clock::duration length() const;
  const bench::Mix& mix();

  const Options& options_;
  const Gpu& gpu_;
  bench::Mix mix_;  // made when it is first wanted
  bool failed_ = false;
};

}  // namespace weir::peers
