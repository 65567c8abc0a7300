// SPDX-License-Identifier: Apache-2.0
// On every recorded trace the parts of a report add up, and its peaks are those of the replay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "look/block_lifetimes.h"
#include "look/load.h"
#include "look/report.h"
#include "replay/report_table.h"

namespace weir {
namespace {

std::vector<std::string> traces() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator("bench/traces")) {
    if (entry.path().string().ends_with(".trace.gz")) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Bytes sum_of(const std::vector<Share>& shares) {
  Bytes sum;
  for (const Share& share : shares) sum += share.bytes;
  return sum;
}

void expect_that_it_adds_up(const Moment& moment) {
  EXPECT_EQ(moment.unplaced, 0_B);
  Bytes causes;
  for (const Bytes bytes : moment.causes) causes += bytes;
  EXPECT_EQ(moment.requested + causes, moment.reserved);
  for (const auto& shares : {moment.by_stream, moment.by_pool, moment.by_size, moment.by_stack}) {
    EXPECT_EQ(sum_of(shares), moment.live);
  }
}

TEST(ReportOnTraces, PartsAddUpAtEveryMoment) {
  ASSERT_GE(traces().size(), 20U);
  for (const std::string& path : traces()) {
    SCOPED_TRACE(path);
    const Result<Loaded> recording = load(path);
    ASSERT_TRUE(recording.ok()) << recording.error().message();
    const std::size_t half = (recording->initial + recording->events.size()) / 2;
    const Report report = report_of(*recording, {.at = half});
    expect_that_it_adds_up(report.peak_live);
    expect_that_it_adds_up(report.peak_reserved);
    expect_that_it_adds_up(report.end);
    expect_that_it_adds_up(*report.at);
    const BlockLifetimes lifetimes = lifetimes_of(*recording);
    EXPECT_EQ(report.peak_live.live, lifetimes.peak_live.live);
    EXPECT_EQ(report.peak_reserved.reserved, lifetimes.peak_reserved.reserved);
    EXPECT_GT(report.peak_live.live, 1_MiB);
  }
}

TEST(ReportOnTraces, NoLineIsTooWide) {
  for (const std::string& path : traces()) {
    const Result<Loaded> recording = load(path);
    ASSERT_TRUE(recording.ok()) << recording.error().message();
    std::string text = report_text(report_of(*recording));
    for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      EXPECT_LE(width_of(text.substr(0, end)), report_width())
          << path << ": " << text.substr(0, end);
    }
  }
}

}  // namespace
}  // namespace weir
