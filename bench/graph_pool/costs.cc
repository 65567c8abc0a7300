// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <random>

#include "bench/graph_pool/fixed_memory.h"
#include "bench/graph_pool/gpu_queue.h"
#include "bench/graph_pool/scenarios.h"
#include "bench/peers/cuda_check.h"

namespace weir::graph_pool {
namespace {

using peers::check_cuda;

constexpr unsigned kStreams = 4;
constexpr std::size_t kLivePerStream = 64;
constexpr int kRounds = 5;
constexpr int kLaunches = 50;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class Stopwatch {
 public:
  double ms() const {
    return std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// One block of memory, of which each allocation gets a part: what the capture costs without any
// allocator. Parts are used again and again; nothing is checked here.
class Arena final : public Memory {
 public:
  Arena() { check_cuda("cudaMalloc", cudaMalloc(&start_, (kPart * kParts).count)); }
  ~Arena() override { cudaFree(start_); }
  void* allocate(Bytes, Stream) override {
    return static_cast<char*>(start_) + (kPart * (next_++ % kParts)).count;
  }
  void fence(void*, Stream) override {}
  void deallocate(void*) override {}

 private:
  static constexpr std::uint64_t kParts = 512;
  static constexpr Bytes kPart = 1_MiB;
  void* start_ = nullptr;
  std::uint64_t next_ = 0;
};

// 512 B to 1 MiB, each power of two as often as the next.
std::vector<Bytes> random_sizes(unsigned count) {
  std::mt19937_64 random(count);
  std::uniform_real_distribution<double> exponent(9, 20);
  std::vector<Bytes> sizes;
  for (unsigned i = 0; i < count; ++i) {
    sizes.push_back({static_cast<std::uint64_t>(std::exp2(exponent(random)))});
  }
  return sizes;
}

// Allocates and launches, stream by stream in turn; each stream's oldest block goes when it has too
// many.
void small_work(Gpu& gpu, const StepStreams& streams, const std::vector<Bytes>& sizes,
                Memory& memory) {
  std::vector<Stream> all = streams.sides;
  all.push_back(streams.main);
  for (const Stream side : streams.sides) gpu.order(streams.main, side);
  std::vector<std::deque<void*>> live(all.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t at = i % all.size();
    live[at].push_back(memory.allocate(sizes[i], all[at]));
    transform(handle_of(all[at]), live[at].back(), 1, i);
    if (live[at].size() <= kLivePerStream) continue;
    memory.deallocate(live[at].front());
    live[at].pop_front();
  }
  for (const std::deque<void*>& blocks : live) {
    for (void* const block : blocks) memory.deallocate(block);
  }
  for (const Stream side : streams.sides) gpu.order(side, streams.main);
}

struct CaptureTime {
  double capture = 0, whole = 0;
};

// `work` captured with no pool, in memory that is there already.
ExecutableHandle capture_plain(Gpu& gpu, Stream stream, const std::function<void()>& work,
                               CaptureTime* time = nullptr) {
  const Stopwatch watch;
  need("begin_capture", gpu.device().begin_capture(stream, CaptureMode::global));
  work();
  if (time != nullptr) time->capture = watch.ms();
  const GraphHandle graph = need("end_capture", gpu.device().end_capture(stream));
  const ExecutableHandle executable = need("instantiate", gpu.device().instantiate(graph));
  if (time != nullptr) time->whole = watch.ms();
  need("destroy_graph", gpu.device().destroy_graph(graph));
  return executable;
}

CaptureTime time_weir(Gpu& gpu, DeviceHeap& heap, const StepStreams& streams,
                      const std::vector<Bytes>& sizes) {
  GraphPool pool(heap);
  HeapMemory memory(heap);
  CaptureTime time;
  const Stopwatch watch;
  CaptureScope scope = need("beginning the capture", CaptureScope::begin(pool, streams.main));
  small_work(gpu, streams, sizes, memory);
  time.capture = watch.ms();
  const Graph graph = need("ending the capture", scope.end());
  time.whole = watch.ms();
  return time;
}

CaptureTime time_fixed(Gpu& gpu, const StepStreams& streams, const std::vector<Bytes>& sizes) {
  Arena arena;
  CaptureTime time;
  const ExecutableHandle executable = capture_plain(
      gpu, streams.main, [&] { small_work(gpu, streams, sizes, arena); }, &time);
  need("destroy_executable", gpu.device().destroy_executable(executable));
  return time;
}

Row cost_of(Gpu& gpu, unsigned allocations) {
  DeviceHeap heap(gpu.device());
  const StepStreams streams{gpu.new_stream(), gpu.new_streams(kStreams - 1)};
  const std::vector<Bytes> sizes = random_sizes(allocations);
  std::vector<double> weir, fixed, weir_whole, fixed_whole;
  // The first of each is not counted: the driver's own memory for graphs grows in it.
  for (int round = -1; round < kRounds; ++round) {
    const CaptureTime without = time_fixed(gpu, streams, sizes);
    const CaptureTime with = time_weir(gpu, heap, streams, sizes);
    if (round < 0) continue;
    weir.push_back(with.capture);
    weir_whole.push_back(with.whole);
    fixed.push_back(without.capture);
    fixed_whole.push_back(without.whole);
  }
  return {{"part", "capture_cost"},
          {"allocations", allocations},
          {"weir_ms", median(weir)},
          {"fixed_ms", median(fixed)},
          {"ratio", median(weir) / median(fixed)},
          {"weir_whole_ms", median(weir_whole)},
          {"fixed_whole_ms", median(fixed_whole)},
          {"whole_ratio", median(weir_whole) / median(fixed_whole)}};
}

class LaunchTimer {
 public:
  LaunchTimer() {
    check_cuda("cudaEventCreate", cudaEventCreate(&begin_));
    check_cuda("cudaEventCreate", cudaEventCreate(&end_));
  }
  ~LaunchTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  LaunchTimer(const LaunchTimer&) = delete;
  LaunchTimer& operator=(const LaunchTimer&) = delete;

  double ms(Stream stream, const std::function<void()>& launch) {
    check_cuda("cudaEventRecord", cudaEventRecord(begin_, handle_of(stream)));
    launch();
    check_cuda("cudaEventRecord", cudaEventRecord(end_, handle_of(stream)));
    check_cuda("cudaEventSynchronize", cudaEventSynchronize(end_));
    float ms = 0;
    check_cuda("cudaEventElapsedTime", cudaEventElapsedTime(&ms, begin_, end_));
    return ms;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Launches in turn, so that what the clocks do they do to both.
Row compare_launches(Gpu& gpu, Stream stream, Graph& weir, ExecutableHandle fixed) {
  LaunchTimer timer;
  std::vector<double> weir_ms, fixed_ms;
  for (int i = -3; i < kLaunches; ++i) {  // the first three warm the clocks
    const double with = timer.ms(stream, [&] { need("launch", weir.launch(stream)); });
    const double without =
        timer.ms(stream, [&] { need("launch", gpu.device().launch_graph(fixed, stream)); });
    if (i < 0) continue;
    weir_ms.push_back(with);
    fixed_ms.push_back(without);
  }
  return {{"part", "replay_speed"},
          {"weir_ms", median(weir_ms)},
          {"fixed_ms", median(fixed_ms)},
          {"ratio", median(weir_ms) / median(fixed_ms)},
          {"launches", kLaunches}};
}

}  // namespace

std::vector<Row> capture_cost(Gpu& gpu) {
  Words word(1);
  transform(nullptr, word.at(0), 1, 0);  // loads the kernel
  gpu.synchronize();
  return {cost_of(gpu, 10'000), cost_of(gpu, 20'000)};
}

std::vector<Row> replay_speed(Gpu& gpu, const Options& options) {
  StepShape shape = options.step;
  shape.most_delay_us = 0;
  DeviceHeap heap(gpu.device());
  FixedMemory inputs, fixed;
  Words sum(1);
  const StepStreams streams{gpu.new_stream(), gpu.new_streams(shape.side_streams)};
  void* const input = inputs.allocate(shape.activation, streams.main);
  transform(handle_of(streams.main), input, shape.activation.count / sizeof(Word), 0);
  GpuQueue queue(gpu, sum.at(0));
  Step step(queue, shape, input);
  (void)step.run(streams, fixed);  // its memory is there from here on
  gpu.synchronize();
  fixed.rewind();
  const ExecutableHandle plain =
      capture_plain(gpu, streams.main, [&] { (void)step.run(streams, fixed); });

  GraphPool pool(heap);
  HeapMemory memory(heap);
  CaptureScope scope = need("beginning the capture", CaptureScope::begin(pool, streams.main));
  (void)step.run(streams, memory);
  Graph graph = need("ending the capture", scope.end());
  Row row = compare_launches(gpu, streams.main, graph, plain);
  row["side_streams"] = shape.side_streams;
  need("destroy_executable", gpu.device().destroy_executable(plain));
  return {row};
}

}  // namespace weir::graph_pool
