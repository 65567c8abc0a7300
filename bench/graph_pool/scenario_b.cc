// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "bench/graph_pool/eager_thread.h"
#include "bench/graph_pool/fixed_memory.h"
#include "bench/graph_pool/gpu_queue.h"
#include "bench/graph_pool/scenarios.h"
#include "bench/peers/cuda_check.h"

namespace weir::graph_pool {
namespace {

constexpr std::uint64_t kQueuedLaunches = 16;  // before the host waits for them

struct Reference {
  Bytes peak;
  Word checksum = 0;
};

// The same step, eagerly, in memory where nothing can be in another's way.
Reference run_reference(Gpu& gpu, const StepShape& shape) {
  FixedMemory memory;
  Words sum(1);
  const StepStreams streams{gpu.new_stream(), gpu.new_streams(shape.side_streams)};
  void* const input = memory.allocate(shape.activation, streams.main);
  transform(handle_of(streams.main), input, shape.activation.count / sizeof(Word), 0);
  Reference reference;
  GpuQueue queue(gpu, sum.at(0));
  reference.peak = Step(queue, shape, input).run(streams, memory);
  reference.checksum = sum.read(0);
  return reference;
}

// Streams and eager memory of one run, and the step on them.
struct Run {
  Gpu& gpu;
  DeviceHeap heap;
  Stream capture, current;
  std::vector<Stream> sides;
  void* input = nullptr;
  void* sum = nullptr;
  std::optional<GpuQueue> queue;
  std::optional<Step> step;

  Run(Gpu& with, const StepShape& shape)
      : gpu(with),
        heap(gpu.device()),
        capture(gpu.new_stream()),
        current(gpu.new_stream()),
        sides(gpu.new_streams(shape.side_streams)) {
    input = need("allocate", heap.allocate(shape.activation, current));
    sum = need("allocate", heap.allocate(kGrain, current));
    transform(handle_of(current), input, shape.activation.count / sizeof(Word), 0);
    gpu.synchronize();
    queue.emplace(gpu, static_cast<Word*>(sum));
    step.emplace(*queue, shape, input);
  }
};

void warm_up(Run& run, GraphPool& pool, const std::string& kind) {
  if (kind == "none") return;
  const StepStreams streams{kind == "current" ? run.current : run.capture, run.sides};
  PoolBinding binding = need("warm_up", pool.warm_up([&streams](Stream asking) {
    bool ours = asking == streams.main;
    for (const Stream side : streams.sides) ours = ours || asking == side;
    return ours;
  }));
  HeapMemory memory(run.heap);
  run.step->run(streams, memory);
}

CaptureMode mode_of(const std::string& name) {
  if (name == "thread_local") return CaptureMode::thread_local_;
  return name == "relaxed" ? CaptureMode::relaxed : CaptureMode::global;
}

Graph capture(Run& run, GraphPool& pool, const std::string& mode) {
  CaptureScope scope =
      need("beginning the capture", CaptureScope::begin(pool, run.capture, mode_of(mode)));
  HeapMemory memory(run.heap);
  run.step->run({run.capture, run.sides}, memory);
  return need("ending the capture", scope.end());
}

// Launches beside eager work; the sums are compared on the device, each before the next launch.
void replay(Run& run, Graph& graph, Word expected, const Options& options, Row& row) {
  Words mismatches(1);
  EagerThread eager(run.gpu, run.heap, options.seed);
  const cudaStream_t stream = handle_of(run.capture);
  for (std::uint64_t i = 1; i <= options.replays; ++i) {
    need("launch", graph.launch(run.capture));
    count_mismatch(stream, static_cast<Word*>(run.sum), expected, mismatches.at(0));
    if (i % kQueuedLaunches != 0) continue;
    peers::check_cuda("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  }
  peers::check_cuda("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  eager.finish();
  row["replays"] = options.replays;
  row["mismatches"] = mismatches.read(0);
  row["eager_blocks"] = eager.blocks();
  row["eager_wrong_bytes"] = eager.wrong_bytes();
}

Row one(Gpu& gpu, const Options& options, const std::string& kind, const std::string& mode,
        const Reference& reference) {
  Row row = {{"part", "scenario_b"},
             {"warm_up", kind},
             {"mode", mode},
             {"side_streams", options.step.side_streams}};
  Run run(gpu, options.step);
  {
    GraphPool pool(run.heap);
    warm_up(run, pool, kind);
    Graph graph = capture(run, pool, mode);
    replay(run, graph, reference.checksum, options, row);
    const Bytes reserved = pool.statistics().peak_reserved_bytes;
    row["peak_bytes"] = reference.peak.count;
    row["reserved_bytes"] = reserved.count;
    row["ratio"] = ratio_of(reserved, reference.peak);
    gpu.synchronize();
  }
  for (const std::string& broken : run.heap.validate()) throw std::runtime_error(broken);
  return row;
}

std::vector<std::string> chosen(const std::string& name, std::vector<std::string> all) {
  return name == "all" ? std::move(all) : std::vector{name};
}

}  // namespace

std::vector<Row> scenario_b(Gpu& gpu, const Options& options) {
  const Reference reference = run_reference(gpu, options.step);
  std::vector<Row> rows;
  for (const std::string& kind : chosen(options.warm_up, {"none", "capture", "current"})) {
    for (const std::string& mode : chosen(options.mode, {"global", "thread_local", "relaxed"})) {
      rows.push_back(one(gpu, options, kind, mode, reference));
    }
  }
  return rows;
}

}  // namespace weir::graph_pool
