// SPDX-License-Identifier: Apache-2.0
// The loops: each is one template, so that every allocator runs the same code.
//
// A pair is one allocate and one free. Each loop begins with an allocator that has nothing, and
// leaves nothing allocated, unless it throws.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <latch>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bench/peers/gpu.h"
#include "bench/peers/peer.h"
#include "bench/peers/sample.h"
#include "bench/support/mix.h"

namespace weir::peers {

// Keeps the compiler from dropping an allocation whose block is not used.
inline void keep(void* block) { asm volatile("" : : "r"(block) : "memory"); }

template <Peer P>
void pairs(P& peer, typename P::StreamRef& stream, std::size_t bytes, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    void* const block = peer.allocate(bytes, stream);
    keep(block);
    peer.free(block, stream);
  }
}

// The same size again and again, on one stream.
template <Peer P>
Sample hot(P& peer, const Gpu& gpu, std::size_t bytes, Clock::duration length) {
  constexpr std::uint64_t kBatch = 1000;
  auto stream = peer.stream_ref(gpu.stream(0));
  const auto batch = [&] { return pairs(peer, stream, bytes, kBatch), true; };
  timed(length / 4, kBatch, batch, [] {});  // warms up
  return timed(length, kBatch, batch, [] {});
}

// The most bytes that are live at once, as asked for, up to that many replacements.
inline std::uint64_t peak_live_bytes(const bench::Mix& mix, std::size_t replacements) {
  std::vector<Bytes> sizes = mix.first;
  std::uint64_t live = 0;
  for (const Bytes bytes : sizes) live += bytes.count;
  std::uint64_t peak = live;
  for (const bench::Replacement& one : std::span(mix.replacements).first(replacements)) {
    live = live - sizes[one.index].count + one.bytes;
    sizes[one.index] = Bytes{one.bytes};
    peak = std::max(peak, live);
  }
  return peak;
}

struct MixSample {
  Sample sample;
  std::uint64_t peak_live_bytes = 0;  // how many it runs depends on the speed; the peak, hardly
  Reserved reserved;                  // at the end
};

// The blocks of `mix`; random ones are replaced. The warm-up replaces each some hundred times,
// unless that takes more than ten times `length`. No part of the sequence comes twice: the loop
// ends early where `mix` does.
template <Peer P>
MixSample random_mix(P& peer, const Gpu& gpu, const bench::Mix& mix, Clock::duration length) {
  constexpr std::uint64_t kBatch = 500;
  constexpr std::uint64_t kWarmBatches = 400;
  auto stream = peer.stream_ref(gpu.stream(0));
  std::vector<void*> blocks;
  for (const Bytes bytes : mix.first) blocks.push_back(peer.allocate(bytes.count, stream));
  const std::span<const bench::Replacement> replacements(mix.replacements);
  std::size_t next = 0;
  const auto batch = [&] {
    if (replacements.size() - next < kBatch) return false;
    for (const bench::Replacement& one : replacements.subspan(next, kBatch)) {
      peer.free(blocks[one.index], stream);
      blocks[one.index] = peer.allocate(one.bytes, stream);
    }
    next += kBatch;
    return true;
  };
  const Clock::time_point warm = Clock::now() + 10 * length;
  for (std::uint64_t i = 0; i < kWarmBatches && Clock::now() < warm; ++i) batch();
  MixSample result;
  result.sample = timed(length, kBatch, batch, [] {});
  result.peak_live_bytes = peak_live_bytes(mix, next);
  result.reserved = peer.reserved();
  for (void* const block : blocks) peer.free(block, stream);
  return result;
}

// Allocate, fence by another stream, free: the next allocation must wait for that stream, or use
// other memory. The GPU is let catch up between batches, so that full queues are not measured.
template <Peer P>
Sample fenced(P& peer, const Gpu& gpu, std::size_t bytes, Clock::duration length) {
  constexpr std::uint64_t kBatch = 250;
  auto stream = peer.stream_ref(gpu.stream(0));
  auto user = peer.stream_ref(gpu.stream(Gpu::kUser));
  const auto batch = [&] {
    for (std::uint64_t i = 0; i < kBatch; ++i) {
      void* const block = peer.allocate(bytes, stream);
      keep(block);
      peer.fence(block, stream, user);
      peer.free(block, stream);
    }
    return true;
  };
  const auto catch_up = [&] { gpu.synchronize(); };
  timed(length / 4, kBatch, batch, catch_up);  // warms up
  return timed(length, kBatch, batch, catch_up);
}

// Throws unless fence() does what it is measured for: while work on the user's stream is held back,
// the block's memory is not given out, or the stream that gets it waits.
template <Peer P>
void check_fence(P& peer, const Gpu& gpu, std::size_t bytes) {
  constexpr std::size_t kTries = 32;
  void* const owner = gpu.stream(0);
  void* const other = gpu.stream(Gpu::kUser);
  auto stream = peer.stream_ref(owner);
  auto user = peer.stream_ref(other);
  void* const first = peer.allocate(bytes, stream);
  gpu.synchronize();
  const std::unique_ptr<Gpu::Hold> hold = gpu.hold(other);
  if (hold == nullptr) return peer.free(first, stream);  // no GPU, nothing to hold

  peer.fence(first, stream, user);
  peer.free(first, stream);
  std::vector<void*> later;
  while (later.size() < kTries && (later.empty() || later.back() != first)) {
    later.push_back(peer.allocate(bytes, stream));
  }
  const bool waits = !gpu.idle(owner);
  const bool held = hold->release();
  gpu.synchronize();
  const bool reused = later.back() == first;
  for (void* const block : later) peer.free(block, stream);
  if (!held) throw std::runtime_error("the fence can't be checked: a call took seconds");
  if (reused && !waits) throw std::runtime_error("a fence was not kept");
}

// One thread of a crowd: waits for the others, and then goes on until told to stop.
template <Peer P>
class Worker {
 public:
  Worker(P& peer, const Gpu& gpu, typename P::StreamRef stream, std::size_t bytes)
      : peer_(peer), gpu_(gpu), stream_(stream), bytes_(bytes) {}

  void run(std::latch& start, const std::atomic<bool>& stop) {
    attempt([&] {
      gpu_.enter_thread();
      pairs(peer_, stream_, bytes_, 500);  // warms up
    });
    start.arrive_and_wait();
    if (error_ != nullptr) return;
    attempt([&] { count_until(stop); });
  }

  std::exception_ptr error() const { return error_; }
  std::uint64_t count() const { return pairs_; }
  double elapsed_ns() const { return elapsed_ns_; }

 private:
  template <class Function>
  void attempt(Function function) {
    try {
      function();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void count_until(const std::atomic<bool>& stop) {
    constexpr std::uint64_t kStep = 20;
    const Clock::time_point start = Clock::now();
    do {
      pairs(peer_, stream_, bytes_, kStep);
      pairs_ += kStep;
    } while (!stop.load(std::memory_order_relaxed));
    elapsed_ns_ = nanoseconds(Clock::now() - start);
  }

  P& peer_;
  const Gpu& gpu_;
  typename P::StreamRef stream_;
  const std::size_t bytes_;
  std::uint64_t pairs_ = 0;
  double elapsed_ns_ = 0;
  std::exception_ptr error_;
};

template <Peer P>
Sample crowd_summary(const std::vector<Worker<P>>& workers) {
  Sample sample;
  std::vector<double> means;
  double elapsed = 0;
  for (const Worker<P>& worker : workers) {
    if (worker.error() != nullptr) std::rethrow_exception(worker.error());
    means.push_back(worker.elapsed_ns() / static_cast<double>(worker.count()));
    sample.pairs += worker.count();
    elapsed += worker.elapsed_ns();
  }
  std::sort(means.begin(), means.end());
  sample.mean = elapsed / static_cast<double>(sample.pairs);
  sample.median = means[means.size() / 2];
  sample.low = means.front();
  sample.high = means.back();
  return sample;
}

// Hot pairs in several threads at once: each on a stream of its own, or all on one.
template <Peer P>
Sample crowd(P& peer, const Gpu& gpu, unsigned threads, bool own_streams, std::size_t bytes,
             Clock::duration length) {
  std::vector<Worker<P>> workers;
  workers.reserve(threads);
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back(peer, gpu, peer.stream_ref(gpu.stream(own_streams ? i : 0)), bytes);
  }
  std::latch start(threads + 1);
  std::atomic<bool> stop = false;
  {
    std::vector<std::jthread> running;
    for (Worker<P>& worker : workers) {
      running.emplace_back([&worker, &start, &stop] { worker.run(start, stop); });
    }
    start.arrive_and_wait();
    std::this_thread::sleep_for(length);
    stop = true;
  }  // joins
  return crowd_summary(workers);
}

}  // namespace weir::peers
