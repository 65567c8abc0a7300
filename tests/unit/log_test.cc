// SPDX-License-Identifier: Apache-2.0
#include "weir/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/temporary_folder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Log : public ::testing::Test {
 protected:
  ~Log() override { EXPECT_TRUE(configure_log(LogLevel::warn).ok()); }

  // Closes the file by going back to stderr, and reads it.
  std::string written() {
    EXPECT_TRUE(configure_log(LogLevel::warn).ok());
    return test::content_of(path_);
  }

  const test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "log";
};

TEST_F(Log, IsQuietByDefaultAndSpeaksOfTroubleOnStderr) {
  ASSERT_TRUE(configure_log(LogLevel::warn).ok());
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  log(LogLevel::debug, "a detail");
  log(LogLevel::info, "some news");
  log(LogLevel::warn, "some trouble");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("[weir] warning: some trouble"), Not(HasSubstr("detail")),
                    Not(HasSubstr("news"))));
}

// A typing error in a path: the log would be where nobody looks for it.
TEST_F(Log, AFolderThatIsNotThereIsAnErrorAndIsNotMade) {
  const std::string folder = path_ + ".folder";
  const Status status = configure_log(LogLevel::debug, folder + "/log");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::invalid_input);
  EXPECT_THAT(status.error().message(),
              AllOf(HasSubstr(folder + "/log"), HasSubstr("there is no folder " + folder + ":")));
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_FALSE(log_enabled(LogLevel::debug));
}

TEST_F(Log, AnEventIsWrittenWithAllThatItSays) {
  const Event event{.kind = EventKind::host_wait,
                    .heap = {2},
                    .time = {1500},
                    .stream = 7,
                    .other = 8,
                    .address = {0x2000000},
                    .bytes = 1_KiB,
                    .requested = 1000_B,
                    .sequence = {9},
                    .duration = {250}};
  EXPECT_EQ(describe(event),
            "host_wait heap=2 stream=7 other=8 address=0x2000000 bytes=1024 requested=1000 "
            "sequence=9 duration_ns=250 time_ns=1500");
  EXPECT_EQ(describe(Event{}), "allocate heap=0 time_ns=0");
}

TEST_F(Log, EachLevelWritesItselfAndWhatIsWorse) {
  const LogLevel levels[] = {LogLevel::error, LogLevel::warn, LogLevel::info, LogLevel::debug};
  for (const LogLevel level : levels) {
    std::filesystem::remove(path_);
    ASSERT_TRUE(configure_log(level, path_).ok());
    for (const LogLevel message : levels)
      log(message, "a message of " + std::string(name_of(message)));
    const std::string log = written();
    for (const LogLevel message : levels) {
      const bool is_written =
          log.find("a message of " + std::string(name_of(message))) != std::string::npos;
      EXPECT_EQ(is_written, message <= level) << name_of(message) << " at " << name_of(level);
    }
  }
}

// Whatever ends the process next.
TEST_F(Log, AWarningIsInTheFileAtOnce) {
  ASSERT_TRUE(configure_log(LogLevel::info, path_).ok());
  log(LogLevel::warn, "some trouble");
  EXPECT_THAT(test::content_of(path_), HasSubstr("some trouble"));
}

TEST_F(Log, RunningOutOfMemoryIsAWarning) {
  LogSink sink;
  Event event;
  event.kind = EventKind::out_of_memory;
  event.stream = 3;
  event.requested = 4_GiB;
  ASSERT_TRUE(configure_log(LogLevel::warn, path_).ok());
  sink.on_event(event);
  EXPECT_THAT(written(), HasSubstr("warning: out_of_memory heap=0 stream=3 requested=4294967296"));
}

}  // namespace
}  // namespace weir
