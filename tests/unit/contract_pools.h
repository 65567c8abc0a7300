// SPDX-License-Identifier: Apache-2.0
// Pools and captures as PyTorch has them: it announces a capture by a binding, begins and ends it
// itself, launches the graph without a word, and says when it drops the graph.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/contract_fixture.h"

namespace weir::test {

class ContractPools : public Contract {
 protected:
  using Contract::Contract;

  struct Captured {
    ExecutableHandle executable;
    void* output = nullptr;
  };

  GraphPool* open_pool() {
    pools_.push_back(std::make_unique<GraphPool>(heap_));
    return pools_.back().get();
  }
  // Nobody uses it any more.
  void close(GraphPool* pool) {
    std::erase_if(pools_, [&](const auto& each) { return each.get() == pool; });
  }
  PoolBinding warm_up(GraphPool& pool, Stream stream) {
    Result<PoolBinding> binding = pool.warm_up(stream);
    EXPECT_TRUE(binding.ok()) << (binding.ok() ? "" : binding.error().message());
    return *std::move(binding);
  }
  // `work` is captured, and gives the output.
  template <class Work>
  Captured capture(GraphPool& pool, Stream stream, Work&& work) {
    PoolBinding binding = announce(pool, stream);
    begin_unannounced(stream);
    Captured captured;
    captured.output = work();
    const GraphHandle graph = end_unannounced(stream);
    binding.close();
    captured.executable = *device_.instantiate(graph);
    EXPECT_TRUE(device_.destroy_graph(graph).ok());
    return captured;
  }
  PoolBinding announce(GraphPool& pool, Stream stream) {
    Result<PoolBinding> binding =
        pool.capture([stream](Stream asking) { return asking == stream; }, stream);
    EXPECT_TRUE(binding.ok()) << (binding.ok() ? "" : binding.error().message());
    return *std::move(binding);
  }
  void begin_unannounced(Stream stream) {
    ASSERT_TRUE(device_.begin_capture(stream, CaptureMode::global).ok());
  }
  // The capture is whole.
  GraphHandle end_unannounced(Stream stream) {
    const Result<GraphHandle> graph = device_.end_capture(stream);
    EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message());
    return graph.ok() ? *graph : GraphHandle{};
  }
  void end_and_destroy(Stream stream) {
    EXPECT_TRUE(device_.destroy_graph(end_unannounced(stream)).ok());
  }
  // Races with nothing, and goes.
  void launch_once(GraphHandle graph, Stream stream) {
    const ExecutableHandle executable = *device_.instantiate(graph);
    EXPECT_TRUE(device_.destroy_graph(graph).ok());
    EXPECT_TRUE(device_.launch_graph(executable, stream).ok());
    EXPECT_EQ(device_.race_count(), 0u);
    device_.finish();
    EXPECT_TRUE(device_.destroy_executable(executable).ok());
  }
  void launch(const Captured& captured, Stream stream) {
    EXPECT_TRUE(device_.launch_graph(captured.executable, stream).ok());
  }
  // As torch.cuda.CUDAGraph does: the pool first.
  void drop(const Captured& captured, GraphPool& pool) {
    pool.release_graph();
    EXPECT_TRUE(device_.destroy_executable(captured.executable).ok());
  }

 private:
  std::vector<std::unique_ptr<GraphPool>> pools_;
};

}  // namespace weir::test
