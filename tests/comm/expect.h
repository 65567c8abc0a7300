// SPDX-License-Identifier: Apache-2.0
// Outcomes of calls, as tests expect them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weir/graph_pool.h"
#include "weir/result.h"

namespace weir::test {

// Of a Status or a Result.
template <class Outcome>
void expect_ok(const Outcome& outcome) {
  EXPECT_TRUE(outcome.ok()) << (outcome.ok() ? "" : outcome.error().message());
}
// The value, where there is one.
template <class Value>
Value got(Result<Value> result) {
  expect_ok(result);
  return result.ok() ? *std::move(result) : Value();
}
template <class Outcome>
void expect_error(const Outcome& outcome, ErrorCode code, const std::string& says) {
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code(), code) << outcome.error().message();
  EXPECT_THAT(outcome.error().message(), testing::HasSubstr(says));
}

// A capture of a rank's compute stream.
template <class Rank>
CaptureScope begin(const Rank& rank, GraphPool& pool, CaptureMode mode = CaptureMode::global) {
  return *CaptureScope::begin(pool, rank.compute, mode);
}
// Calls `work` for each, in threads of their own.
template <class Ranks>
void on_each(Ranks& ranks, const auto& work) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { work(rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace weir::test
