// SPDX-License-Identifier: Apache-2.0
// Calls that may never return, and a communicator that made some.
#include "comm/bounded.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "tests/comm/ranks.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

TEST(Bounded, GivesWhatTheCallReturns) {
  const auto done = bounded(10'000_ms, [] { return Status(); });
  ASSERT_TRUE(done.has_value());
  EXPECT_TRUE(done->ok());
  const auto failed = bounded(10'000_ms, []() -> Status { return Error(ErrorCode::device, "no"); });
  ASSERT_TRUE(failed.has_value());
  EXPECT_FALSE(failed->ok());
}

TEST(Soon, WaitsForWhatAnotherThreadIsAboutToDoAndNotForEver) {
  std::atomic<bool> done = false;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    done = true;
  });
  EXPECT_TRUE(soon([&] { return done.load(); }));
  other.join();
  EXPECT_FALSE(soon([] { return false; }));
}

TEST(Bounded, ALateCallIsWaitedForAgainAndHoldsNothingThen) {
  std::promise<void> go;
  const auto held = std::make_shared<int>(1);
  BoundedCall call([held, may_end = go.get_future().share()] {
    may_end.wait();
    return Status();
  });
  EXPECT_FALSE(call.wait(1_ms).has_value());
  EXPECT_FALSE(call.wait(1_ms).has_value());
  EXPECT_EQ(held.use_count(), 2);
  go.set_value();
  EXPECT_TRUE(call.wait(10'000_ms).has_value());
  EXPECT_EQ(held.use_count(), 1);
}

// The host waits long on it from slow_down() on.
class SlowDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void slow_down(std::chrono::milliseconds time) { time_ = time; }
  bool waits() const { return waits_; }
  Status synchronize(EventHandle event) override {
    waits_ = true;
    std::this_thread::sleep_for(time_.load());
    waits_ = false;
    return ForwardingDevice::synchronize(event);
  }

 private:
  std::atomic<std::chrono::milliseconds> time_{};
  std::atomic<bool> waits_ = false;
};

class BoundedCommunicators : public test::CommRanks {
 protected:
  BoundedCommunicators() : CommRanks(1) {}
};

TEST_F(BoundedCommunicators, AreClosedOnceNobodyWaitsOnTheirDevice) {
  for (const bool prepared : {true, false}) {
    test::Rank& rank = *ranks_[0];
    SlowDevice slow(rank.device);
    Result<Communicator> made =
        Communicator::create({*rank.nccl, slow, *rank.heap}, *rank.nccl->unique_id(), 1, 0,
                             {.host_timeout = 1'000_ms, .watch_every = {}});
    ASSERT_TRUE(made.ok()) << made.error().message();
    if (prepared) {
      test::expect_ok(made->prepare());
      test::expect_ok(made->all_reduce(nullptr, nullptr, 0, DataType::float32, {}, rank.compute));
    }
    slow.slow_down(std::chrono::milliseconds(1300));
    EXPECT_FALSE((prepared ? made->close() : made->prepare()).ok());
    if (!prepared) (void)made->close();
    EXPECT_FALSE(slow.waits()) << prepared;
  }
}

}  // namespace
}  // namespace weir
