// SPDX-License-Identifier: Apache-2.0
// Ranks of one process on real GPUs, or on simulated ones: the same tests on both. Each rank has a
// thread, a GPU and a heap. Blocks hold patterns that kernels write and check; the largest of equal
// patterns is that pattern again, which makes reductions exact.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/comm/expect.h"
#include "tests/gpu/gpu.h"
#include "weir/comm/communicator.h"
#include "weir/comm/sim_nccl.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir::test {

enum class On { simulated, gpus };
inline std::string name_of(On on) { return on == On::gpus ? "Gpus" : "Simulated"; }

struct GpuRank {
  int number = 0, ranks = 0;
  std::unique_ptr<test::Gpu> gpu;
  std::unique_ptr<DeviceHeap> heap;
  std::unique_ptr<Nccl> nccl;
  std::optional<Communicator> comm;
  Stream compute, side;

  Device& device() const { return gpu->device(); }
  CommContext context() const { return {*nccl, device(), *heap}; }
  void* allocate(Bytes bytes, Stream stream) const {
    Result<void*> block = heap->allocate(bytes, stream);
    expect_ok(block);
    return block.ok() ? *block : nullptr;
  }
  void free(void* block) const { expect_ok(heap->deallocate(block)); }
  void write(Stream stream, void* at, Bytes bytes, std::uint64_t pattern,
             Nanoseconds delay = {}) const {
    expect_ok(gpu->write(stream, {at, bytes, pattern}, delay));
  }
  void check(Stream stream, void* at, Bytes bytes, std::uint64_t pattern,
             Nanoseconds delay = {}) const {
    expect_ok(gpu->check(stream, {at, bytes, pattern}, delay));
  }
  // All streams' work is done.
  void finish() const {
    for (const Stream stream : {compute, side}) expect_ok(gpu->synchronize(stream));
  }
  // Time passes, by the device's clock.
  void pass(Nanoseconds time) const {
    if (auto* const simulated = dynamic_cast<SimDevice*>(&device())) {
      simulated->advance(time);
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(time.count));
    }
  }
};

class OnGpus : public testing::TestWithParam<On> {
 protected:
  void SetUp() override {
    if (GetParam() == On::simulated) {
      world_.emplace(SimWorldOptions{.ranks = 2, .host_timeout = std::chrono::seconds(60)});
      for (int number = 0; number < 2; ++number) add(test::open_sim_gpu());
    } else {
      for (int number = 0; number < 4; ++number) {
        Result<std::unique_ptr<test::Gpu>> gpu = test::open_cuda_gpu(number);
        if (!gpu) break;
        add(*std::move(gpu));
      }
      if (ranks_.size() < 2) GTEST_SKIP() << "two GPUs are needed";
    }
    for (GpuRank& rank : ranks_) rank.ranks = static_cast<int>(ranks_.size());
    open_ranks();
  }

  void TearDown() override {
    if (ranks_.size() < 2 || ranks_.front().nccl == nullptr) return;
    on_all([](GpuRank& rank) {
      rank.finish();
      rank.comm.reset();
      EXPECT_THAT(rank.heap->validate(), testing::IsEmpty());
      EXPECT_EQ(rank.heap->statistics().live_blocks.current, 0u);
      const Result<test::Findings> found = rank.gpu->findings();
      expect_ok(found);
      if (!found) return;
      EXPECT_EQ(found->wrong, 0u) << found->description;
    });
  }

  // A communicator of all ranks; the watchdog looks as often as it is told.
  void create(CommunicatorOptions options = {}) {
    const Result<UniqueId> id = ranks_.front().nccl->unique_id();
    ASSERT_TRUE(id.ok()) << id.error().message();
    on_all([&](GpuRank& rank) {
      Result<Communicator> made =
          Communicator::create(rank.context(), *id, rank.ranks, rank.number, options);
      expect_ok(made);
      if (made) rank.comm = *std::move(made);
    });
  }
  void create_prepared(const CommunicatorOptions& options = {}) {
    create(options);
    on_all([](GpuRank& rank) { expect_ok(rank.comm->prepare()); });
  }
  void on_all(const std::function<void(GpuRank&)>& work) { on_each(ranks_, work); }

  std::vector<GpuRank> ranks_;

 private:
  void add(std::unique_ptr<test::Gpu> gpu) {
    ranks_.emplace_back();
    ranks_.back().number = static_cast<int>(ranks_.size()) - 1;
    ranks_.back().gpu = std::move(gpu);
  }
  void open_ranks() {
    for (GpuRank& rank : ranks_) {
      if (GetParam() == On::simulated) {
        rank.nccl = world_->rank(rank.number, dynamic_cast<SimDevice&>(rank.device()));
      } else {
        Result<std::unique_ptr<Nccl>> nccl = load_nccl(rank.number);
        ASSERT_TRUE(nccl.ok()) << nccl.error().message();
        rank.nccl = *std::move(nccl);
      }
      rank.heap = std::make_unique<DeviceHeap>(rank.device());
      rank.compute = *rank.gpu->new_stream();
      rank.side = *rank.gpu->new_stream();
      // A kernel's first launch loads it, which a capture does not permit.
      void* const block = rank.allocate(1_MiB, rank.compute);
      rank.write(rank.compute, block, 1_MiB, 1);
      rank.check(rank.compute, block, 1_MiB, 1);
      rank.finish();
      rank.free(block);
    }
  }

  std::optional<SimWorld> world_;
};

constexpr ReduceOp kLargest = ReduceOp::max;
constexpr DataType kBytes = DataType::uint8;
inline Result<Work> largest(GpuRank& rank, void* block, Bytes bytes, Stream stream) {
  return rank.comm->all_reduce(block, block, bytes.count, kBytes, kLargest, overlapped(stream));
}

}  // namespace weir::test
