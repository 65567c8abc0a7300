// SPDX-License-Identifier: Apache-2.0
#include "bench/graph_pool/eager_thread.h"

#include <deque>
#include <random>

#include "bench/peers/cuda_check.h"
#include "weir/device_heap.h"

namespace weir::graph_pool {
namespace {

constexpr std::size_t kLive = 8;           // blocks at a time
constexpr std::uint64_t kMostUnits = 512;  // of 64 KiB, in a block
constexpr std::int64_t kMostDelay = 200'000;
constexpr std::uint64_t kQueued = 32;  // blocks, before the host waits for the stream

}  // namespace

EagerThread::EagerThread(Gpu& gpu, DeviceHeap& heap, std::uint64_t seed)
    : heap_(heap),
      stream_(gpu.new_stream()),
      seed_(seed),
      kernels_(need("opening the pattern kernels", PatternKernels::open(0))),
      thread_([this] { run(); }) {}

EagerThread::~EagerThread() { stop(); }

void EagerThread::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void EagerThread::finish() {
  stop();
  if (failure_) std::rethrow_exception(failure_);
  wrong_bytes_ = need("reading what the checks found", kernels_->report()).wrong_bytes;
}

void EagerThread::run() {
  try {
    work();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void EagerThread::work() {
  peers::check_cuda("cudaSetDevice", cudaSetDevice(0));
  struct Block {
    void* pointer;
    Bytes bytes;
    std::uint64_t pattern;
  };
  std::deque<Block> live;
  std::mt19937_64 random(seed_);
  const auto check_oldest = [&] {
    const Block block = live.front();
    live.pop_front();
    const Nanoseconds wait{static_cast<std::int64_t>(random() % kMostDelay)};
    need("check", kernels_->check(stream_, block.pointer, block.bytes, block.pattern, wait));
    need("deallocate", heap_.deallocate(block.pointer));
  };
  while (!stop_) {
    const Bytes bytes = 64_KiB * (1 + random() % kMostUnits);
    const Block block{need("allocate", heap_.allocate(bytes, stream_)), bytes, random()};
    const Nanoseconds wait{static_cast<std::int64_t>(random() % kMostDelay)};
    need("write", kernels_->write(stream_, block.pointer, bytes, block.pattern, wait));
    live.push_back(block);
    if (live.size() == kLive) check_oldest();
    if (++blocks_ % kQueued != 0) continue;
    peers::check_cuda("cudaStreamSynchronize", cudaStreamSynchronize(handle_of(stream_)));
  }
  while (!live.empty()) check_oldest();
  peers::check_cuda("cudaStreamSynchronize", cudaStreamSynchronize(handle_of(stream_)));
}

}  // namespace weir::graph_pool
