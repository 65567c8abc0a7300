// SPDX-License-Identifier: Apache-2.0
// The public headers alone, and kernels that check what ranks send each other.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/comm/peer.h"
#include "tests/stress/gpu.h"
#include "weir/comm/communicator.h"
#include "weir/cuda_device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir::peer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kLayers = 4;  // all-reduces of a step
constexpr std::uint64_t kAhead = 8;   // steps that the host is ahead of the GPU
constexpr Bytes kBlock = 8_MiB;       // what an all-reduce sums, and
constexpr Bytes kMismatch = 4_KiB;    // what one that differs does: another protocol of NCCL's
constexpr std::uint64_t kPartAlignment = 4096;

Nanoseconds nanoseconds(double seconds) { return {static_cast<std::int64_t>(seconds * 1e9)}; }

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

class Peer {
 public:
  explicit Peer(Options options) : options_(std::move(options)) {}

  int run();

 private:
  Status open();
  Status connect();
  void hang() const;
  Status work();
  Status mismatch();
  Status capture(Bytes reduced);
  Status repeat(std::uint64_t steps, bool captured);
  Status step(Bytes reduced);
  Status reduce(std::byte* block, std::uint64_t pattern, Bytes reduced);
  Status finish();
  void go_on();
  Status replace_communicator();
  int report() const;

  bool is_bad() const { return launch_.rank == options_.bad_rank; }
  CommContext context() const { return {*nccl_, gpu_->device(), *heap_}; }
  CommunicatorOptions settings() const {
    CommunicatorOptions made;
    made.timeout = nanoseconds(options_.timeout);
    made.host_timeout = nanoseconds(options_.host_timeout);
    return made;
  }

  const Options options_;
  Launch launch_;
  // Each needs those above it.
  std::unique_ptr<stress::Gpu> gpu_;
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

Status Peer::open() {
  const Result<int> gpus = CudaDevice::count();
  if (!gpus) return gpus.error();
  // A launcher may show each process its own GPU alone.
  const int ordinal = *gpus == 1 ? 0 : launch_.local_rank;
  Result<std::unique_ptr<stress::Gpu>> gpu = stress::open_cuda_gpu(ordinal);
  if (!gpu) return std::move(gpu).error();
  gpu_ = *std::move(gpu);
  Result<std::unique_ptr<Nccl>> nccl = load_nccl(ordinal);
  if (!nccl) return std::move(nccl).error();
  nccl_ = *std::move(nccl);
  heap_ = std::make_unique<DeviceHeap>(gpu_->device());
  const Result<Stream> stream = gpu_->new_stream();
  if (!stream) return stream.error();
  compute_ = *stream;
  return {};
}

Status Peer::connect() {
  last_good_ = Clock::now();
  const Result<UniqueId> id = rendezvous(*nccl_, launch_);
  if (!id) return id.error();
  Result<Communicator> made =
      Communicator::create(context(), *id, launch_.ranks, launch_.rank, settings());
  finish_rendezvous(launch_);
  if (!made) return std::move(made).error();
  comm_ = *std::move(made);
  last_good_ = Clock::now();
  if (options_.work == "absent" && is_bad()) hang();
  say({{"event", "prepares"}});
  Status ready = comm_->prepare();
  if (ready) last_good_ = Clock::now();
  return ready;
}

// Takes no part any more, and does not end.
void Peer::hang() const {
  say({{"event", "hangs"}});
  std::this_thread::sleep_for(std::chrono::duration<double>(options_.limit));
}

Status Peer::work() {
  if (options_.work == "mismatch") return mismatch();
  const bool replays = options_.captured || options_.work == "replay";
  const std::uint64_t steps = options_.work == "hang" ? options_.sound_steps : options_.steps;
  // The kernels' first launches load them, which a capture does not permit.
  Status went = replays || options_.work == "once" ? repeat(kAhead, false) : Status{};
  if (went) went = replays || options_.work == "once" ? capture(kBlock) : Status{};
  if (went) went = repeat(steps, replays || options_.work == "once");
  if (!went || options_.work != "hang") return went;
  if (!is_bad()) return repeat(0, replays);
  hang();
  return {};
}

// One rank asks for less than the others, in the last step. NCCL compares nothing. (Where sizes are
// alike enough for its kernels to take equal steps, ranks get wrong bytes and no error.)
Status Peer::mismatch() {
  if (Status went = repeat(options_.sound_steps, false); !went) return went;
  const Bytes reduced = is_bad() ? kMismatch : kBlock;
  if (options_.captured) return capture(reduced);
  if (Status queued = step(reduced); !queued) return queued;
  return finish();
}

Status Peer::capture(Bytes reduced) {
  graph_ = Graph();
  pool_.emplace(*heap_);
  Result<CaptureScope> scope = CaptureScope::begin(*pool_, compute_);
  if (!scope) return std::move(scope).error();
  Status queued = step(reduced);
  Result<Graph> graph = comm_->end_capture(*scope);  // also after an error: ranks agree in it
  if (!queued) return queued;
  if (!graph) return std::move(graph).error();
  graph_ = *std::move(graph);
  return {};
}

// 0 steps: until something fails.
Status Peer::repeat(std::uint64_t steps, bool captured) {
  for (std::uint64_t done = 0; steps == 0 || done < steps;) {
    if (seconds_since(begin_) > options_.limit) {
      gave_up_ = true;
      return Error(ErrorCode::device, fmt::format("nothing failed in {} s", options_.limit));
    }
    const std::uint64_t batch = steps == 0 ? kAhead : std::min(kAhead, steps - done);
    for (std::uint64_t i = 0; i < batch; ++i) {
      Status queued = captured ? comm_->launch(graph_, compute_) : step(kBlock);
      if (!queued) return queued;
    }
    if (Status finished = finish(); !finished) return finished;
    done += batch;
    steps_ += batch;
    last_good_ = Clock::now();
    if (steps == 0 && !said_working_) say({{"event", "working"}});
    said_working_ = said_working_ || steps == 0;
  }
  return {};
}

Status Peer::step(Bytes reduced) {
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    Result<void*> block = heap_->allocate(kBlock, compute_);
    if (!block) return std::move(block).error();
    Status queued = reduce(static_cast<std::byte*>(*block), next_pattern_++, reduced);
    Status freed = heap_->deallocate(*block);
    if (!queued) return queued;
    if (!freed) return freed;
  }
  return {};
}

// A rank writes the part that has its number and zeros in the others, so that the sum is every
// rank's part: each must have come, and nothing may have been added twice.
Status Peer::reduce(std::byte* block, std::uint64_t pattern, Bytes reduced) {
  const auto ranks = static_cast<std::uint64_t>(comm_->ranks());
  const auto own = static_cast<std::uint64_t>(comm_->rank());
  const Bytes part{kBlock.count / ranks / kPartAlignment * kPartAlignment};
  const auto contents = [&](std::uint64_t number) {
    return stress::Contents{block + part.count * number, part, pattern * 64 + number};
  };
  const cudaError_t zeroed =
      cudaMemsetAsync(block, 0, kBlock.count, static_cast<cudaStream_t>(compute_.handle));
  if (zeroed != cudaSuccess) return Error(ErrorCode::device, cudaGetErrorString(zeroed));
  if (Status queued = gpu_->write(compute_, contents(own), {}); !queued) return queued;
  const Result<Work> sum = comm_->all_reduce(block, block, reduced.count, DataType::uint8,
                                             ReduceOp::sum, overlapped(compute_));
  if (!sum) return sum.error();
  if (Status waits = sum->wait(compute_); !waits) return waits;
  for (std::uint64_t number = 0; number < ranks; ++number) {
    if (Status queued = gpu_->check(compute_, contents(number), {}); !queued) return queued;
  }
  return {};
}

// Status is asked before the bytes: what an error ended need not be right.
Status Peer::finish() {
  if (Status done = gpu_->synchronize(compute_); !done) return done;
  if (Status works = comm_->status(); !works) return works;
  const Result<stress::Findings> found = gpu_->findings();
  if (!found) return found.error();
  wrong_ = found->wrong - ignored_;
  return {};
}

// After an error: what hung was ended, and this rank works alone.
void Peer::go_on() {
  const auto all = [&]() -> Status {
    if (Status ended = gpu_->synchronize(compute_); !ended) return ended;
    graph_ = Graph();
    pool_.reset();
    const Result<stress::Findings> found = gpu_->findings();
    if (!found) return found.error();
    ignored_ = found->wrong - wrong_;
    if (Status replaced = replace_communicator(); !replaced) return replaced;
    after_ranks_ = comm_->ranks();
    if (Status ready = comm_->prepare(); !ready) return ready;
    if (Status went = repeat(2 * kAhead, false); !went) return went;
    if (Status made = capture(kBlock); !made) return made;
    if (Status went = repeat(2 * kAhead, true); !went) return went;
    graph_ = Graph();
    pool_.reset();
    return comm_->close();
  };
  if (const Status went = all(); !went) after_ = went.error().message();
}

Status Peer::replace_communicator() {
  const auto close = [&](Communicator& old) {
    if (const Status closed = old.close(); !closed) close_ = closed.error().message();
  };
  close(*comm_);
  comm_.reset();
  const Result<UniqueId> id = nccl_->unique_id();
  if (!id) return id.error();
  Result<Communicator> alone = Communicator::create(context(), *id, 1, 0, settings());
  if (!alone) return std::move(alone).error();
  comm_ = *std::move(alone);
  return {};
}

int Peer::report() const {
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

int Peer::run() {
  Result<Launch> launch = find_launch(process_environment());
  if (!launch) {
    std::fprintf(stderr, "comm_peer: %s\n", launch.error().message().c_str());
    return kWrongOptions;
  }
  launch_ = *std::move(launch);
  const bool misbehaves =
      options_.work == "hang" || options_.work == "absent" || options_.work == "mismatch";
  if (misbehaves && options_.bad_rank >= launch_.ranks) {
    std::fprintf(stderr, "comm_peer: --bad-rank %d: this is %s\n", options_.bad_rank,
                 launch_.describe().c_str());
    return kWrongOptions;
  }
  Status went = open();
  if (went) went = connect();
  if (went) went = work();
  steps_to_error_ = steps_;
  if (!went) {
    error_ = went.error().message();
    error_after_ = seconds_since(last_good_);
    if (comm_ && !gave_up_) go_on();
  } else {
    graph_ = Graph();
    pool_.reset();
    if (const Status closed = comm_->close(); !closed) close_ = closed.error().message();
  }
  return report();
}

}  // namespace

void say(const nlohmann::json& what) {
  const std::string line =
      what.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

int run(const Options& options) { return Peer(options).run(); }

}  // namespace weir::peer
