// SPDX-License-Identifier: Apache-2.0
// Scenarios A and D on GPUs, where data moves: operations of every kind, in each capture mode, as a
// communicator's first or not. (On simulated ranks: scenario_test.cc.)
#include <gtest/gtest.h>

#include "comm/scenario.h"

namespace weir {
namespace {

void expect_holds_on_gpus(ScenarioReport (*run)(const OpenRanks&)) {
  OpenRanks open;
  try {
    open = cuda_ranks({}, 0);
  } catch (const Exception& none) {
    GTEST_SKIP() << none.what();
  }
  const ScenarioReport report = run(open);
  EXPECT_TRUE(report.holds()) << scenario_text(report);
}

TEST(ScenarioOnGpus, AHolds) { expect_holds_on_gpus(run_scenario_a); }
TEST(ScenarioOnGpus, DHolds) { expect_holds_on_gpus(run_scenario_d); }

}  // namespace
}  // namespace weir
