// SPDX-License-Identifier: Apache-2.0
// Three streams' timelines on a simulated device, for tests of what is known of their work.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/time/fence_set.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/sim_device.h"

namespace weir::test {

inline FenceSet set_of(std::initializer_list<Fence> fences) {
  FenceSet set;
  for (const Fence fence : fences) set.join(fence);
  return set;
}

class TimelinesTest : public testing::Test, private EventSink {
 protected:
  void on_event(const Event& event) override { events_.push_back(event); }

  void work(Stream stream, Nanoseconds duration = 1_ms) {
    ASSERT_TRUE(device_.launch(stream, duration).ok());
  }
  std::uint32_t wait(TimelineId waiter, const FenceSet& fences) {
    FenceSet made;
    EXPECT_TRUE(timelines_.wait(waiter, fences, nullptr, &made).ok());
    return static_cast<std::uint32_t>(made.size());
  }
  std::uint32_t wait(TimelineId waiter, Fence fence) { return wait(waiter, set_of({fence})); }
  bool complete(Fence fence) {
    const Result<bool> done = timelines_.complete(set_of({fence}));
    EXPECT_TRUE(done.ok());
    return done.ok() && *done;
  }
  std::uint64_t calls(DeviceCall call) const { return device_.calls(call); }

  SimDevice device_;
  std::vector<Event> events_;
  Observer observer_{device_, this};
  OpenCaptures captures_{device_, /*context_events=*/true};
  Timelines timelines_{device_, observer_, captures_};
  const Stream sa_ = device_.new_stream(), sb_ = device_.new_stream(), sc_ = device_.new_stream();
  const TimelineId a_ = timelines_.of(sa_), b_ = timelines_.of(sb_), c_ = timelines_.of(sc_);
};

}  // namespace weir::test
