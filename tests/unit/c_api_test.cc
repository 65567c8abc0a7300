// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <thread>

#include "weir/weir.h"

extern "C" int run_c_program(char* message, std::size_t room);

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array kSimSettings = {weir_setting_t{"WEIR_DEVICE", "sim"},
                                     weir_setting_t{"WEIR_LOG", "off"}};

weir_options_t sim_options() {
  weir_options_t options = WEIR_OPTIONS_INIT;
  options.settings = kSimSettings.data();
  options.settings_count = kSimSettings.size();
  options.ignore_environment = 1;
  return options;
}

class CApi : public ::testing::Test {
 protected:
  void SetUp() override {
    const weir_options_t options = sim_options();
    ASSERT_EQ(weir_create(&options, &allocator_), WEIR_OK) << weir_last_error();
  }
  void TearDown() override { weir_destroy(allocator_); }
  weir_allocator_t* allocator_ = nullptr;
};

TEST(CApiProgram, InCRunsToItsEnd) {
  std::array<char, 512> message{};
  EXPECT_EQ(run_c_program(message.data(), message.size()), 0) << message.data();
}

TEST(CApiOptions, AnUnknownSettingIsAnErrorThatNamesIt) {
  const weir_setting_t setting = {"WEIR_LIMITS", "1GiB"};
  weir_options_t options = WEIR_OPTIONS_INIT;
  options.settings = &setting;
  options.settings_count = 1;
  weir_allocator_t* allocator = nullptr;
  EXPECT_EQ(weir_create(&options, &allocator), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(allocator, nullptr);
  EXPECT_THAT(weir_last_error(), AllOf(HasSubstr("WEIR_LIMITS"), HasSubstr("WEIR_LIMIT?")));
}

TEST(CApiOptions, OptionsMustSayTheirSizeAndHoldWhatTheyCount) {
  weir_allocator_t* allocator = nullptr;
  weir_options_t options = sim_options();
  options.size = 0;
  EXPECT_EQ(weir_create(&options, &allocator), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("size"));
  options = sim_options();
  options.settings = nullptr;
  EXPECT_EQ(weir_create(&options, &allocator), WEIR_INVALID_ARGUMENT);
  const weir_setting_t nameless = {nullptr, "1"};
  options.settings = &nameless;
  options.settings_count = 1;
  EXPECT_EQ(weir_create(&options, &allocator), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_create(&options, nullptr), WEIR_INVALID_ARGUMENT);
}

TEST(CApiOptions, ANewerProgramsLargerOptionsAreTaken) {
  struct Newer {
    weir_options_t known;
    int unknown;
  } newer{sim_options(), 7};
  newer.known.size = sizeof(newer);
  weir_allocator_t* allocator = nullptr;
  EXPECT_EQ(weir_create(&newer.known, &allocator), WEIR_OK) << weir_last_error();
  weir_destroy(allocator);
}

TEST(CApiNull, ANullAllocatorIsAnError) {
  void* block = nullptr;
  EXPECT_EQ(weir_allocate(nullptr, 1, nullptr, 0, &block), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_deallocate(nullptr, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_fence(nullptr, &block, 1, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_record_stream(nullptr, nullptr, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_retire(nullptr, nullptr, 0), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_trim(nullptr, 0, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_set_limit(nullptr, 0, 0), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_validate(nullptr, nullptr), WEIR_INVALID_ARGUMENT);
  weir_statistics_t statistics = WEIR_STATISTICS_INIT;
  EXPECT_EQ(weir_statistics(nullptr, 0, &statistics), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_sim_new_stream(nullptr, 0, &block), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("allocator is null"));
  weir_destroy(nullptr);
}

TEST_F(CApi, ANullOutputIsAnError) {
  EXPECT_EQ(weir_allocate(allocator_, 1, nullptr, 0, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_statistics(allocator_, 0, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_fence(allocator_, nullptr, 1, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_fence(allocator_, nullptr, 0, nullptr), WEIR_OK);
  EXPECT_EQ(weir_trim(allocator_, 0, nullptr), WEIR_OK);
  EXPECT_EQ(weir_validate(allocator_, nullptr), WEIR_OK);
  const auto expect_named = [](weir_status_t status, const char* name) {
    EXPECT_EQ(status, WEIR_INVALID_ARGUMENT);
    EXPECT_THAT(weir_last_error(), HasSubstr(std::string(name) + " is null"));
  };
  expect_named(weir_sim_new_stream(allocator_, 0, nullptr), "stream");
  expect_named(weir_record_mark(allocator_, nullptr), "text");
  expect_named(weir_record_start(allocator_, nullptr), "path");
  expect_named(weir_record_write(allocator_, nullptr), "path");
  expect_named(weir_write_snapshot(allocator_, 0, nullptr), "path");
}

TEST_F(CApi, ADeviceThatIsNotThereIsAnError) {
  void* block = &block;
  EXPECT_EQ(weir_allocate(allocator_, 1, nullptr, 9, &block), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(block, nullptr);
  EXPECT_THAT(weir_last_error(), HasSubstr("device 9"));
}

TEST_F(CApi, AnOlderProgramsSmallerStatisticsAreNotOverrun) {
  struct {
    weir_statistics_t statistics;
  } older{};
  void* block = nullptr;
  ASSERT_EQ(weir_allocate(allocator_, 512, nullptr, 0, &block), WEIR_OK);
  const std::size_t known = offsetof(weir_statistics_t, live_bytes);
  older.statistics.size = known;
  older.statistics.live_bytes = 77;  // beyond what the program says it knows
  ASSERT_EQ(weir_statistics(allocator_, 0, &older.statistics), WEIR_OK);
  EXPECT_EQ(older.statistics.size, known);
  EXPECT_EQ(older.statistics.live_blocks, 1u);
  EXPECT_EQ(older.statistics.live_bytes, 77u);
  older.statistics.size = 0;
  EXPECT_EQ(weir_statistics(allocator_, 0, &older.statistics), WEIR_INVALID_ARGUMENT);
}

TEST_F(CApi, DriverCallsAreCountedByKindAndTimedIfAsked) {
  for (const bool timed : {false, true}) {
    const weir_setting_t settings[] = {{"WEIR_DEVICE", "sim"},
                                       {"WEIR_TIME_DRIVER", timed ? "1" : "0"}};
    weir_options_t options = sim_options();
    options.settings = settings;
    options.settings_count = std::size(settings);
    weir_allocator_t* allocator = nullptr;
    ASSERT_EQ(weir_create(&options, &allocator), WEIR_OK) << weir_last_error();
    std::size_t needed = 1;
    ASSERT_EQ(weir_driver_calls(allocator, 0, nullptr, 0, &needed), WEIR_OK);
    EXPECT_EQ(needed, 0u) << "of a device that was not used";
    void* block = nullptr;
    ASSERT_EQ(weir_allocate(allocator, 1 << 20, nullptr, 0, &block), WEIR_OK);
    std::array<weir_driver_call_t, 64> calls{};
    ASSERT_EQ(weir_driver_calls(allocator, 0, calls.data(), calls.size(), &needed), WEIR_OK);
    std::map<std::string, std::uint64_t> made;
    std::uint64_t nanoseconds = 0;
    for (const weir_driver_call_t& each : std::span(calls).first(needed)) {
      made[each.name] = each.calls;
      nanoseconds += each.nanoseconds;
    }
    EXPECT_EQ(made["create"], 1u);
    EXPECT_EQ(made["map"], 1u);
    EXPECT_EQ(nanoseconds > 0, timed);
    weir_driver_call_t first{};
    ASSERT_EQ(weir_driver_calls(allocator, 0, &first, 1, &needed), WEIR_OK);
    EXPECT_EQ(std::string(first.name), calls[0].name);
    EXPECT_GT(needed, 1u);
    EXPECT_EQ(weir_driver_calls(allocator, 0, nullptr, 1, &needed), WEIR_INVALID_ARGUMENT);
    weir_destroy(allocator);
  }
}

TEST_F(CApi, LayoutsArePlacementsByPool) {
  std::size_t needed = 7;
  ASSERT_EQ(weir_layout(allocator_, 0, nullptr, 0, &needed), WEIR_OK);
  EXPECT_EQ(needed, 0u) << "of a device that was not used";
  std::array<void*, 3> blocks{};
  for (void*& block : blocks) {
    ASSERT_EQ(weir_allocate(allocator_, 1 << 20, nullptr, 0, &block), WEIR_OK);
  }
  weir_graph_pool_t* pool = nullptr;
  ASSERT_EQ(weir_graph_pool_open(allocator_, 0, 0, &pool), WEIR_OK);
  std::array<weir_pool_layout_t, 4> layouts{};
  ASSERT_EQ(weir_layout(allocator_, 0, layouts.data(), layouts.size(), &needed), WEIR_OK);
  ASSERT_EQ(needed, 2u);
  EXPECT_EQ(layouts[0].pool, 0u);
  EXPECT_EQ(layouts[0].placements, 3u);
  EXPECT_EQ(layouts[1].pool, 1u);
  EXPECT_EQ(layouts[1].placements, 0u);
  const std::uint64_t before = layouts[0].hash;
  ASSERT_EQ(weir_deallocate(allocator_, blocks[0]), WEIR_OK);
  ASSERT_EQ(weir_layout(allocator_, 0, layouts.data(), 1, &needed), WEIR_OK);
  EXPECT_EQ(layouts[0].hash, before) << "a free places nothing";
  ASSERT_EQ(weir_allocate(allocator_, 1 << 20, nullptr, 0, &blocks[0]), WEIR_OK);
  ASSERT_EQ(weir_layout(allocator_, 0, layouts.data(), 1, &needed), WEIR_OK);
  EXPECT_EQ(needed, 2u);
  EXPECT_EQ(layouts[0].placements, 4u);
  EXPECT_NE(layouts[0].hash, before);
  EXPECT_EQ(weir_layout(allocator_, 0, nullptr, 1, &needed), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_layout(nullptr, 0, nullptr, 0, &needed), WEIR_INVALID_ARGUMENT);
  for (void* const block : blocks) ASSERT_EQ(weir_deallocate(allocator_, block), WEIR_OK);
  weir_graph_pool_close(pool);
}

TEST_F(CApi, TheLastErrorIsTheThreadsOwn) {
  EXPECT_EQ(weir_deallocate(allocator_, &allocator_), WEIR_UNKNOWN_POINTER);
  const std::string here = weir_last_error();
  std::string there = "not read";
  std::thread([&] { there = weir_last_error(); }).join();
  EXPECT_EQ(there, "");
  EXPECT_NE(here, "");
  EXPECT_EQ(here, weir_last_error());
}

TEST(CApiStatus, EveryStatusHasItsName) {
  EXPECT_STREQ(weir_status_name(WEIR_OK), "WEIR_OK");
  EXPECT_STREQ(weir_status_name(WEIR_OUT_OF_MEMORY), "WEIR_OUT_OF_MEMORY");
  EXPECT_STREQ(weir_status_name(WEIR_INVALID_ARGUMENT), "WEIR_INVALID_ARGUMENT");
  EXPECT_STREQ(weir_status_name(WEIR_UNKNOWN_POINTER), "WEIR_UNKNOWN_POINTER");
  EXPECT_STREQ(weir_status_name(WEIR_DEVICE_ERROR), "WEIR_DEVICE_ERROR");
  EXPECT_STREQ(weir_status_name(WEIR_CAPTURE_ERROR), "WEIR_CAPTURE_ERROR");
  EXPECT_STREQ(weir_status_name(WEIR_UNAVAILABLE), "WEIR_UNAVAILABLE");
  EXPECT_STREQ(weir_status_name(WEIR_INVALID_INPUT), "WEIR_INVALID_INPUT");
  EXPECT_STREQ(weir_status_name(WEIR_ASLEEP), "WEIR_ASLEEP");
  EXPECT_STREQ(weir_status_name(WEIR_INTERNAL_ERROR), "WEIR_INTERNAL_ERROR");
  EXPECT_STREQ(weir_status_name(99), "unknown");
}

}  // namespace
