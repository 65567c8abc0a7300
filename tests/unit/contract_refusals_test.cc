// SPDX-License-Identifier: Apache-2.0
// Calls that are refused change nothing: the stream of all streams, and states of a pool that can't
// be gone back to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/core_heap_fixture.h"
#include "weir/graph_pool.h"

namespace weir {
namespace {

class Refusals : public test::CoreHeap {
 protected:
  static constexpr Bytes kBlock = 32_MiB;

  void TearDown() override {
    EXPECT_EQ(device_.race_count(), 0u);
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
  }
  template <class Outcome>
  static void expect_refused(const Outcome& outcome, const std::string& call) {
    ASSERT_FALSE(outcome.ok()) << call;
    EXPECT_EQ(outcome.error().code(), ErrorCode::invalid_argument);
    EXPECT_THAT(outcome.error().message(), testing::HasSubstr(call + ": Stream::all()"));
  }

  DeviceHeap heap_{device_};
};

TEST_F(Refusals, TheStreamOfAllStreamsIsNamedByNoProgram) {
  const Stream all = Stream::all();
  void* const x = allocate(heap_, kBlock, a_);
  void* const y = allocate(heap_, kBlock, a_);
  void* const both[] = {x, y};
  expect_refused(heap_.allocate(kBlock, all), "allocate");
  expect_refused(heap_.allocate(100_B, all), "allocate");
  expect_refused(heap_.fence(std::span(both, 1), all), "fence");
  expect_refused(heap_.fence(both, all), "fence");
  const void* const inside[] = {x};
  expect_refused(heap_.fence_use(inside, all, true), "fence_use");
  expect_refused(heap_.record_stream(x, all), "record_stream");
  expect_refused(heap_.order(a_, all), "order");
  expect_refused(heap_.order(all, a_), "order");
  expect_refused(heap_.wait(all, heap_.fence_use({}, a_, true).value().value()), "wait");
  expect_refused(heap_.retire(all), "retire");
  GraphPool pool(heap_);
  Result<PoolBinding> binding = pool.warm_up([](Stream) { return true; });
  ASSERT_TRUE(binding.ok());
  expect_refused(heap_.allocate(kBlock, all), "allocate");
  binding->close();
  EXPECT_EQ(heap_.statistics().live_blocks.current, 2u);
  free(heap_, x);
  free(heap_, y);
}

}  // namespace
}  // namespace weir
