// SPDX-License-Identifier: Apache-2.0
// One rank of a launch, as a user would write it: the public headers alone, and kernels that check
// what ranks send each other. processes_test.py starts it, kills it, stops it. What fails throws.
//
// Its one argument, if any, is a JSON object of Options; what it leaves out has its default.
// Prints {"event": ...} lines as it goes, and one JSON object at its end.
// Exit: 0 it went as was asked, 1 not, 2 the options or the launcher's variables are wrong, 77
// (probe) fewer than two GPUs, or no NCCL.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/gpu.h"
#include "weir/allocator.h"
#include "weir/comm/communicator.h"
#include "weir/comm/launch.h"
#include "weir/cuda_device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir::peer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWrongOptions = 2, kSkipped = 77;  // exit codes; what ctest takes for "skipped"
constexpr unsigned kSecondsToEnd = 30;           // after Options::limit
constexpr std::uint64_t kLayers = 4;             // all-reduces of a step
constexpr std::uint64_t kAhead = 8;              // steps that the host is ahead of the GPU
constexpr Bytes kBlock = 8_MiB;                  // what an all-reduce sums, and
constexpr Bytes kMismatch = 4_KiB;  // what one that differs does: another protocol of NCCL's
constexpr std::uint64_t kPartAlignment = 4096;

struct Options {
  // once: some steps, eager and captured; eager, replay: as many as `steps` says; hang: `bad_rank`
  // stops taking part; absent: it never prepares; mismatch: it asks for another size.
  std::string work = "once";
  std::uint64_t steps = 100;       // 0: until something fails
  std::uint64_t sound_steps = 16;  // before a rank misbehaves
  int bad_rank = 1;
  double timeout = 10, host_timeout = 30;  // seconds, of the communicator
  double limit = 90;                       // seconds in which what is expected must fail
  bool captured = false;                   // hang: in replays; mismatch: in a capture
  bool expect_error = false;               // it is good if something fails
  bool probe = false;                      // only says whether there are two GPUs and NCCL
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Options, work, steps, sound_steps, bad_rank,
                                                timeout, host_timeout, limit, captured,
                                                expect_error, probe)

void need(const Status& status) {
  if (!status) throw Exception(status.error().code(), status.error().message());
}
template <class Value>
Value need(Result<Value> result) {
  if (!result) throw Exception(result.error().code(), result.error().message());
  return *std::move(result);
}

Nanoseconds nanoseconds(double seconds) { return {static_cast<std::int64_t>(seconds * 1e9)}; }

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

// Prints one line, in one write, so that lines of ranks that share a pipe stay whole.
void say(const nlohmann::json& what) {
  const std::string line =
      what.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

class Peer {
 public:
  Peer(const Options& options, Launch launch) : options_(options), launch_(std::move(launch)) {}

  int run() {
    try {
      open();
      connect();
      work();
      steps_to_error_ = steps_;
      drop_graph();
      close();
    } catch (const Exception& error) {
      error_ = error.what();
      error_after_ = seconds_since(last_good_);
      steps_to_error_ = steps_;
      if (comm_ && !gave_up_) go_on();
    }
    return report();
  }

 private:
  bool is_bad() const { return launch_.rank == options_.bad_rank; }
  CommContext context() const { return {*nccl_, gpu_->device(), *heap_}; }
  CommunicatorOptions settings() const {
    return {.timeout = nanoseconds(options_.timeout),
            .host_timeout = nanoseconds(options_.host_timeout)};
  }
  void drop_graph() {
    graph_ = Graph();
    pool_.reset();
  }
  void close() {
    if (const Status closed = comm_->close(); !closed) close_ = closed.error().message();
  }

  void open() {
    // A launcher may show each process its own GPU alone.
    const int ordinal = need(CudaDevice::count()) == 1 ? 0 : launch_.local_rank;
    gpu_ = need(test::open_cuda_gpu(ordinal));
    nccl_ = need(load_nccl(ordinal));
    heap_ = std::make_unique<DeviceHeap>(gpu_->device());
    compute_ = need(gpu_->new_stream());
  }

  void connect() {
    last_good_ = Clock::now();
    const UniqueId id = need(rendezvous(*nccl_, launch_));
    Result<Communicator> made =
        Communicator::create(context(), id, launch_.ranks, launch_.rank, settings());
    finish_rendezvous(launch_);
    comm_ = need(std::move(made));
    last_good_ = Clock::now();
    if (options_.work == "absent" && is_bad()) hang();
    say({{"event", "prepares"}});
    need(comm_->prepare());
    last_good_ = Clock::now();
  }

  // Takes no part any more, and does not end.
  void hang() const {
    say({{"event", "hangs"}});
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.limit));
  }

  void work() {
    if (options_.work == "mismatch") return mismatch();
    const bool replays = options_.captured || options_.work == "replay" || options_.work == "once";
    if (replays) {
      // The kernels' first launches load them, which a capture does not permit.
      repeat(kAhead, false);
      capture(kBlock);
    }
    repeat(options_.work == "hang" ? options_.sound_steps : options_.steps, replays);
    if (options_.work != "hang") return;
    is_bad() ? hang() : repeat(0, replays);
  }

  // One rank asks for less than the others, in the last step. NCCL compares nothing. (Where sizes
  // are alike enough for its kernels to take equal steps, ranks get wrong bytes and no error.)
  void mismatch() {
    repeat(options_.sound_steps, false);
    const Bytes reduced = is_bad() ? kMismatch : kBlock;
    if (options_.captured) return capture(reduced);
    step(reduced);
    finish();
  }

  void capture(Bytes reduced) {
    graph_ = Graph();
    pool_.emplace(*heap_);
    CaptureScope scope = need(CaptureScope::begin(*pool_, compute_));
    std::optional<Exception> failed;
    try {
      step(reduced);
    } catch (const Exception& error) {
      failed = error;
    }
    Result<Graph> graph = comm_->end_capture(scope);  // also after an error: ranks agree in it
    if (failed) throw *failed;
    graph_ = need(std::move(graph));
  }

  // 0 steps: until something fails.
  void repeat(std::uint64_t steps, bool captured) {
    for (std::uint64_t done = 0; steps == 0 || done < steps;) {
      if (seconds_since(begin_) > options_.limit) {
        gave_up_ = true;
        throw Exception(ErrorCode::device, fmt::format("nothing failed in {} s", options_.limit));
      }
      const std::uint64_t batch = steps == 0 ? kAhead : std::min(kAhead, steps - done);
      for (std::uint64_t i = 0; i < batch; ++i) {
        captured ? need(comm_->launch(graph_, compute_)) : step(kBlock);
      }
      finish();
      done += batch;
      steps_ += batch;
      last_good_ = Clock::now();
      if (steps == 0 && !std::exchange(said_working_, true)) say({{"event", "working"}});
    }
  }

  void step(Bytes reduced) {
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      const std::shared_ptr<void> block(need(heap_->allocate(kBlock, compute_)),
                                        [this](void* gone) { (void)heap_->deallocate(gone); });
      reduce(static_cast<std::byte*>(block.get()), next_pattern_++, reduced);
    }
  }

  // A rank writes the part that has its number and zeros in the others, so that the sum is every
  // rank's part: each must have come, and nothing may have been added twice.
  void reduce(std::byte* block, std::uint64_t pattern, Bytes reduced) {
    const auto ranks = static_cast<std::uint64_t>(comm_->ranks());
    const auto own = static_cast<std::uint64_t>(comm_->rank());
    const Bytes part{kBlock.count / ranks / kPartAlignment * kPartAlignment};
    const auto contents = [&](std::uint64_t number) {
      return test::Contents{block + part.count * number, part, pattern * 64 + number};
    };
    const cudaError_t zeroed =
        cudaMemsetAsync(block, 0, kBlock.count, static_cast<cudaStream_t>(compute_.handle));
    if (zeroed != cudaSuccess) throw Exception(ErrorCode::device, cudaGetErrorString(zeroed));
    need(gpu_->write(compute_, contents(own), {}));
    need(need(comm_->all_reduce(block, block, reduced.count, DataType::uint8, ReduceOp::sum,
                                overlapped(compute_)))
             .wait(compute_));
    for (std::uint64_t number = 0; number < ranks; ++number) {
      need(gpu_->check(compute_, contents(number), {}));
    }
  }

  // Status is asked before the bytes: what an error ended need not be right.
  void finish() {
    need(gpu_->synchronize(compute_));
    need(comm_->status());
    wrong_ = need(gpu_->findings()).wrong - ignored_;
  }

  // After an error: what hung was ended, and this rank works alone.
  void go_on() {
    try {
      need(gpu_->synchronize(compute_));
      drop_graph();
      ignored_ = need(gpu_->findings()).wrong - wrong_;
      close();
      comm_.reset();
      comm_ = need(Communicator::create(context(), need(nccl_->unique_id()), 1, 0, settings()));
      after_ranks_ = comm_->ranks();
      need(comm_->prepare());
      repeat(2 * kAhead, false);
      capture(kBlock);
      repeat(2 * kAhead, true);
      drop_graph();
      need(comm_->close());
    } catch (const Exception& error) {
      after_ = error.what();
    }
  }

  int report() const {
    const bool mismatch = options_.work == "mismatch";
    std::vector<std::string> broken;
    std::uint64_t live = 0;
    if (heap_ != nullptr) {
      broken = heap_->validate();
      live = heap_->statistics().live_blocks.current;
    }
    const bool seen = !error_.empty() || (mismatch && wrong_ != 0);
    const bool as_asked = seen == options_.expect_error || (mismatch && is_bad());
    const bool good = as_asked && heap_ != nullptr && !gave_up_ && (wrong_ == 0 || mismatch) &&
                      broken.empty() && live == 0 && close_.empty() && after_.empty();
    say({{"rank", launch_.rank},
         {"ranks", launch_.ranks},
         {"launch", launch_.describe()},
         {"nccl", nccl_ == nullptr ? "" : nccl_->version()},
         {"steps", steps_to_error_},
         {"error", error_},
         {"error_after", error_after_},
         {"wrong", wrong_},
         {"validate", broken},
         {"live_blocks", live},
         {"close", close_},
         {"goes_on_with", after_ranks_},
         {"goes_on_error", after_},
         {"good", good}});
    return good ? 0 : 1;
  }

  const Options options_;
  const Launch launch_;
  // Each needs those above it.
  std::unique_ptr<test::Gpu> gpu_;
  std::unique_ptr<Nccl> nccl_;
  std::unique_ptr<DeviceHeap> heap_;
  Stream compute_;
  std::optional<Communicator> comm_;
  std::optional<GraphPool> pool_;
  Graph graph_;

  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_good_ = begin_;
  std::uint64_t next_pattern_ = 1, steps_ = 0;
  std::uint64_t ignored_ = 0;  // wrong bytes of a step that did not end
  bool said_working_ = false, gave_up_ = false;
  // For the report.
  std::uint64_t steps_to_error_ = 0, wrong_ = 0;
  std::string error_, close_, after_;
  double error_after_ = 0;
  int after_ranks_ = 0;  // 0: there was no need to go on
};

int run(const Options& options) {
  const Result<Launch> launch = find_launch(process_environment());
  const bool misbehaves =
      options.work == "hang" || options.work == "absent" || options.work == "mismatch";
  if (launch && !(misbehaves && options.bad_rank >= launch->ranks)) {
    return Peer(options, *launch).run();
  }
  std::fprintf(
      stderr, "comm_peer: %s\n",
      launch ? fmt::format("bad_rank {}: this is {}", options.bad_rank, launch->describe()).c_str()
             : launch.error().message().c_str());
  return kWrongOptions;
}

int probe() {
  const Result<int> gpus = CudaDevice::count();
  if (!gpus || *gpus < 2) {
    std::fprintf(
        stderr, "comm_peer: two GPUs are needed: %s\n",
        gpus ? fmt::format("there is {} here", *gpus).c_str() : gpus.error().message().c_str());
    return kSkipped;
  }
  const Result<std::unique_ptr<Nccl>> nccl = load_nccl(0);
  if (!nccl) {
    std::fprintf(stderr, "comm_peer: %s\n", nccl.error().message().c_str());
    return kSkipped;
  }
  say({{"gpus", *gpus}, {"nccl", (*nccl)->version()}});
  return 0;
}

Options parse(const char* argument) {
  const nlohmann::json given = nlohmann::json::parse(argument), known = Options{};
  for (const auto& [name, value] : given.items()) (void)known.at(name);  // throws if there is none
  return given.get<Options>();
}

}  // namespace
}  // namespace weir::peer

int main(int argc, char** argv) {
  weir::peer::Options options;
  try {
    if (argc > 1) options = weir::peer::parse(argv[1]);
  } catch (const nlohmann::json::exception& error) {
    std::fprintf(stderr, "comm_peer: %s: %s\n", argv[1], error.what());
    return weir::peer::kWrongOptions;
  }
  // Nothing that was left behind by who started it goes on for ever.
  alarm(static_cast<unsigned>(options.limit) + weir::peer::kSecondsToEnd);
  return options.probe ? weir::peer::probe() : weir::peer::run(options);
}
