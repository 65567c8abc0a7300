// SPDX-License-Identifier: Apache-2.0
// Random programs against the oracle. A failure prints its seed and the shortest program that
// fails;
// `--gtest_random_seed=N` runs seed N alone.
#include <gtest/gtest.h>

#include "tests/property/program.h"
#include "tests/property/runner.h"
#include "tests/sanitized.h"

namespace weir::test {
namespace {

struct Totals {
  std::uint64_t allocations = 0, out_of_memory = 0, stream_waits = 0, host_waits = 0, sleeps = 0;
};

Totals run_seeds(std::uint64_t first, std::uint64_t count, const ProgramShape& shape,
                 const RunOptions& options = {}) {
  const auto only = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed));
  if (only != 0) first = only, count = 1;
  Totals totals;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Program program = random_program(seed, shape);
    const RunResult result = run(program, options);
    if (result.failure) {
      ADD_FAILURE() << report(program, options, *result.failure);
      break;
    }
    totals.allocations += result.allocations;
    totals.out_of_memory += result.out_of_memory;
    totals.stream_waits += result.stream_waits;
    totals.host_waits += result.host_waits;
    totals.sleeps += result.sleeps;
  }
  return totals;
}

bool all_seeds() { return GTEST_FLAG_GET(random_seed) == 0; }

TEST(RandomPrograms, AgreeWithTheOracleAfterEveryStep) {
  const Totals totals = run_seeds(1, some_if_sanitized(300), {.operations = 150});
  if (!all_seeds()) return;
  // Else the programs don't reach what they are for.
  EXPECT_GT(totals.out_of_memory, some_if_sanitized(50u));
  EXPECT_GT(totals.allocations, totals.out_of_memory * 4);
  EXPECT_GT(totals.stream_waits, some_if_sanitized(200u));
}

TEST(RandomPrograms, AgreeWithTheOracleUnderPressure) {
  const Totals totals =
      run_seeds(2001, some_if_sanitized(150),
                {.operations = 200, .least_memory = 16_MiB, .most_memory = 64_MiB});
  if (!all_seeds()) return;
  EXPECT_GT(totals.out_of_memory, some_if_sanitized(200u));
  EXPECT_GT(totals.stream_waits, some_if_sanitized(200u));
  EXPECT_GT(totals.host_waits, some_if_sanitized(5u));  // where mappings ran out
}

TEST(RandomPrograms, AgreeWithTheOracleWithPlentyOfMemory) {
  const Totals totals =
      run_seeds(4001, some_if_sanitized(15),
                {.operations = 400, .least_memory = 8_GiB, .most_memory = 100_GiB});
  if (!all_seeds()) return;
  EXPECT_GT(totals.allocations, some_if_sanitized(15u * 80));
}

// Each look gives back what streams have cached, and so hides it from the calls that follow.
TEST(RandomPrograms, AgreeWithTheOracleThatSeldomLooks) {
  for (const MemoryKind kind : {MemoryKind::pages, MemoryKind::plain}) {
    const Totals totals =
        run_seeds(12'001, some_if_sanitized(500),
                  {.operations = 250, .least_memory = 16_MiB, .most_memory = 128_MiB, .kind = kind},
                  {.check_every = 50, .idle_at_limits = true});
    if (!all_seeds()) return;
    EXPECT_GT(totals.out_of_memory, some_if_sanitized(100u));
    EXPECT_GT(totals.stream_waits, some_if_sanitized(200u));
  }
}

TEST(RandomPrograms, AgreeWithTheOracleInPlainMemory) {
  const Totals totals =
      run_seeds(6001, some_if_sanitized(200), {.operations = 150, .kind = MemoryKind::plain});
  if (!all_seeds()) return;
  EXPECT_GT(totals.out_of_memory, some_if_sanitized(50u));
  EXPECT_GT(totals.allocations, totals.out_of_memory * 4);
  EXPECT_GT(totals.stream_waits, some_if_sanitized(200u));
}

// (All of them under a sanitizer, too: few programs sleep often.)
TEST(RandomPrograms, AgreeWithTheOracleAndKeepTheirBytesWhereTheySleepAndWake) {
  Totals totals = run_seeds(8001, 250, {.operations = 200, .most_memory = 512_MiB, .sleeps = true});
  const Totals pressed =
      run_seeds(9001, 100,
                {.operations = 250, .least_memory = 16_MiB, .most_memory = 64_MiB, .sleeps = true});
  if (!all_seeds()) return;
  EXPECT_GT(totals.sleeps, 500u);
  EXPECT_GT(pressed.sleeps, 200u);
  EXPECT_GT(totals.allocations, 8'000u);
}

TEST(Shrinking, KeepsOnlyWhatTheFailureNeeds) {
  // Anything with a trim somewhere after a fence "fails".
  const Program program = random_program(7, {.operations = 400});
  const auto fails = [](const Program& candidate) -> std::optional<RunResult::Failure> {
    bool fenced = false;
    for (std::size_t i = 0; i < candidate.operations.size(); ++i) {
      fenced |= candidate.operations[i].kind == Operation::Kind::fence;
      if (fenced && candidate.operations[i].kind == Operation::Kind::trim) {
        return RunResult::Failure{i, "a trim after a fence"};
      }
    }
    return std::nullopt;
  };
  ASSERT_TRUE(fails(program));
  const Program shortest = shrink(program, fails);
  ASSERT_EQ(shortest.operations.size(), 2u);
  EXPECT_EQ(shortest.operations[0].kind, Operation::Kind::fence);
  EXPECT_EQ(shortest.operations[1].kind, Operation::Kind::trim);
}

}  // namespace
}  // namespace weir::test
