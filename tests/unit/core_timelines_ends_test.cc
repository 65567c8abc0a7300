// SPDX-License-Identifier: Apache-2.0
// Timelines: when work is known to be complete, and what is left of streams that are retired.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <initializer_list>
#include <string>
#include <thread>

#include "core/time/fence_set.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

FenceSet set_of(std::initializer_list<Fence> fences) {
  FenceSet set;
  for (const Fence fence : fences) set.join(fence);
  return set;
}

class TimelinesTest : public testing::Test {
 protected:
  void work(Stream stream, Nanoseconds duration = 1_ms) {
    ASSERT_TRUE(device_.launch(stream, duration).ok());
  }

  SimDevice device_;
  Observer observer_{device_, nullptr};
  OpenCaptures captures_{device_, /*context_events=*/true};
  Timelines timelines_{device_, observer_, captures_};
  const Stream sa_ = device_.new_stream(), sb_ = device_.new_stream();
  const TimelineId a_ = timelines_.of(sa_), b_ = timelines_.of(sb_);
};

// Its event could not be recorded: nobody knows when its work ends.
TEST_F(TimelinesTest, AStreamDestroyedWithoutRetireIsNamedAndTheRemedySaid) {
  work(sa_);
  const Fence point = timelines_.now(a_);
  ASSERT_TRUE(device_.destroy_stream(sa_).ok());
  for (int i = 0; i < 2; ++i) {
    const Status waited = timelines_.wait(b_, set_of({point}));
    ASSERT_FALSE(waited.ok());
    EXPECT_EQ(waited.error().code(), ErrorCode::device);
    EXPECT_THAT(waited.error().message(), HasSubstr("on stream " + std::to_string(sa_.id)));
    EXPECT_THAT(waited.error().message(), HasSubstr("call retire() before"));
    EXPECT_FALSE(timelines_.satisfied(point, b_));
  }
  EXPECT_THAT(timelines_.validate(), IsEmpty());
}

// Once its work is complete, the clock of who waited for a fence may forget it.
TEST_F(TimelinesTest, ASatisfiedFenceStaysSoWhileItIsForgotten) {
  for (int round = 0; round < 100; ++round) {
    work(sa_, 1_us);
    const Fence fence = *timelines_.record(a_);
    EXPECT_TRUE(timelines_.wait(b_, set_of({fence})).ok());
    std::atomic<bool> forgotten = false;
    std::thread forgets([&] {
      EXPECT_TRUE(timelines_.host_wait(set_of({fence})).ok());
      const Stream brief = device_.new_stream();  // a clock forgets when it hears of another
      const TimelineId own = timelines_.of(brief);
      EXPECT_TRUE(device_.launch(brief, 1_us).ok());
      EXPECT_TRUE(timelines_.wait(b_, set_of({*timelines_.record(own)})).ok());
      EXPECT_TRUE(timelines_.retire(own).ok());
      forgotten = true;
    });
    while (!forgotten) ASSERT_TRUE(timelines_.satisfied(fence, b_)) << "round " << round;
    forgets.join();
  }
}

}  // namespace
}  // namespace weir
