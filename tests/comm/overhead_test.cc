// SPDX-License-Identifier: Apache-2.0
// `weir comm bench`: sizes, definitions, and runs on simulated ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/scenario.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

OpenRanks sim_ranks(int ranks = 2, std::function<void(SimWorld&)> opened = {},
                    std::chrono::milliseconds host_timeout = std::chrono::seconds(60)) {
  return [=](const RanksOptions& options) {
    return open_sim_ranks({.ranks = ranks, .host_timeout = host_timeout}, options, opened);
  };
}
OverheadOptions small() {
  OverheadOptions options;
  options.least = 64_KiB;
  options.most = 256_KiB;
  options.factor = 4;
  options.operations_a_round = 4;
  options.rounds = 3;
  return options;
}
ScenarioReport run(const OverheadOptions& options, const OpenRanks& open = sim_ranks()) {
  return run_overhead(open, options);
}
std::string refusal(const OverheadOptions& options, const OpenRanks& open = sim_ranks()) {
  try {
    (void)run_overhead(open, options);
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}
double cell(const ScenarioReport& report, std::size_t row, std::size_t column) {
  return std::stod(report.tables.at(0).rows.at(row).at(column));
}

TEST(Overhead, BandwidthIsWhatNcclTestsDefine) {
  EXPECT_DOUBLE_EQ(bus_bandwidth(OperationKind::all_reduce, 4'000'000_B, 1e-3, 4), 4 * 1.5);
  EXPECT_DOUBLE_EQ(bus_bandwidth(OperationKind::all_gather, 4'000'000_B, 1e-3, 4), 4 * .75);
  EXPECT_EQ(bus_bandwidth(OperationKind::all_reduce, 4'000'000_B, 0, 4), 0);
}

TEST(Overhead, IsMeasuredEagerlyAndInGraphsOnEitherStream) {
  for (const bool captured : {false, true}) {
    for (const bool overlap : {false, true}) {
      OverheadOptions options = small();
      options.captured = captured;
      options.overlap = overlap;
      const ScenarioReport report = run(options, sim_ranks(3));
      EXPECT_TRUE(report.holds());
      EXPECT_THAT(report.problems, IsEmpty());
      ASSERT_EQ(report.tables.at(0).rows.size(), 2u);
      EXPECT_EQ(scenario_text(report).find("caller's stream") == std::string::npos, overlap);
      EXPECT_EQ(scenario_text(report).find("launch of a graph") != std::string::npos, captured);
    }
  }
}

TEST(Overhead, IsTheHostsTimeBesideNcclsOwn) {
  OverheadOptions options = small();
  const auto added = [&] { return cell(run(options), 0, 9); };
  const double on_the_callers = added();
  EXPECT_GT(on_the_callers, 0);
  options.overlap = true;
  EXPECT_GT(added(), on_the_callers);
  const ScenarioReport report = run(small());
  EXPECT_GE(cell(report, 0, 2), 15);  // the latency of the simulated NCCL, in us
  EXPECT_NEAR(cell(report, 0, 6), 1, .5);
}

TEST(Overhead, IsMeasuredOfEachOperationThatIsNamed) {
  OverheadOptions options = small();
  options.kinds = {OperationKind::all_gather, OperationKind::reduce_scatter};
  const ScenarioReport report = run(options, sim_ranks(3));
  ASSERT_EQ(report.tables[0].rows.size(), 4u);
  EXPECT_EQ(report.tables[0].rows[0][0], "all-gather");
  EXPECT_EQ(report.tables[0].rows[0][1], "65520") << "three parts of whole multiples of 16 bytes";
  EXPECT_EQ(report.tables[0].rows[3][0], "reduce-scatter");
  options.least = options.most = 1_B;
  const ScenarioReport smallest = run(options, sim_ranks(3));
  EXPECT_EQ(smallest.tables.at(0).rows.at(0).at(1), "48") << "no empty parts";
  EXPECT_EQ(smallest.aims.at(0).what, "races and disagreements") << "no data moves";
}

TEST(Overhead, OfAnOperationThatFailsOrHangsIsAnError) {
  const auto failing = [](SimWorld& world) { world.fail(1, NcclCall::enqueue, 3); };
  EXPECT_THAT(refusal(small(), sim_ranks(2, failing, std::chrono::milliseconds(50))),
              HasSubstr("made to fail"));
  const auto hanging = [](SimWorld& world) { world.hang(0, 3); };
  EXPECT_THAT(refusal(small(), sim_ranks(2, hanging, std::chrono::milliseconds(50))),
              HasSubstr("has not ended"));
}

}  // namespace
}  // namespace weir
