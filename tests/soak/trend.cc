// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/trend.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <istream>
#include <limits>
#include <numeric>
#include <ostream>
#include <span>
#include <sstream>
#include <stdexcept>

namespace weir::soak {
namespace {

constexpr double kMostT = 1e6;

double mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Means of successive batches, all but the same in size.
std::vector<double> batches(std::span<const double> values) {
  if (values.size() < 2 * kBatches) return {values.begin(), values.end()};
  std::vector<double> means;
  for (std::size_t i = 0; i < kBatches; ++i) {
    const std::size_t from = i * values.size() / kBatches;
    const std::size_t to = (i + 1) * values.size() / kBatches;
    means.push_back(mean(values.subspan(from, to - from)));
  }
  return means;
}

// Without the blanks around it.
std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \r\t");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \r\t") - first + 1);
}

double number(const std::string& text) {
  std::size_t read = 0;
  double value = 0;
  try {
    value = std::stod(text, &read);
  } catch (const std::logic_error&) {
    read = 0;
  }
  if (read == 0 || read != text.size()) throw std::runtime_error("'" + text + "' is no number");
  return value;
}

std::vector<std::string> split(const std::string& line, char at) {
  std::vector<std::string> parts;
  std::istringstream in(line);
  for (std::string part; std::getline(in, part, at);) parts.push_back(trimmed(part));
  if (line.ends_with(at)) parts.emplace_back();  // which getline() does not give
  return parts;
}

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(value) < 100 ? "%.2f" : "%.0f", value);
  return text;
}

}  // namespace

Trend trend_of(const Series& series) {
  Trend trend;
  const std::span<const double> values = series.values;
  const std::size_t count = values.size();
  if (count == 0) return trend;
  const std::size_t part = std::max<std::size_t>(1, count / 20);
  trend.start = mean(values.first(part));
  trend.middle = mean(values.subspan(std::min(count / 2, count - part), part));
  trend.end = mean(values.last(part));

  const std::size_t half = count / 2;
  const std::vector<double> x = batches(std::span(series.times).subspan(half));
  const std::vector<double> y = batches(values.subspan(half));
  if (x.size() < kLeastSamples) return trend;
  const double mx = mean(x), my = mean(y);
  double xx = 0, xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mx) * (x[i] - mx);
    xy += (x[i] - mx) * (y[i] - my);
  }
  if (xx <= 0) return trend;
  trend.judged = true;
  const double slope = xy / xx;
  double residual = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double off = y[i] - my - slope * (x[i] - mx);
    residual += off * off;
  }
  const double error = std::sqrt(residual / static_cast<double>(x.size() - 2) / xx);
  trend.per_minute = slope * 60;
  // A line through one step rises by half as much again as the step.
  const auto [least, most] = std::ranges::minmax(values.subspan(half));
  trend.growth = std::min(slope * (series.times.back() - series.times[half]), most - least);
  // Where all lie on the line, its slope is certain.
  const double rounding = std::numeric_limits<double>::epsilon() * std::abs(my);
  const double noise = std::max(error, rounding / (x.back() - x.front()));
  trend.t = slope == 0 ? 0 : std::clamp(slope / noise, -kMostT, kMostT);
  trend.allowed = std::max(series.slack, series.share * std::abs(my));
  trend.grows = trend.t > kCertain && trend.growth > trend.allowed;
  return trend;
}

bool any_judged(const std::vector<Series>& all) {
  return std::any_of(all.begin(), all.end(),
                     [](const Series& series) { return trend_of(series).judged; });
}

std::vector<std::string> print_trends(const std::vector<Series>& all, std::ostream& out) {
  std::vector<std::string> growing;
  char line[256];
  std::snprintf(line, sizeof line, "%-34s %13s %13s %13s %12s %8s %11s %11s  %s\n", "quantity",
                "start", "middle", "end", "per minute", "t", "growth", "allowed", "verdict");
  out << line;
  for (const Series& series : all) {
    const Trend trend = trend_of(series);
    if (trend.grows) growing.push_back(series.name);
    const char* const verdict = trend.grows ? "GROWS" : (trend.judged ? "flat" : "not judged");
    std::snprintf(line, sizeof line, "%-34s %13s %13s %13s %12s %8s %11s %11s  %s\n",
                  series.name.c_str(), shown(trend.start).c_str(), shown(trend.middle).c_str(),
                  shown(trend.end).c_str(), shown(trend.per_minute).c_str(), shown(trend.t).c_str(),
                  shown(trend.growth).c_str(), shown(trend.allowed).c_str(), verdict);
    out << line;
  }
  return growing;
}

std::vector<Series> read_samples(std::istream& in) {
  std::string line;
  if (!std::getline(in, line)) throw std::runtime_error("there is no header");
  std::vector<std::string> header = split(line, ',');
  if (header.size() < 2 || header.front() != "seconds") {
    throw std::runtime_error("the header is not 'seconds,NAME:SLACK:SHARE,...'");
  }
  std::vector<Series> all;
  for (std::size_t i = 1; i < header.size(); ++i) {
    const std::vector<std::string> parts = split(header[i], ':');
    if (parts.size() != 3) throw std::runtime_error("'" + header[i] + "' is not NAME:SLACK:SHARE");
    all.push_back({.name = parts[0],
                   .slack = number(parts[1]),
                   .share = number(parts[2]),
                   .times = {},
                   .values = {}});
  }
  while (std::getline(in, line)) {
    if (trimmed(line).empty()) continue;
    const std::vector<std::string> fields = split(line, ',');
    if (fields.size() != header.size()) {
      throw std::runtime_error("'" + line + "' has " + std::to_string(fields.size()) + " fields");
    }
    const double time = number(fields[0]);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (fields[i + 1].empty()) continue;  // not sampled then
      all[i].times.push_back(time);
      all[i].values.push_back(number(fields[i + 1]));
    }
  }
  return all;
}

}  // namespace weir::soak
