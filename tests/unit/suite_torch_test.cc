// SPDX-License-Identifier: Apache-2.0
// The model of PyTorch's allocator, against what PyTorch held on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "suite/measure.h"
#include "suite/torch_model.h"
#include "suite/trace_program.h"

namespace weir::suite {
namespace {

// Each allocates blocks of these bytes, one after the other, and frees them in the end.
Program program_of_blocks(const std::vector<Bytes>& blocks) {
  Program program;
  program.blocks = static_cast<std::uint32_t>(blocks.size());
  for (const auto kind : {ProgramCall::Kind::allocate, ProgramCall::Kind::free}) {
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      program.calls.push_back({.kind = kind, .block = i, .bytes = blocks[i].count});
    }
  }
  add_needs(program);
  return program;
}

Bytes held(const Program& program, const TorchSettings& settings = {}) {
  const Outcome outcome = measure_memory(torch_model_kind(settings), program);
  EXPECT_EQ(outcome.failure, "");
  return Bytes{outcome.peak_held};
}

TEST(TorchModel, SegmentsHaveTheSizesOfPyTorchs) {
  const TorchSettings expandable{.expandable_segments = true};
  for (const auto& [bytes, segment, mapped] :
       {std::tuple{1_B, 2_MiB, 2_MiB}, std::tuple{1_MiB, 2_MiB, 2_MiB},
        std::tuple{1025_KiB, 20_MiB, 20_MiB}, std::tuple{10_MiB, 10_MiB, 20_MiB},
        std::tuple{21_MiB, 22_MiB, 40_MiB}}) {
    EXPECT_EQ(held(program_of_blocks({bytes})), segment) << bytes.count;
    EXPECT_EQ(held(program_of_blocks({bytes}), expandable), mapped) << bytes.count;
  }
}

TEST(TorchModel, WhatIsCachedGoesBackBeforeARequestFails) {
  Program program = program_of_blocks({30_MiB, 40_MiB});
  std::swap(program.calls[1], program.calls[2]);  // the first block is freed before the second
  add_needs(program);
  EXPECT_EQ(held(program), 70_MiB);
  for (const bool expandable : {false, true}) {
    TorchSettings settings{.expandable_segments = expandable, .limit = 40_MiB};
    EXPECT_EQ(held(program, settings), 40_MiB);
    settings.limit = 39_MiB;
    EXPECT_THAT(measure_memory(torch_model_kind(settings), program).failure,
                testing::HasSubstr("out of memory"));
  }
}

TEST(TorchModel, HoldsWhatPyTorchHeldOnAGpu) {
  std::ifstream file("bench/traces/peers.json");
  const auto recorded = nlohmann::json::parse(file)["traces"];
  ASSERT_GE(recorded.size(), 17U);
  for (const auto& [name, ratios] : recorded.items()) {
    const Result<Program> program = read_program("bench/traces/" + name + ".trace.gz");
    ASSERT_TRUE(program.ok()) << name;
    for (const bool expandable : {false, true}) {
      const auto& want = ratios[expandable ? "expandable_segments" : "native"];
      if (want.is_null()) continue;
      const Outcome got =
          measure_memory(torch_model_kind({.expandable_segments = expandable}), *program);
      EXPECT_EQ(got.failure, "") << name;
      EXPECT_NEAR(got.ratio, want.get<double>(), 0.02)
          << name << (expandable ? ", expandable" : "");
    }
  }
}

}  // namespace
}  // namespace weir::suite
