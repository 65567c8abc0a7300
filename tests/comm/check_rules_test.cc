// SPDX-License-Identifier: Apache-2.0
// Each rule speaks where something is wrong, and is silent where nothing is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tests/comm/check_machines.h"
#include "tests/comm/check_rules_cases.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using test::Change;
using test::kSilent;
using test::kSpoken;
using test::Silent;
using test::Spoken;

using enum Severity;

Findings found(const char* id, const EnvironmentVariables& environment, const Change& change) {
  Machine machine = test::eight_gpus();
  change(machine);
  Findings findings;
  for (Finding& finding : examine(machine, test::settings_of(environment))) {
    if (finding.id == id) findings.push_back(std::move(finding));
  }
  return findings;
}

TEST(CheckRules, SpeakWhereSomethingIsWrong) {
  for (std::size_t i = 0; i < kSpoken.size(); ++i) {
    const Spoken& speaks = kSpoken[i];
    SCOPED_TRACE(std::string(speaks.id) + ", case " + std::to_string(i));
    const Findings findings = found(speaks.id, speaks.environment, speaks.change);
    const bool said = std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
      const std::string all = finding.what + '\n' + finding.why + '\n' + finding.remedy;
      return finding.severity == speaks.severity && all.find(speaks.says) != std::string::npos &&
             !finding.what.empty() && !finding.why.empty() && !finding.remedy.empty();
    });
    EXPECT_TRUE(said) << findings.size() << " findings: "
                      << (findings.empty() ? "" : findings[0].what + "; " + findings[0].why);
  }
}

TEST(CheckRules, AreSilentWhereNothingIs) {
  for (std::size_t i = 0; i < kSilent.size(); ++i) {
    const Silent& quiet = kSilent[i];
    const Findings findings = found(quiet.id, quiet.environment, quiet.change);
    EXPECT_THAT(findings, IsEmpty()) << quiet.id << ", case " << i << ": " << findings[0].what;
  }
}

TEST(CheckRules, AllHaveACaseOfEach) {
  std::set<std::string_view> speak, quiet, ids;
  for (const Spoken& one : kSpoken) speak.insert(one.id);
  for (const Silent& one : kSilent) quiet.insert(one.id);
  for (const std::string_view id : rule_ids()) {
    EXPECT_TRUE(speak.contains(id)) << id;
    EXPECT_TRUE(quiet.contains(id)) << id;
    EXPECT_TRUE(ids.insert(id).second) << id << " is in the table twice";
  }
  EXPECT_EQ(speak, ids);  // no case is of a rule that is no more
  EXPECT_EQ(quiet, ids);
}

TEST(CheckRules, FindNothingOnASoundMachine) {
  EXPECT_THAT(examine(test::eight_gpus(), {}), IsEmpty());
  const Machine nothing_at_all{.root = "/"};
  EXPECT_THAT(examine(nothing_at_all, {}), IsEmpty());
}

TEST(CheckRules, PutErrorsFirst) {
  const Settings settings = test::settings_of({{"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
                                               {"NCCL_CUMEM_ENABLE", "0"},
                                               {"NCCL_COMM_BLOCKING", "0"}});
  const Findings findings = examine(test::eight_gpus(), settings);
  ASSERT_THAT(findings, SizeIs(3));
  EXPECT_EQ(findings[0].severity, error);
  EXPECT_EQ(findings[1].severity, warning);
  EXPECT_EQ(findings[2].severity, note);
  EXPECT_TRUE(has_error(findings));
  EXPECT_FALSE(has_error({findings[1], findings[2]}));
}

TEST(CheckRules, CutValuesThatAreLong) {
  const Settings settings =
      test::settings_of({{"NCCL_GRAPH_REGISTER", "1" + std::string(100000, 'x')}});
  const Findings findings = examine(test::eight_gpus(), settings);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_LT(findings[0].what.size(), 300u);
}

}  // namespace
}  // namespace weir
