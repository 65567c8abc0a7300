// SPDX-License-Identifier: Apache-2.0
// Many threads, one device heap: whatever they saw must be explained by some order of their calls.
#include "tests/property/linearizable.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/property/concurrent_program.h"
#include "tests/sanitized.h"

namespace weir::test {
namespace {

// Steps are divided by this, where each takes longer.
constexpr std::uint32_t kFewer = kThreadSanitizer ? 4 : 1;

void expect_explained(Scenario scenario, std::uint64_t first_seed, std::uint64_t seeds) {
  scenario.steps = std::max<std::uint32_t>(100, scenario.steps / kFewer);
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    scenario.seed = seed;
    const Outcome outcome = run(scenario);
    std::string all;
    for (const std::string& what : outcome.complaints) all += what + "\n";
    for (const std::string& what : contradictions(outcome.history)) all += what + "\n";
    EXPECT_EQ(all, "") << "seed " << seed;
    EXPECT_GT(outcome.allocations, scenario.steps * scenario.threads / 8);
    EXPECT_GT(outcome.handed_over, 0u);
    if (!all.empty()) return;
  }
}

TEST(Linearizable, OnStreamsOfTheirOwn) {
  expect_explained({.threads = 4, .shared_streams = 0, .own_streams = 2, .retires = true}, 1, 6);
}

TEST(Linearizable, OnSharedStreams) {
  expect_explained({.threads = 6, .shared_streams = 2, .own_streams = 1}, 101, 6);
}

TEST(Linearizable, OnOneStreamWithFewSizesAndNoWork) {
  expect_explained({.threads = 4,
                    .shared_streams = 1,
                    .own_streams = 0,
                    .steps = 6000,
                    .hot = {512_B, 4096_B, 256_KiB, 256_KiB + 1_B, 2_MiB, 3_MiB},
                    .most_held = 6,
                    .launches = false},
                   201, 5);
}

// Threads that do nothing else meet within a few instructions of one another.
TEST(Linearizable, HammeringOnStreamsOfTheirOwn) {
  expect_explained({.threads = 4,
                    .shared_streams = 0,
                    .own_streams = 1,
                    .steps = 10000,
                    .hot = {512_B, 4096_B, 65536_B},
                    .most_held = 4,
                    .hammers = true,
                    .interrupts = false,
                    .launches = false},
                   601, 3);
}

TEST(Linearizable, HammeringOnOneStream) {
  expect_explained({.threads = 4,
                    .shared_streams = 1,
                    .own_streams = 0,
                    .steps = 10000,
                    .hot = {512_B, 4096_B, 65536_B},
                    .most_held = 4,
                    .hammers = true,
                    .interrupts = false,
                    .launches = false},
                   701, 3);
}

TEST(Linearizable, WithHotSizesAcrossThreads) {
  expect_explained({.threads = 8,
                    .shared_streams = 2,
                    .own_streams = 1,
                    .hot = {300_B, 65536_B, 256_KiB, 257_KiB, 2_MiB, 32_MiB},
                    .most_held = 8},
                   301, 6);
}

TEST(Linearizable, UnderPressure) {
  expect_explained({.threads = 4,
                    .shared_streams = 1,
                    .own_streams = 1,
                    .memory = 256_MiB,
                    .heap = {.limit = 64_MiB, .reuse = ReusePolicy::wait},
                    .hot = {4096_B, 256_KiB, 2_MiB, 5_MiB, 32_MiB},
                    .most_held = 8},
                   401, 6);
}

TEST(Linearizable, InPlainMemory) {
  expect_explained({.threads = 6,
                    .shared_streams = 2,
                    .own_streams = 2,
                    .heap = {.memory = MemoryKind::plain},
                    .retires = true},
                   801, 4);
}

TEST(Linearizable, InPlainMemoryUnderPressure) {
  expect_explained({.threads = 4,
                    .shared_streams = 1,
                    .own_streams = 2,
                    .memory = 128_MiB,
                    .heap = {.limit = 96_MiB, .memory = MemoryKind::plain},
                    .most_held = 12},
                   901, 4);
}

TEST(Linearizable, UnderPressureWithCallbacksAndChangingLimits) {
  expect_explained({.threads = 3,
                    .shared_streams = 1,
                    .own_streams = 1,
                    .memory = 128_MiB,
                    .heap = {.limit = 96_MiB},
                    .hot = {512_B, 2_MiB, 32_MiB},
                    .most_held = 8,
                    .retires = true,
                    .limits = true,
                    .frees_when_out_of_memory = true},
                   501, 6);
}

}  // namespace
}  // namespace weir::test
