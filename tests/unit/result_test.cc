// SPDX-License-Identifier: Apache-2.0
#include "weir/result.h"

#include <gtest/gtest.h>

#include <string>

namespace weir {
namespace {

Error sample() { return {ErrorCode::unknown_pointer, "0x10 is not a live block"}; }

TEST(Result, HoldsWhyThereIsNoValue) {
  const Result<int> result = sample();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::unknown_pointer);
  EXPECT_EQ(result.error().message(), "0x10 is not a live block");
}

TEST(ResultDeathTest, TheValueOfAFailureAbortsAndSaysWhy) {
  const Result<int> result = sample();
  EXPECT_DEATH((void)result.value(), "because: 0x10 is not a live block \\(unknown_pointer\\)");
}

TEST(Error, ACopyOutlivesTheOriginal) {
  Error copy{ErrorCode::device, ""};
  {
    const Error original = sample();
    copy = original;
    EXPECT_EQ(original.message(), copy.message());
  }
  EXPECT_EQ(copy.message(), "0x10 is not a live block");
}

TEST(Error, EveryCodeHasANameOfItsOwn) {
  EXPECT_EQ(name_of(ErrorCode::out_of_memory), "out_of_memory");
  EXPECT_EQ(name_of(ErrorCode::invalid_argument), "invalid_argument");
  EXPECT_EQ(name_of(ErrorCode::unknown_pointer), "unknown_pointer");
  EXPECT_EQ(name_of(ErrorCode::device), "device");
  EXPECT_EQ(name_of(ErrorCode::capture), "capture");
  EXPECT_EQ(name_of(ErrorCode::unavailable), "unavailable");
  EXPECT_EQ(name_of(ErrorCode::invalid_input), "invalid_input");
  EXPECT_EQ(name_of(ErrorCode::asleep), "asleep");
}

}  // namespace
}  // namespace weir
