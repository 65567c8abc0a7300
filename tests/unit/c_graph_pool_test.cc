// SPDX-License-Identifier: Apache-2.0
// Graph pools through the C interface, on a simulated device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>

#include "weir/weir.h"

namespace {

using ::testing::HasSubstr;

class CGraphPool : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::array settings = {weir_setting_t{"WEIR_DEVICE", "sim"},
                                 weir_setting_t{"WEIR_LOG", "off"}};
    weir_options_t options = WEIR_OPTIONS_INIT;
    options.settings = settings.data();
    options.settings_count = settings.size();
    options.ignore_environment = 1;
    ASSERT_EQ(weir_create(&options, &allocator_), WEIR_OK) << weir_last_error();
    ASSERT_EQ(weir_sim_new_stream(allocator_, 0, &stream_), WEIR_OK);
    ASSERT_EQ(weir_graph_pool_open(allocator_, 0, 0, &pool_), WEIR_OK) << weir_last_error();
  }
  void TearDown() override {
    weir_graph_pool_close(pool_);
    size_t broken = 1;
    EXPECT_EQ(weir_validate(allocator_, &broken), WEIR_OK);
    EXPECT_EQ(broken, 0u) << weir_last_error();
    weir_destroy(allocator_);
  }
  void* allocate(uint64_t bytes) {
    void* block = nullptr;
    EXPECT_EQ(weir_allocate(allocator_, bytes, stream_, 0, &block), WEIR_OK) << weir_last_error();
    return block;
  }
  weir_graph_pool_statistics_t statistics() {
    weir_graph_pool_statistics_t now = WEIR_GRAPH_POOL_STATISTICS_INIT;
    EXPECT_EQ(weir_graph_pool_statistics(pool_, &now), WEIR_OK) << weir_last_error();
    return now;
  }

  weir_allocator_t* allocator_ = nullptr;
  void* stream_ = nullptr;
  weir_graph_pool_t* pool_ = nullptr;
};

TEST_F(CGraphPool, AWarmUpAndACaptureUseTheSameMemory) {
  weir_route_t* binding = nullptr;
  ASSERT_EQ(weir_graph_pool_warm_up(pool_, stream_, &binding), WEIR_OK) << weir_last_error();
  EXPECT_EQ(weir_deallocate(allocator_, allocate(64 << 20)), WEIR_OK);
  weir_route_close(binding, 0);
  const uint64_t warm = statistics().reserved_bytes;
  EXPECT_GE(warm, 64u << 20);

  weir_capture_t* capture = nullptr;
  ASSERT_EQ(weir_capture_begin(pool_, stream_, WEIR_CAPTURE_THREAD_LOCAL, &capture), WEIR_OK)
      << weir_last_error();
  void* const output = allocate(64 << 20);
  weir_graph_t* graph = nullptr;
  ASSERT_EQ(weir_capture_end(pool_, capture, &graph), WEIR_OK) << weir_last_error();
  EXPECT_EQ(weir_graph_launch(graph, stream_), WEIR_OK) << weir_last_error();
  EXPECT_EQ(statistics().reserved_bytes, warm);
  EXPECT_EQ(statistics().kept_bytes, warm);
  EXPECT_EQ(statistics().graphs, 1u);
  EXPECT_EQ(statistics().live_blocks, 1u);
  EXPECT_EQ(weir_deallocate(allocator_, output), WEIR_OK);
  EXPECT_EQ(statistics().kept_bytes, warm);
  weir_graph_destroy(graph);
  EXPECT_EQ(statistics().kept_bytes, 0u);
}

TEST_F(CGraphPool, AnAbandonedCaptureLeavesThePoolUsable) {
  weir_capture_t* capture = nullptr;
  ASSERT_EQ(weir_capture_begin(pool_, stream_, WEIR_CAPTURE_GLOBAL, &capture), WEIR_OK);
  void* const block = allocate(1 << 20);
  weir_capture_abandon(capture);
  EXPECT_EQ(weir_deallocate(allocator_, block), WEIR_OK);
  EXPECT_EQ(statistics().graphs, 0u);
  EXPECT_EQ(statistics().kept_bytes, 0u);
  ASSERT_EQ(weir_capture_begin(pool_, stream_, WEIR_CAPTURE_GLOBAL, &capture), WEIR_OK)
      << weir_last_error();
  weir_graph_t* graph = nullptr;
  EXPECT_EQ(weir_capture_end(pool_, capture, &graph), WEIR_OK) << weir_last_error();
  weir_graph_destroy(graph);
}

TEST_F(CGraphPool, AProgramsOwnCapturesAreRoutedByItsFilter) {
  weir_route_t* binding = nullptr;
  const auto all = [](void*, void* context) -> int32_t {
    ++*static_cast<int*>(context);
    return 1;
  };
  int asked = 0;
  ASSERT_EQ(weir_graph_pool_capture(pool_, all, &asked, &binding), WEIR_OK) << weir_last_error();
  void* block = nullptr;
  // Not captured, though the filter takes it.
  EXPECT_EQ(weir_allocate(allocator_, 4096, stream_, 0, &block), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("not being captured"));
  EXPECT_GT(asked, 0);
  weir_route_close(binding, 0);
  EXPECT_EQ(weir_deallocate(allocator_, allocate(4096)), WEIR_OK);
}

TEST_F(CGraphPool, BadArgumentsAreNamed) {
  weir_capture_t* capture = nullptr;
  EXPECT_EQ(weir_capture_begin(nullptr, stream_, WEIR_CAPTURE_GLOBAL, &capture),
            WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("pool is null"));
  EXPECT_EQ(weir_capture_begin(pool_, stream_, static_cast<weir_capture_mode_t>(3), &capture),
            WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("mode"));
  EXPECT_EQ(weir_capture_begin(pool_, stream_, WEIR_CAPTURE_GLOBAL, nullptr),
            WEIR_INVALID_ARGUMENT);
  weir_graph_t* graph = nullptr;
  EXPECT_EQ(weir_capture_end(pool_, nullptr, &graph), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_graph_launch(nullptr, stream_), WEIR_INVALID_ARGUMENT);
  weir_route_t* binding = nullptr;
  EXPECT_EQ(weir_graph_pool_capture(pool_, nullptr, nullptr, &binding), WEIR_INVALID_ARGUMENT);
  weir_graph_pool_statistics_t small = WEIR_GRAPH_POOL_STATISTICS_INIT;
  small.size = sizeof(size_t) - 1;
  EXPECT_EQ(weir_graph_pool_statistics(pool_, &small), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("size"));
  weir_graph_destroy(nullptr);
  weir_route_close(nullptr, 1);
  weir_capture_abandon(nullptr);
}

TEST_F(CGraphPool, StatisticsHaveAsManyMembersAsTheProgramKnows) {
  void* const block = allocate(4096);
  weir_graph_pool_statistics_t known = WEIR_GRAPH_POOL_STATISTICS_INIT;
  known.size = offsetof(weir_graph_pool_statistics_t, live_bytes);
  known.live_blocks = 9;
  known.live_bytes = 9;
  EXPECT_EQ(weir_graph_pool_statistics(pool_, &known), WEIR_OK) << weir_last_error();
  EXPECT_EQ(known.live_blocks, 0u);
  EXPECT_EQ(known.live_bytes, 9u) << "written beyond its size";
  EXPECT_EQ(weir_deallocate(allocator_, block), WEIR_OK);
}

TEST_F(CGraphPool, ACaptureThatEndsIntoNoPoolIsGoneAllTheSame) {
  weir_capture_t* capture = nullptr;
  ASSERT_EQ(weir_capture_begin(pool_, stream_, WEIR_CAPTURE_GLOBAL, &capture), WEIR_OK);
  weir_graph_t* graph = nullptr;
  EXPECT_EQ(weir_capture_end(nullptr, capture, &graph), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("pool is null"));
  EXPECT_EQ(weir_deallocate(allocator_, allocate(4096)), WEIR_OK) << "the stream is captured still";
}

}  // namespace
