// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/trend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <sstream>

namespace weir::soak {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// `count` samples, one a second.
Series series(std::size_t count, const std::function<double(double)>& value, double slack = 1,
              double share = 0) {
  Series made{.name = "made", .slack = slack, .share = share, .times = {}, .values = {}};
  for (std::size_t i = 0; i < count; ++i) {
    made.times.push_back(static_cast<double>(i));
    made.values.push_back(value(static_cast<double>(i)));
  }
  return made;
}

TEST(Trend, OfWhatStaysTheSameIsFlat) {
  const Trend trend = trend_of(series(200, [](double) { return 7; }));
  EXPECT_TRUE(trend.judged);
  EXPECT_FALSE(trend.grows);
  EXPECT_EQ(trend.per_minute, 0);
  EXPECT_EQ(trend.end, 7);
}

TEST(Trend, OfNoiseIsFlat) {
  int grew = 0;
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(1000, 50);
    // Slack alone must not be what decides.
    grew += trend_of(series(
                         200, [&](double) { return noise(random); }, 0))
                    .grows
                ? 1
                : 0;
  }
  EXPECT_LE(grew, 3);
}

TEST(Trend, IsJudgedByItsShape) {
  using Value = double (*)(double);
  const struct {
    const char* what;
    std::size_t count;
    double slack;
    Value value;
    bool judged, grows;
  } rows[] = {
      {"one more in each sample", 10, 1, [](double at) { return 20 + at; }, true, true},
      {"a warm-up", 200, 1, [](double at) { return at < 90 ? at : 90; }, true, false},
      {"a fall", 200, 1, [](double at) { return 1000 - at; }, true, false},
      {"a step of the slack", 200, 1, [](double at) { return at < 150 ? 0.0 : 1.0; }, true, false},
      {"a higher step", 200, 1, [](double at) { return at < 150 ? 0.0 : 2.0; }, true, true},
      {"less than the slack", 200, 2, [](double at) { return 1000 + at / 100; }, true, false},
      {"more than the slack", 200, 0.5, [](double at) { return 1000 + at / 100; }, true, true},
      {"too few samples", 8, 1, [](double at) { return at; }, false, false},
      {"none", 0, 1, [](double at) { return at; }, false, false}};
  for (const auto& row : rows) {
    const Trend trend = trend_of(series(row.count, row.value, row.slack));
    EXPECT_EQ(trend.judged, row.judged) << row.what;
    EXPECT_EQ(trend.grows, row.grows) << row.what;
  }
}

// Each sample has much of the one before, as sizes of live memory have.
TEST(Trend, OfNoiseThatLastsIsSeldomMoreThanTheSlack) {
  int grew = 0;
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(0, 10);
    double level = 0;
    const auto value = [&](double) { return 1000 + (level = 0.8 * level + noise(random)); };
    grew += trend_of(series(400, value, 0, 0.02)).grows ? 1 : 0;
  }
  EXPECT_LE(grew, 3);
}

TEST(Trend, OfASmallLeakUnderNoiseIsSeen) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(1000, 5);
    const Trend trend = trend_of(series(
        200, [&](double at) { return noise(random) + at / 4; }, 10, 0.01));
    EXPECT_TRUE(trend.grows) << seed;
    EXPECT_NEAR(trend.per_minute, 15, 5);
    EXPECT_NEAR(trend.growth, 25, 8);
  }
}

TEST(Trend, IsPrintedWithItsVerdict) {
  std::ostringstream out;
  const Series flat = series(20, [](double) { return 5; });
  Series leak = series(20, [](double at) { return at; });
  leak.name = "descriptors";
  EXPECT_THAT(print_trends({flat, leak}, out), ElementsAre("descriptors"));
  EXPECT_THAT(out.str(), HasSubstr("GROWS"));
  EXPECT_THAT(out.str(), HasSubstr("flat"));
}

TEST(Trend, OfSamplesInAFile) {
  std::istringstream in("seconds,resident:1024:0.01,threads:0:0\n0,100,3\n1,,4\n2,300,5\n");
  const std::vector<Series> all = read_samples(in);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].name, "resident");
  EXPECT_EQ(all[0].slack, 1024);
  EXPECT_EQ(all[0].share, 0.01);
  EXPECT_THAT(all[0].times, ElementsAre(0, 2));
  EXPECT_THAT(all[0].values, ElementsAre(100, 300));
  EXPECT_THAT(all[1].values, ElementsAre(3, 4, 5));
}

TEST(Trend, OfAFileThatIsWrongIsAnError) {
  for (const char* const text :
       {"", "time,a:0:0\n", "seconds,a\n", "seconds,a:x:0\n", "seconds,a:0:0\n1\n",
        "seconds,a:0:0\n1,2,3\n", "seconds,a:0:0\n1,two\n"}) {
    std::istringstream in(text);
    EXPECT_THROW(read_samples(in), std::runtime_error) << text;
  }
}

TEST(Trend, SamplesOfNoTimeAreNotJudged) {
  Series series{.name = "x", .slack = 1, .share = 0, .times = {}, .values = {}};
  EXPECT_FALSE(any_judged({series}));
  for (int i = 0; i < 40; ++i) {
    series.times.push_back(i);
    series.values.push_back(7);
  }
  EXPECT_TRUE(any_judged({series}));
  EXPECT_FALSE(any_judged({}));
}

}  // namespace
}  // namespace weir::soak
