// SPDX-License-Identifier: Apache-2.0
// Sleep and wake through weir::Allocator and weir.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "observe/statistics_fold.h"
#include "tests/temporary_folder.h"
#include "weir/allocator.h"
#include "weir/recording.h"
#include "weir/sim_device.h"
#include "weir/weir.h"

namespace weir::test {
namespace {

using testing::HasSubstr;

class SleepApi : public testing::Test {
 protected:
  std::string tag_of(const void* block) {
    const std::uint64_t pool = allocator_.heap().find(block)->pool;
    for (const char* const name : {"weights", "cache"}) {
      if ((*allocator_.heap().tags().pool(name))->id() == pool) return name;
    }
    return kDefaultTag;
  }
  TagState state(const std::string& name) {
    for (const TagInfo& info : allocator_.tags()) {
      if (info.tag == name) return info.state;
    }
    return TagState::partly_asleep;
  }

  SimDevice device_;
  Allocator allocator_{device_};
  void* const stream_ = device_.new_stream().handle;
};

TEST_F(SleepApi, AScopeTakesItsThreadsRequestsOrThoseOfAllThreads) {
  std::vector<void*> blocks;
  const auto allocate = [&] { blocks.push_back(allocator_.allocate(1_MiB, stream_)); };
  {
    const PoolBinding own = allocator_.tag("weights");
    allocate();
    std::thread(allocate).join();
    const PoolBinding all = allocator_.tag("cache", TagThreads::all);
    allocate();
    std::thread(allocate).join();
  }
  allocate();
  blocks.push_back(allocator_.allocate(1_MiB, stream_, {.tag = "weights"}));
  blocks.push_back(allocator_.allocate(1_MiB, stream_, {.tag = kDefaultTag}));
  const std::array tags{"weights", "default", "cache", "cache", "default", "weights", "default"};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(tag_of(blocks[i]), tags[i]) << i;
    allocator_.deallocate(blocks[i]);
  }
  EXPECT_THROW((void)allocator_.allocate(1_B, stream_, {.plain = true, .tag = "weights"}),
               Exception);
  EXPECT_THROW((void)allocator_.tag(""), Exception);
}

TEST_F(SleepApi, SleepingMemoryIsAnExceptionWithItsCode) {
  void* const block = allocator_.allocate(40_MiB, stream_, {.tag = "cache"});
  EXPECT_GE(allocator_.sleep({.tags = {"cache"}}).given_back, 40_MiB);
  EXPECT_EQ(state("cache"), TagState::asleep);
  try {
    (void)allocator_.allocate(1_MiB, stream_, {.tag = "cache"});
    ADD_FAILURE() << "no exception";
  } catch (const Exception& error) {
    EXPECT_EQ(error.code(), ErrorCode::asleep);
    EXPECT_THAT(error.what(), HasSubstr("'cache'"));
  }
  EXPECT_EQ(allocator_.wake().copied, 40_MiB);
  EXPECT_EQ(state("cache"), TagState::awake);
  const std::uint64_t hold = allocator_.heap_of(block).tags().hold(block, "a library").value();
  EXPECT_THROW((void)allocator_.sleep(), Exception);
  EXPECT_EQ(allocator_.heap().tags().residue().held.size(), 1u);
  allocator_.heap_of(block).tags().release_hold(hold);
  (void)allocator_.sleep({.contents = SleepContents::discard});
  EXPECT_EQ(allocator_.heap().tags().residue().weir, 0_B);
  (void)allocator_.wake();
  allocator_.deallocate(block);
  EXPECT_TRUE(allocator_.validate().empty());
}

// Folds what is read as the recorder's users do.
TEST_F(SleepApi, ARecordingShowsTheMemoryGoAndComeBackAndSaysWhy) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.weir";
  allocator_.record_start(path);
  void* const block = allocator_.allocate(40_MiB, stream_, {.tag = "cache"});
  (void)allocator_.sleep({.tags = {"cache"}});
  (void)allocator_.wake();
  (void)allocator_.sleep();
  (void)allocator_.wake();
  allocator_.deallocate(block);
  allocator_.record_stop();
  Result<Recording> recording = read_recording(path);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  std::vector<std::string> marks;
  for (const RecordedMark& mark : recording->marks) marks.push_back(mark.text);
  EXPECT_THAT(marks,
              testing::ElementsAre("sleep: cache", HasSubstr("asleep: 40.0 MiB"), "wake: all tags",
                                   HasSubstr("awake: 40.0 MiB"), "sleep: all tags",
                                   HasSubstr("40.0 MiB copied"), "wake: all tags",
                                   HasSubstr("40.0 MiB copied"), HasSubstr("layout: pool 0"),
                                   HasSubstr("copy_to_host 6")));
  std::uint64_t least = ~std::uint64_t{0};
  StatisticsFold fold;
  for (const Event& event : recording->events) {
    fold.on_event(event);
    if (event.time > recording->marks[1].time && event.time < recording->marks[2].time) {
      ADD_FAILURE() << "something happened while all slept";
    }
    if (event.kind == EventKind::release) {
      least = std::min(least, fold.statistics().reserved_bytes.current);
    }
  }
  EXPECT_EQ(least, 0u);
  EXPECT_EQ(fold.statistics().reserved_bytes.current,
            allocator_.statistics().reserved_bytes.current);
}

class SleepInC : public testing::Test {
 protected:
  void SetUp() override {
    const weir_setting_t setting{"WEIR_DEVICE", "sim"};
    const weir_options_t options{sizeof(weir_options_t), &setting, 1, 1};
    ASSERT_EQ(weir_create(&options, &allocator_), WEIR_OK) << weir_last_error();
    ASSERT_EQ(weir_sim_new_stream(allocator_, 0, &stream_), WEIR_OK) << weir_last_error();
  }
  void TearDown() override { weir_destroy(allocator_); }

  weir_allocator_t* allocator_ = nullptr;
  void* stream_ = nullptr;
};

TEST_F(SleepInC, TagsSleepAndWake) {
  void* weights = nullptr;
  void* scoped = nullptr;
  ASSERT_EQ(weir_allocate_tagged(allocator_, 8 << 20, stream_, 0, "weights", &weights), WEIR_OK);
  weir_tag_scope_t* scope = nullptr;
  ASSERT_EQ(weir_tag_begin(allocator_, 0, "cache", 0, &scope), WEIR_OK) << weir_last_error();
  ASSERT_EQ(weir_allocate(allocator_, 8 << 20, stream_, 0, &scoped), WEIR_OK);
  weir_tag_end(scope);
  weir_tag_end(nullptr);

  const std::array tags{"weights", "cache"};
  weir_sleep_options_t options = WEIR_SLEEP_OPTIONS_INIT;
  options.tags = tags.data();
  options.tags_count = tags.size();
  weir_sleep_report_t report = WEIR_SLEEP_REPORT_INIT;
  ASSERT_EQ(weir_set_contents(allocator_, 0, "cache", WEIR_CONTENTS_DISCARD), WEIR_OK);
  ASSERT_EQ(weir_sleep(allocator_, 0, &options, &report), WEIR_OK) << weir_last_error();
  EXPECT_EQ(report.copied_bytes, 8u << 20);
  EXPECT_GE(report.bytes, 16u << 20);
  weir_tag_info_t info = WEIR_TAG_INFO_INIT;
  ASSERT_EQ(weir_tag_info(allocator_, 0, "cache", &info), WEIR_OK);
  EXPECT_EQ(info.state, WEIR_TAG_ASLEEP);
  EXPECT_EQ(info.contents, WEIR_CONTENTS_DISCARD);
  EXPECT_EQ(info.device_bytes, 0u);
  EXPECT_GE(info.asleep_bytes, 8u << 20);
  std::array<char, 64> names{};
  size_t needed = 0;
  ASSERT_EQ(weir_tag_list(allocator_, 0, names.data(), names.size(), &needed), WEIR_OK);
  EXPECT_STREQ(names.data(), "cache\ndefault\nweights\n");
  EXPECT_EQ(needed, sizeof "cache\ndefault\nweights\n");

  void* refused = nullptr;
  EXPECT_EQ(weir_allocate_tagged(allocator_, 1, stream_, 0, "cache", &refused), WEIR_ASLEEP);
  EXPECT_STREQ(weir_status_name(WEIR_ASLEEP), "WEIR_ASLEEP");
  uint64_t word = 0;
  EXPECT_EQ(weir_read_asleep(allocator_, 0, weights, 8, &word), WEIR_UNAVAILABLE);
  EXPECT_EQ(weir_read_asleep(allocator_, 0, scoped, 8, &word), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_read_asleep(allocator_, 0, weights, 8, nullptr), WEIR_INVALID_ARGUMENT);
  ASSERT_EQ(weir_wake(allocator_, 0, nullptr, nullptr), WEIR_OK) << weir_last_error();

  ASSERT_EQ(weir_sleep(allocator_, 0, nullptr, nullptr), WEIR_OK) << weir_last_error();
  weir_wake_options_t keep = WEIR_WAKE_OPTIONS_INIT;
  keep.keep_host_bytes = 1 << 30;
  ASSERT_EQ(weir_wake(allocator_, 0, &keep, &report), WEIR_OK);
  EXPECT_EQ(report.host_bytes, 64u << 20);
  EXPECT_EQ(weir_declare_changed(allocator_, 0, "weights"), WEIR_OK);
  EXPECT_EQ(weir_deallocate(allocator_, weights), WEIR_OK);
  EXPECT_EQ(weir_deallocate(allocator_, scoped), WEIR_OK);
}

// Bytes that only a graph uses are copied as others are, unless they are said to be scratch.
TEST_F(SleepInC, WhatAGraphAloneHasIsCopiedUnlessItIsToBeForgotten) {
  weir_graph_pool_t* pool = nullptr;
  ASSERT_EQ(weir_graph_pool_open(allocator_, 0, 0, &pool), WEIR_OK) << weir_last_error();
  weir_capture_t* capture = nullptr;
  ASSERT_EQ(weir_capture_begin(pool, stream_, WEIR_CAPTURE_THREAD_LOCAL, &capture), WEIR_OK)
      << weir_last_error();
  void* scratch = nullptr;
  ASSERT_EQ(weir_allocate(allocator_, 50 << 20, stream_, 0, &scratch), WEIR_OK);
  ASSERT_EQ(weir_deallocate(allocator_, scratch), WEIR_OK) << weir_last_error();
  weir_graph_t* graph = nullptr;
  ASSERT_EQ(weir_capture_end(pool, capture, &graph), WEIR_OK) << weir_last_error();
  weir_sleep_options_t options = WEIR_SLEEP_OPTIONS_INIT;
  weir_sleep_report_t report = WEIR_SLEEP_REPORT_INIT;
  for (const int32_t forget : {0, 1}) {
    options.forget_graph_scratch = forget;
    ASSERT_EQ(weir_sleep(allocator_, 0, &options, &report), WEIR_OK) << weir_last_error();
    EXPECT_EQ(report.copied_bytes, forget != 0 ? 0u : 50u << 20);
    EXPECT_GE(report.bytes, 50u << 20);
    EXPECT_EQ(weir_graph_launch(graph, stream_), WEIR_ASLEEP);
    ASSERT_EQ(weir_wake(allocator_, 0, nullptr, nullptr), WEIR_OK) << weir_last_error();
    EXPECT_EQ(weir_graph_launch(graph, stream_), WEIR_OK) << weir_last_error();
  }
  weir_graph_destroy(graph);
  weir_graph_pool_close(pool);
}

TEST_F(SleepInC, EachKindOfContentsIsTakenAndNoOther) {
  void* block = nullptr;
  ASSERT_EQ(weir_allocate(allocator_, 4096, nullptr, 0, &block), WEIR_OK) << weir_last_error();
  weir_sleep_options_t options = WEIR_SLEEP_OPTIONS_INIT;
  for (const int32_t contents :
       {WEIR_CONTENTS_BACKUP, WEIR_CONTENTS_DISCARD, WEIR_CONTENTS_ZERO, WEIR_CONTENTS_IMMUTABLE}) {
    options.contents = contents;
    ASSERT_EQ(weir_sleep(allocator_, 0, &options, nullptr), WEIR_OK) << weir_last_error();
    weir_tag_info_t info = WEIR_TAG_INFO_INIT;
    ASSERT_EQ(weir_tag_info(allocator_, 0, "default", &info), WEIR_OK) << weir_last_error();
    EXPECT_EQ(info.contents, contents);
    EXPECT_GT(info.asleep_bytes, 0u);
    ASSERT_EQ(weir_wake(allocator_, 0, nullptr, nullptr), WEIR_OK) << weir_last_error();
    EXPECT_EQ(weir_set_contents(allocator_, 0, "default", contents), WEIR_OK);
  }
  for (const int32_t contents : {-2, 4}) {
    options.contents = contents;
    EXPECT_EQ(weir_sleep(allocator_, 0, &options, nullptr), WEIR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_set_contents(allocator_, 0, "default", contents), WEIR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(weir_deallocate(allocator_, block), WEIR_OK);
}

TEST_F(SleepInC, StructuresOfTheWrongSizeAreRefusedAndSmallOnesAreFilledAsFarAsTheyGo) {
  weir_sleep_options_t options = WEIR_SLEEP_OPTIONS_INIT;
  for (const size_t less : {std::size_t{0}, sizeof options - 1}) {
    options.size = less;
    EXPECT_EQ(weir_sleep(allocator_, 0, &options, nullptr), WEIR_INVALID_ARGUMENT);
    EXPECT_THAT(weir_last_error(), HasSubstr("options->size"));
  }
  // As of a program that was built with a weir.h that has one option more.
  options.size = sizeof(options) + sizeof(const char*);
  EXPECT_EQ(weir_sleep(allocator_, 0, &options, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("another weir.h"));
  weir_wake_options_t wake = WEIR_WAKE_OPTIONS_INIT;
  EXPECT_EQ(weir_wake(allocator_, 0, &wake, nullptr), WEIR_OK) << weir_last_error();
  --wake.size;
  EXPECT_EQ(weir_wake(allocator_, 0, &wake, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("options->size"));
  weir_residue_t residue = WEIR_RESIDUE_INIT;
  residue.size = sizeof(residue.size) - 1;
  EXPECT_EQ(weir_residue(allocator_, 0, &residue), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("residue->size"));
  residue.size = sizeof(residue.size);
  residue.device_bytes = 4711;
  EXPECT_EQ(weir_residue(allocator_, 0, &residue), WEIR_OK) << weir_last_error();
  EXPECT_EQ(residue.device_bytes, 4711u);
  residue.size = sizeof residue;
  EXPECT_EQ(weir_residue(allocator_, 0, &residue), WEIR_OK) << weir_last_error();
  EXPECT_NE(residue.device_bytes, 4711u);
  EXPECT_EQ(residue.size, sizeof residue);
}

TEST_F(SleepInC, TheListOfTagsIsCutToWhatThereIsRoomFor) {
  size_t needed = 0;
  EXPECT_EQ(weir_tag_list(allocator_, 0, nullptr, 0, &needed), WEIR_OK);
  EXPECT_EQ(needed, sizeof "default\n");
  char names[9] = "????????";
  EXPECT_EQ(weir_tag_list(allocator_, 0, names, 0, nullptr), WEIR_OK);
  EXPECT_STREQ(names, "????????");
  EXPECT_EQ(weir_tag_list(allocator_, 0, names, 4, nullptr), WEIR_OK);
  EXPECT_STREQ(names, "def");
  EXPECT_EQ(weir_tag_list(allocator_, 0, names, 1, nullptr), WEIR_OK);
  EXPECT_STREQ(names, "");
  EXPECT_EQ(weir_tag_list(allocator_, 0, names, sizeof names, nullptr), WEIR_OK);
  EXPECT_STREQ(names, "default\n");
  EXPECT_EQ(weir_tag_list(allocator_, 0, nullptr, 1, &needed), WEIR_INVALID_ARGUMENT);
}

TEST_F(SleepInC, MemoryThatIsHeldStaysWhereThatIsAskedFor) {
  void* block = nullptr;
  ASSERT_EQ(weir_allocate(allocator_, 4096, nullptr, 0, &block), WEIR_OK) << weir_last_error();
  uint64_t hold = 0;
  ASSERT_EQ(weir_hold(allocator_, block, "a library", &hold), WEIR_OK) << weir_last_error();
  weir_sleep_options_t options = WEIR_SLEEP_OPTIONS_INIT;
  EXPECT_EQ(weir_sleep(allocator_, 0, &options, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("a library"));
  options.keep = 1;
  weir_sleep_report_t report = WEIR_SLEEP_REPORT_INIT;
  ASSERT_EQ(weir_sleep(allocator_, 0, &options, &report), WEIR_OK) << weir_last_error();
  EXPECT_EQ(report.kept_bytes, 2u << 20);
  weir_residue_t residue = WEIR_RESIDUE_INIT;
  ASSERT_EQ(weir_residue(allocator_, 0, &residue), WEIR_OK) << weir_last_error();
  EXPECT_EQ(residue.held_bytes, 2u << 20);
  ASSERT_EQ(weir_wake(allocator_, 0, nullptr, nullptr), WEIR_OK) << weir_last_error();
  EXPECT_EQ(weir_release_hold(allocator_, block, hold), WEIR_OK);
  EXPECT_EQ(weir_deallocate(allocator_, block), WEIR_OK);
}

TEST_F(SleepInC, NullIsNamed) {
  void* block = nullptr;
  ASSERT_EQ(weir_allocate(allocator_, 4096, nullptr, 0, &block), WEIR_OK) << weir_last_error();
  const auto expect_named = [](weir_status_t status, const char* name) {
    EXPECT_EQ(status, WEIR_INVALID_ARGUMENT) << name;
    EXPECT_THAT(weir_last_error(), HasSubstr(name));
  };
  uint64_t word = 0;
  weir_tag_scope_t* scope = nullptr;
  expect_named(weir_tag_info(allocator_, 0, "default", nullptr), "info");
  expect_named(weir_set_contents(allocator_, 0, nullptr, WEIR_CONTENTS_ZERO), "tag");
  expect_named(weir_declare_changed(allocator_, 0, nullptr), "tag");
  expect_named(weir_read_asleep(allocator_, 0, nullptr, 8, &word), "pointer");
  expect_named(weir_read_asleep(allocator_, 0, block, 8, nullptr), "to");
  expect_named(weir_allocate_tagged(allocator_, 8, nullptr, 0, "a", nullptr), "block");
  void* other = &word;
  expect_named(weir_allocate_tagged(allocator_, 8, nullptr, 0, nullptr, &other), "tag");
  EXPECT_EQ(other, nullptr);
  expect_named(weir_tag_begin(allocator_, 0, "a", 0, nullptr), "scope");
  expect_named(weir_tag_begin(allocator_, 0, nullptr, 0, &scope), "tag");
  expect_named(weir_hold(allocator_, block, "me", nullptr), "hold");
  expect_named(weir_hold(allocator_, block, nullptr, &word), "holder");
  expect_named(weir_residue(allocator_, 0, nullptr), "residue");
  EXPECT_EQ(weir_deallocate(allocator_, block), WEIR_OK);
}

TEST_F(SleepInC, WhatIsGivenWrongIsNamed) {
  EXPECT_EQ(weir_sleep(nullptr, 0, nullptr, nullptr), WEIR_INVALID_ARGUMENT);
  weir_sleep_options_t options = WEIR_SLEEP_OPTIONS_INIT;
  options.tags_count = 1;
  EXPECT_EQ(weir_sleep(allocator_, 0, &options, nullptr), WEIR_INVALID_ARGUMENT);
  weir_tag_info_t info = WEIR_TAG_INFO_INIT;
  EXPECT_EQ(weir_tag_info(allocator_, 0, "nobody", &info), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("'nobody'"));
  EXPECT_EQ(weir_tag_info(allocator_, 0, nullptr, &info), WEIR_INVALID_ARGUMENT);
  uint64_t hold = 0;
  EXPECT_EQ(weir_hold(allocator_, &hold, "me", &hold), WEIR_UNKNOWN_POINTER);
  weir_tag_scope_t* scope = nullptr;
  EXPECT_EQ(weir_tag_begin(allocator_, 0, "default", 0, &scope), WEIR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace weir::test
