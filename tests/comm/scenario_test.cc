// SPDX-License-Identifier: Apache-2.0
// `weir comm scenario`, on simulated ranks: what holds, and that a fault is not missed.
#include "comm/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace weir {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Ranks wait for each other as long as a busy machine may need; where one fails, the others wait in
// vain, and shortly.
constexpr std::chrono::milliseconds kLong{60'000}, kShort{50};

OpenRanks scenario_ranks(std::function<void(SimWorld&)> opened = {}, int ranks = 2,
                         bool connects_at_once = true,
                         std::chrono::milliseconds host_timeout = kLong) {
  return [=](const RanksOptions& options) {
    return open_sim_ranks(
        {.ranks = ranks, .connects_at_once = connects_at_once, .host_timeout = host_timeout},
        options, opened);
  };
}
OpenRanks failing(int rank, std::uint64_t nth) {
  return scenario_ranks([=](SimWorld& world) { world.fail(rank, NcclCall::enqueue, nth); }, 2, true,
                        kShort);
}
OpenRanks hanging(int rank, std::uint64_t nth) {
  return scenario_ranks([=](SimWorld& world) { world.hang(rank, nth); }, 2, true, kShort);
}
void expect_holds(const ScenarioReport& report) {
  EXPECT_TRUE(report.holds()) << scenario_text(report);
}
// A failure may end a scenario, or be a case that does not hold; never pass.
void expect_fails(const std::function<ScenarioReport()>& run) {
  try {
    const ScenarioReport report = run();
    EXPECT_FALSE(report.holds()) << scenario_text(report);
  } catch (const Exception&) {
  }
}
const Aim& aim_of(const ScenarioReport& report, const std::string& what) {
  for (const Aim& aim : report.aims) {
    if (aim.what == what) return aim;
  }
  ADD_FAILURE() << "no aim " << what;
  return report.aims.front();
}
BucketsOptions small_models() {
  BucketsOptions options;
  options.models = {{256, 4}, {1024, 4}};
  return options;
}

TEST(Aims, NoneAtAllIsNoCure) {
  EXPECT_FALSE(ScenarioReport{}.holds());
  ScenarioReport report;
  report.aims.push_back({"", "", Bound::exactly, 1, 1});
  EXPECT_TRUE(report.holds());
  report.problems.emplace_back("a race");
  EXPECT_FALSE(report.holds());
}

TEST(ScenarioA, HoldsHoweverNcclConnects) {
  expect_holds(run_scenario_a(scenario_ranks()));
  expect_holds(run_scenario_a(scenario_ranks({}, 3, false)));
}

TEST(ScenarioA, SeesAnOperationThatFailsOrNeverEnds) {
  try {
    const ScenarioReport failed = run_scenario_a(failing(1, 1));
    EXPECT_FALSE(failed.holds());
    EXPECT_THAT(failed.problems, testing::Contains(HasSubstr("made to fail")));
  } catch (const Exception& error) {  // a rank so slow that the others, or the gathering, miss it
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("has not come"), HasSubstr("ranks came")));
  }
  const ScenarioReport hung =
      run_scenario_a(scenario_ranks([](SimWorld& world) { world.hang(0, 1); }));
  EXPECT_FALSE(hung.holds());
  EXPECT_THAT(scenario_text(hung), AllOf(HasSubstr("has not ended"), HasSubstr("DOES NOT HOLD")));
}

TEST(Scenarios, SeeAnOperationThatFailsOrNeverEnds) {
  for (const OpenRanks& ranks : {failing(0, 2), hanging(1, 2)}) {
    expect_fails([&] { return run_scenario_c(ranks, {.runs = 1}); });
    expect_fails([&] { return run_scenario_d(ranks); });
    expect_fails([&] { return run_scenario_e(ranks, small_models()); });
  }
}

TEST(ScenarioC, HoldsLittleMemoryAtFullSpeedAndGivesTheSameBytesInEveryRun) {
  const ScenarioReport report = run_scenario_c(scenario_ranks(), {});
  expect_holds(report);
  for (const std::string name : {"Weir", "Weir, captured"}) {
    const Aim& memory = aim_of(report, name + ": memory beyond the weights");
    EXPECT_EQ(memory.aim, 480);
    EXPECT_TRUE(memory.held()) << memory.reached;
    EXPECT_GE(memory.reached, 128);  // the input and one output
    EXPECT_TRUE(aim_of(report, name + ": runs of the same bytes").held());
  }
}

TEST(ScenarioC, SeesARunThatDiffers) {
  const OpenRanks alike = scenario_ranks();
  int opened = 0;
  const OpenRanks every_other = [&](RanksOptions options) {
    if (++opened % 2 == 0) options.heap.reuse = ReusePolicy::no_wait;
    return alike(options);
  };
  OverlapOptions options;
  options.runs = 2;
  const ScenarioReport report = run_scenario_c(every_other, options);
  const Aim& runs = aim_of(report, "Weir: runs of the same bytes");
  EXPECT_EQ(runs.reached, 1);
  EXPECT_FALSE(runs.held());
}

TEST(ScenarioC, MeasuresTheStepAgainstOneThatKeepsEveryBuffer) {
  OverlapOptions options;
  options.runs = 1;
  options.compute = 50'000_us;  // the all-reduce is nothing beside it
  expect_holds(run_scenario_c(scenario_ranks(), options));
  options.compute = 200_us;
  options.aim = 64_MiB;  // less than the input
  const ScenarioReport report = run_scenario_c(scenario_ranks(), options);
  EXPECT_FALSE(aim_of(report, "Weir: memory beyond the weights").held());
}

TEST(ScenarioD, HoldsOnTwoAndThreeRanks) {
  expect_holds(run_scenario_d(scenario_ranks()));
  expect_holds(run_scenario_d(scenario_ranks({}, 3, false)));
}

TEST(ScenarioE, HoldsWhereLaunchesDominateAndWhereTheyDoNot) {
  expect_holds(run_scenario_e(scenario_ranks(), small_models()));
  expect_holds(run_scenario_e(scenario_ranks(), {}));
}

TEST(ScenarioE, DoesNotHoldWhereALaunchCostsNothing) {
  BucketsOptions options = small_models();
  options.launch = 0_ns;
  const ScenarioReport report = run_scenario_e(scenario_ranks(), options);
  EXPECT_FALSE(report.aims.front().held()) << scenario_text(report);
}

// There is no telling which GPUs the machine has; but no launch is taken that is broken.
std::string refusal(const Environment& environment, int ranks) {
  try {
    (void)cuda_ranks(environment, ranks);
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

TEST(CudaRanks, AreOfALaunchThatIsWholeAndNoMoreThanTheGpus) {
  EXPECT_THAT(refusal({{"WEIR_RANK", "8"}, {"WEIR_WORLD_SIZE", "8"}}, 0), HasSubstr("WEIR_RANK"));
  EXPECT_THAT(refusal({}, 1000), testing::AnyOf(HasSubstr("--ranks 1000"), HasSubstr("libcuda"),
                                                HasSubstr("no kernels for GPUs")));
}

}  // namespace
}  // namespace weir
