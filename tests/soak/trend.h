// SPDX-License-Identifier: Apache-2.0
// Does a quantity grow? A line is fitted through the second half of its samples.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace weir::soak {

// A quantity that was sampled again and again. It grows if the line rises by more than noise
// explains, and by more than `slack` and `share` of its mean over the second half.
struct Series {
  std::string name;
  double slack = 0;
  double share = 0;
  std::vector<double> times;  // in seconds
  std::vector<double> values;
};

struct Trend {
  double start = 0, middle = 0, end = 0;  // means of the first, middle and last twentieth
  double per_minute = 0;                  // the line's slope
  double growth = 0;                      // the line's rise over the second half
  double t = 0;                           // slope by its standard error; capped at 1e6
  double allowed = 0;                     // growth that is no reason to fail
  bool judged = false;                    // false: too few samples
  bool grows = false;
};

// Samples close in time are alike, which would make noise look certain: where there are many, the
// line goes through the means of kBatches successive batches.
inline constexpr std::size_t kBatches = 20;
inline constexpr std::size_t kLeastSamples = 5;  // in the second half
inline constexpr double kCertain = 4;            // t from which a slope is no noise
Trend trend_of(const Series& series);

bool any_judged(const std::vector<Series>& all);

// One line for each series. Returns the names of those that grow.
std::vector<std::string> print_trends(const std::vector<Series>& all, std::ostream& out);

// Samples in a file: a header "seconds,NAME:SLACK:SHARE,...", then a line for each moment. An
// exception (std::runtime_error) says what is wrong with it.
std::vector<Series> read_samples(std::istream& in);

}  // namespace weir::soak
