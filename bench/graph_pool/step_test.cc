// SPDX-License-Identifier: Apache-2.0
// The step captured after each kind of warm-up, on the simulated device: the pool holds what the
// step needs, whatever was warmed up and wherever.
#include "bench/graph_pool/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir::graph_pool {
namespace {

class SimQueue final : public Queue {
 public:
  explicit SimQueue(SimDevice& device) : device_(device) {}

  void order(Stream earlier, Stream later) override {
    if (earlier == later) return;
    const EventHandle event = need("create_event", device_.create_event());
    need("record", device_.record(event, earlier));
    need("wait", device_.wait(later, event));
    need("destroy_event", device_.destroy_event(event));
  }
  void transform(Stream stream, Piece out, std::uint64_t, Piece a, Piece b) override {
    std::vector<Access> accesses{Writes(out.pointer, out.bytes)};
    for (const Piece& source : {a, b}) {
      if (source.pointer != nullptr) accesses.push_back(Reads(source.pointer, source.bytes));
    }
    launch(stream, accesses);
  }
  void clear_sum(Stream) override {}
  void add_to_sum(Stream stream, Piece piece) override {
    launch(stream, {Reads(piece.pointer, piece.bytes)});
  }
  void delay(Stream stream, Nanoseconds duration) override {
    need("launch", device_.launch(stream, duration));
  }

 private:
  void launch(Stream stream, const std::vector<Access>& accesses) {
    need("launch", device_.launch(stream, accesses, 400_us));
  }

  SimDevice& device_;
};

struct Program {
  const char* warm_up;  // none, or on which stream
  unsigned layers, side_streams;
  CaptureMode mode = CaptureMode::global;
};

class StepInAPool : public testing::TestWithParam<Program> {
 protected:
  StepInAPool() {
    for (unsigned i = 0; i < GetParam().side_streams; ++i) sides_.push_back(device_.new_stream());
  }

  void warm_up(GraphPool& pool, Step& step) {
    const std::string kind = GetParam().warm_up;
    if (kind == "none") return;
    const StepStreams streams{kind == "current" ? current_ : capture_, sides_};
    Result<PoolBinding> binding = pool.warm_up([&streams](Stream asking) {
      return asking == streams.main ||
             std::find(streams.sides.begin(), streams.sides.end(), asking) != streams.sides.end();
    });
    ASSERT_TRUE(binding.ok());
    HeapMemory memory(heap_);
    step.run(streams, memory);
  }

  SimDevice device_;
  DeviceHeap heap_{device_};
  SimQueue queue_{device_};
  const Stream capture_ = device_.new_stream(), current_ = device_.new_stream();
  std::vector<Stream> sides_;
};

TEST_P(StepInAPool, HoldsWhatTheStepNeeds) {
  const StepShape shape{
      .layers = GetParam().layers, .side_streams = GetParam().side_streams, .most_delay_us = 100};
  void* const input = need("allocate", heap_.allocate(shape.activation, current_));
  queue_.transform(current_, {input, shape.activation}, 0, {}, {});
  device_.finish();
  {
    Step step(queue_, shape, input);
    GraphPool pool(heap_);
    warm_up(pool, step);
    Result<CaptureScope> scope = CaptureScope::begin(pool, capture_, GetParam().mode);
    ASSERT_TRUE(scope.ok()) << scope.error().message();
    HeapMemory memory(heap_);
    const Bytes peak = step.run({capture_, sides_}, memory);
    Result<Graph> graph = scope->end();
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    // A 32nd, but for 24 layers on three streams: 1.057.
    EXPECT_LE(pool.statistics().peak_reserved_bytes, peak + peak / 16);
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      EXPECT_EQ(device_.replay_in_random_order(graph->graph(), seed), 0u) << "seed " << seed;
    }
    EXPECT_TRUE(graph->launch(capture_).ok());
    device_.finish();
  }
  EXPECT_TRUE(heap_.deallocate(input).ok());
  EXPECT_THAT(heap_.validate(), testing::IsEmpty());
  EXPECT_EQ(device_.race_count(), 0u);
}

std::string name_of(const testing::TestParamInfo<Program>& info) {
  const Program& program = info.param;
  const std::string mode = program.mode == CaptureMode::global          ? "Global"
                           : program.mode == CaptureMode::thread_local_ ? "ThreadLocal"
                                                                        : "Relaxed";
  return std::string("warm_up_") + program.warm_up + "_" + std::to_string(program.layers) +
         "_layers_" + std::to_string(program.side_streams) + "_sides_" + mode;
}

INSTANTIATE_TEST_SUITE_P(After, StepInAPool,
                         testing::Values(Program{"none", 24, 2}, Program{"capture", 24, 2},
                                         Program{"current", 24, 2}, Program{"none", 24, 0},
                                         Program{"capture", 24, 0}, Program{"current", 24, 0},
                                         Program{"none", 24, 2, CaptureMode::thread_local_},
                                         Program{"none", 24, 2, CaptureMode::relaxed},
                                         Program{"none", 48, 3}, Program{"capture", 48, 3},
                                         Program{"current", 48, 3}, Program{"none", 12, 1},
                                         Program{"capture", 12, 1}, Program{"current", 12, 1}),
                         name_of);

}  // namespace
}  // namespace weir::graph_pool
