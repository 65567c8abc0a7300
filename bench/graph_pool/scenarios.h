// SPDX-License-Identifier: Apache-2.0
// The benchmark's parts. Each returns its rows, and prints nothing; throws std::runtime_error.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/graph_pool/gpu.h"
#include "bench/graph_pool/step.h"

namespace weir::graph_pool {

using Row = nlohmann::ordered_json;  // an object: {"part": name, figure: value, ...}

struct Options {
  StepShape step;
  std::string warm_up = "all";  // none, capture, current
  std::string mode = "global";  // thread_local, relaxed, all
  std::uint64_t replays = 1000;
  std::uint64_t seed = 1;
};

// A step captured after each kind of warm-up, and launched again and again while another thread
// uses eager memory of the same heap.
// {"warm_up", "mode", "side_streams", "peak_bytes", "reserved_bytes", "ratio", "replays",
//  "mismatches", "eager_blocks", "eager_wrong_bytes"}
std::vector<Row> scenario_b(Gpu& gpu, const Options& options);

// 13 batch sizes captured into one pool, their outputs kept; and a stream that reads on the side.
// {"order" (of serve), "peak_bytes", "reserved_bytes", "ratio", "mismatches"}
std::vector<Row> serve(Gpu& gpu);
std::vector<Row> two_stream(Gpu& gpu);

// Time of a capture: allocations and small kernels over four streams, against the same kernels in
// memory handed out before. {"allocations", "weir_ms", "fixed_ms", "ratio"} (capture alone) and
// {"weir_whole_ms", "fixed_whole_ms", "whole_ratio"} (with the graph made launchable)
std::vector<Row> capture_cost(Gpu& gpu);

// Time of a launch of the captured step, against the same step in a cudaMalloc for each block.
// {"weir_ms", "fixed_ms", "ratio", "launches"}
std::vector<Row> replay_speed(Gpu& gpu, const Options& options);

inline double ratio_of(Bytes a, Bytes b) {
  return static_cast<double>(a.count) / static_cast<double>(b.count);
}

}  // namespace weir::graph_pool
