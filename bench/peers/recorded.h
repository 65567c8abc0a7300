// SPDX-License-Identifier: Apache-2.0
// A loop over a recorded program (docs/recording.md): the host time of its allocations and frees,
// in their order and on its streams, without the program's work between them; or with work that
// leaves little of the allocator's memory in the caches, as a program's own does.
#pragma once

#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/gpu.h"
#include "bench/peers/peer.h"
#include "bench/peers/sample.h"
#include "replay/trace.h"

namespace weir::peers {

enum class Caches { hot, cold };

// "trace.gpt2_train", or "cold.gpt2_train", of ".../gpt2_train.trace.gz".
inline std::string loop_of(const Trace& trace, Caches caches) {
  const std::string file = std::filesystem::path(trace.name).filename();
  return (caches == Caches::hot ? "trace." : "cold.") + file.substr(0, file.find('.'));
}

// Writes to 512 KiB of 64 MiB, the next ones each time.
class OtherWork {
 public:
  void run() {
    for (std::size_t i = 0; i < kStretch; i += kLine) ++memory_[at_ + i];
    at_ = (at_ + kStretch) % memory_.size();
  }

 private:
  static constexpr std::size_t kLine = 64, kStretch = std::size_t{512} << 10;
  std::vector<unsigned char> memory_ = std::vector<unsigned char>(std::size_t{64} << 20);
  std::size_t at_ = 0;
};

// The program's blocks, one allocator's. Those that it never freed go with it.
template <Peer P>
class Blocks {
 public:
  // A stream of the trace beyond the last that there is shares one with another.
  Blocks(P& peer, const Gpu& gpu, const Trace& trace)
      : peer_(peer), trace_(trace), pointers_(trace.blocks.size(), nullptr) {
    for (std::size_t i = 0; i < trace.streams.size(); ++i) {
      streams_.push_back(peer.stream_ref(gpu.stream(i % Gpu::kStreams)));
    }
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  ~Blocks() {
    for (std::size_t i = 0; i < pointers_.size(); ++i) {
      if (pointers_[i] != nullptr) peer_.free(pointers_[i], streams_[trace_.blocks[i].stream]);
    }
  }

  void run(const TraceOp& op) {
    switch (op.kind) {
      case TraceOp::Kind::allocate:
        pointers_[op.target] =
            peer_.allocate(trace_.blocks[op.target].bytes.count, streams_[op.stream]);
        return;
      case TraceOp::Kind::free:
        peer_.free(std::exchange(pointers_[op.target], nullptr),
                   streams_[trace_.blocks[op.target].stream]);
        return;
      case TraceOp::Kind::fence:
        if constexpr (P::kFences) {
          peer_.fence(pointers_[op.target], streams_[trace_.blocks[op.target].stream],
                      streams_[op.stream]);
        }
        return;
      case TraceOp::Kind::wait:  // the recorded allocator's own
      case TraceOp::Kind::marker:
        return;
    }
  }

 private:
  P& peer_;
  const Trace& trace_;
  std::vector<typename P::StreamRef> streams_;  // by stream of the trace
  std::vector<void*> pointers_;                 // by block; null: not live
};

// Once, from nothing: what is taken from the driver on the way is in it.
template <Peer P>
MixSample recorded(P& peer, const Gpu& gpu, const Trace& trace, Caches caches) {
  constexpr std::size_t kBatch = 100;            // allocations and frees
  constexpr std::size_t kMostBatchesCold = 500;  // the other work takes ten times as long
  Blocks<P> blocks(peer, gpu, trace);
  OtherWork other;
  std::vector<double> batches;
  for (std::size_t next = 0; next < trace.ops.size();) {
    if (caches == Caches::cold && batches.size() == kMostBatchesCold) break;
    std::size_t calls = 0;
    Clock::duration not_timed{};
    const Clock::time_point start = Clock::now();
    for (; next < trace.ops.size() && calls < kBatch; ++next) {
      const TraceOp& op = trace.ops[next];
      if (caches == Caches::cold) {
        const Clock::time_point left = Clock::now();
        other.run();
        not_timed += Clock::now() - left;
      }
      blocks.run(op);
      calls += op.kind == TraceOp::Kind::allocate || op.kind == TraceOp::Kind::free;
    }
    const Clock::duration took = Clock::now() - start - not_timed;
    if (calls == kBatch) batches.push_back(nanoseconds(took) * 2 / kBatch);
    gpu.synchronize();
  }
  MixSample result;
  if (batches.empty()) {
    throw std::runtime_error("the trace is too short: 100 allocations and frees at least");
  }
  result.sample = summary(std::move(batches), kBatch / 2);
  result.peak_live_bytes = trace.peak_live.count;
  result.reserved = peer.reserved();
  return result;
}

}  // namespace weir::peers
