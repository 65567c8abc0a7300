// SPDX-License-Identifier: Apache-2.0
// The loops over programs that never repeat (bench/irregular): from an allocator that holds nothing
// through a long history, on several streams and threads.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "bench/irregular/timed_history.h"
#include "bench/peers/gpu.h"
#include "bench/peers/peer.h"
#include "bench/peers/sample.h"
#include "suite/irregular_families.h"

namespace weir::peers {

// "irregular.256K-32M".
inline std::string loop_of(const bench::Family& family) {
  return std::string("irregular.") + family.name;
}

// Blocks of the family are used by streams other than their own, so an allocator without fences
// would run another program.
inline bool needs_fences(const bench::Family& family) {
  return family.used_elsewhere > 0 || family.turn != 0_B;
}

struct HistorySample {
  bench::HistoryTimes times;
  std::uint64_t later_pairs = 0;      // in the phases after the first
  std::uint64_t peak_live_bytes = 0;  // as asked for
  Reserved reserved;                  // the most that was held at the end of a phase
  DriverSplit driver;                 // in the phases after the first
};

// An allocator and a GPU's streams, as bench::run_history() calls them.
template <Peer P>
class HistoryPeer {
 public:
  HistoryPeer(P& peer, const Gpu& gpu, unsigned streams) : peer_(peer), gpu_(gpu) {
    for (unsigned i = 0; i < streams; ++i) streams_.push_back(peer.stream_ref(gpu.stream(i)));
  }

  void enter_thread() { gpu_.enter_thread(); }
  void* allocate(const bench::Call& call) {
    return peer_.allocate(call.bytes, streams_[call.stream]);
  }
  void use(void* block, const bench::Call& call) {
    peer_.fence(block, streams_[call.stream], streams_[call.user]);
  }
  void free(void* block, const bench::Call& call) { peer_.free(block, streams_[call.stream]); }
  void settle() { gpu_.synchronize(); }

 private:
  P& peer_;
  const Gpu& gpu_;
  std::vector<typename P::StreamRef> streams_;  // by number of the stream
};

template <Peer P>
HistorySample irregular(P& peer, const Gpu& gpu, const bench::Family& family, std::uint64_t seed,
                        bench::HistoryLength length) {
  bench::History history(family, seed, length);
  HistoryPeer<P> target(peer, gpu, family.all_streams());
  HistorySample result;
  DriverSplit after_first;
  result.times = bench::run_history(target, history, [&](unsigned phase) {
    if (phase > history.first_measured()) {
      result.later_pairs += static_cast<std::uint64_t>(bench::pairs_of(history.calls()));
    } else {
      after_first = driver_split_of(peer);
    }
    if (const Reserved now = peer.reserved()) {
      result.reserved = std::max(result.reserved.value_or(0), *now);
    }
  });
  result.driver = since(after_first, driver_split_of(peer));
  result.peak_live_bytes = history.peak_live().count;
  return result;
}

// The phases after the first, a phase as a batch.
inline Sample sample_of(const HistorySample& history) {
  std::vector<double> later;
  for (const bench::PhaseTimes& phase : std::span(history.times.phases).subspan(1)) {
    later.push_back(phase.ns_per_pair);
  }
  const std::size_t phases = later.size();
  return summary(std::move(later), history.later_pairs / phases);
}

}  // namespace weir::peers
