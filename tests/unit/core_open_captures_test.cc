// SPDX-License-Identifier: Apache-2.0
// OpenCaptures: no capture is announced between the question whether there is one and the record of
// an event that would break it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "core/time/open_captures.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/interposed_device.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

// Another thread announces a capture.
class Announcer {
 public:
  explicit Announcer(OpenCaptures& captures) : captures_(captures) {}
  ~Announcer() { join(); }

  // Starts the thread. Returns whether it gets through, for as long as this takes to be sure.
  bool gets_through() {
    thread_ = std::thread([this] {
      captures_.announce(1, std::nullopt);
      done_ = true;
    });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (!done_ && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return done_;
  }
  bool joined() {
    join();
    return done_;
  }

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  OpenCaptures& captures_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

TEST(OpenCaptures, ACaptureIsNotAnnouncedBeforeTheRecordHasReturned) {
  SimDevice device;
  OpenCaptures captures(device, /*context_events=*/true);
  Announcer announcer(captures);
  int records = 0;
  const auto record = [&]() -> Status { return ++records, Status{}; };
  const Status recorded = captures.record_context([&]() -> Status {
    EXPECT_FALSE(announcer.gets_through());
    return record();
  });
  EXPECT_TRUE(recorded.ok());
  EXPECT_TRUE(announcer.joined()) << "the capture that waited";
  const Status refused = captures.record_context(record);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::capture);
  EXPECT_EQ(records, 1);
}

// Of whatever allocator in the process: an event of the context would break it.
TEST(OpenCaptures, ACaptureThatAnotherHeapOfTheContextKnowsGoesOn) {
  SimDevice device;
  ForwardingDevice same(device);
  SimDevice elsewhere;
  OpenCaptures captures(device, /*context_events=*/true);
  auto other = std::make_unique<OpenCaptures>(same, /*context_events=*/true);
  const auto record = []() -> Status { return {}; };
  other->announce(1, std::nullopt);
  EXPECT_FALSE(captures.record_context(record).ok());
  EXPECT_TRUE(captures.none_goes_on().ok()) << "it is none of this heap's own";
  EXPECT_TRUE(OpenCaptures(elsewhere, true).record_context(record).ok());
  other->ended(1);
  EXPECT_TRUE(captures.record_context(record).ok());

  const Stream stream = device.new_stream();
  other->meet(stream);
  ASSERT_TRUE(device.begin_capture(stream, CaptureMode::global).ok());
  EXPECT_FALSE(captures.record_context(record).ok());
  EXPECT_EQ(device.capture_info(stream)->status, CaptureInfo::Status::active);
  EXPECT_TRUE(device.end_capture(stream).ok());
  EXPECT_FALSE(captures.has_context_events()) << "nobody had announced it";

  other->announce(1, std::nullopt);
  other.reset();  // and with it what it knew
  EXPECT_TRUE(OpenCaptures(device, true).record_context(record).ok());
}

}  // namespace
}  // namespace weir
