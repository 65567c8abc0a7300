// SPDX-License-Identifier: Apache-2.0
// Outcomes of calls, as tests expect them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

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

}  // namespace weir::test
