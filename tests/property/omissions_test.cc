// SPDX-License-Identifier: Apache-2.0
// The checker checks: where the device leaves out one wait or one record that the core asked for,
// random programs must be seen to race. The bounds are what was caught when they were written, less
// a fifth; what is not caught was implied by another wait, or nobody used the memory again.
#include <gtest/gtest.h>

#include <string>

#include "tests/property/program.h"
#include "tests/property/runner.h"

namespace weir::test {
namespace {

constexpr std::uint64_t kPrograms = 1'000;

// Mostly small blocks on some seeds, mostly large ones on others, and memory that is soon used up.
Program busy_program(std::uint64_t seed) {
  return random_program(seed, {.operations = 300,
                               .most_streams = 5,
                               .least_memory = 24_MiB,
                               .most_memory = seed % 2 == 0 ? 48_MiB : 256_MiB});
}

struct Case {
  DeviceCall kind;
  int least;  // races, of kPrograms
};

class Omissions : public ::testing::TestWithParam<Case> {};

TEST_P(Omissions, AreCaughtAsRaces) {
  int omitted = 0, raced = 0;
  for (std::uint64_t seed = 1; seed <= kPrograms; ++seed) {
    const RunResult result =
        run(busy_program(seed), {.check_every = 0,
                                 .fault = {},
                                 .sink = nullptr,
                                 .omission = {{GetParam().kind, 1 + seed % 7}}});
    omitted += result.omitted ? 1 : 0;
    raced += result.failure && result.failure->what.find("race: ") != std::string::npos ? 1 : 0;
  }
  RecordProperty("omitted", omitted);
  RecordProperty("raced", raced);
  EXPECT_GE(raced, GetParam().least) << omitted << " programs lacked a call";
}

INSTANTIATE_TEST_SUITE_P(
    EachKind, Omissions,
    ::testing::Values(Case{DeviceCall::wait, 52}, Case{DeviceCall::record, 107},
                      Case{DeviceCall::query, 220}, Case{DeviceCall::synchronize, 12}),
    [](const auto& tested) { return std::string(name_of(tested.param.kind)); });

TEST(NoOmission, TheSameProgramsDoNotRace) {
  for (std::uint64_t seed = 1; seed <= kPrograms; ++seed) {
    const RunResult result =
        run(busy_program(seed), {.check_every = 0, .fault = {}, .sink = nullptr});
    ASSERT_FALSE(result.failure) << "seed " << seed << ": " << result.failure->what;
  }
}

}  // namespace
}  // namespace weir::test
