// SPDX-License-Identifier: Apache-2.0
// What a wait of the host for all work covers: idle memory of graph pools too, and nothing that is
// freed while the host waits. And that what it waits for stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "tests/unit/core_heap_fixture.h"
#include "weir/graph_pool.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

class TrimOfPools : public test::CoreHeap, public testing::WithParamInterface<Trust> {
 protected:
  static constexpr Bytes kBlock = 64_MiB;
  static constexpr Nanoseconds kLong = 50_ms;

  void TearDown() override {
    for (const Race& race : device_.races()) ADD_FAILURE() << race.describe();
    for (const std::string& broken : heap_.validate()) ADD_FAILURE() << broken;
  }
  Bytes reserved() { return Bytes{heap_.statistics().reserved_bytes.current}; }
  // Idle memory of the pool's, whose last use runs still.
  void leave_idle(GraphPool& pool, Stream stream) {
    Result<PoolBinding> binding = pool.warm_up(stream);
    ASSERT_TRUE(binding.ok());
    void* const x = allocate(heap_, kBlock, stream);
    write(stream, x, kBlock, kLong);
    free(heap_, x);
  }

  DeviceHeap heap_{device_, {.trust = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Trusts, TrimOfPools, testing::Values(Trust::told, Trust::context),
                         [](const auto& trust) {
                           return trust.param == Trust::told ? "told" : "context";
                         });

TEST_P(TrimOfPools, WaitsForTheirIdleMemory) {
  GraphPool pool(heap_);
  leave_idle(pool, a_);
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_EQ(reserved(), kBlock) << "its last use runs still";
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
  EXPECT_GE(device_.now(), kLong);
}

// Its memory could not go back anyway.
TEST_P(TrimOfPools, WaitsForNoPoolThatIsCapturedInto) {
  GraphPool pool(heap_);
  leave_idle(pool, a_);
  Result<CaptureScope> capture = CaptureScope::begin(pool, c_);
  ASSERT_TRUE(capture.ok()) << capture.error().message();
  const std::uint64_t waits = heap_.statistics().host_waits;
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(heap_.statistics().host_waits, waits);
  EXPECT_EQ(reserved(), kBlock);
  EXPECT_TRUE(capture->end().ok());
  device_.finish();
}

// Something that another thread does while the host waits for all work of the device, or for an
// event.
class Meanwhile : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status synchronize_context() override {
    Status waited = inner_.synchronize_context();
    if (const auto once = std::exchange(meanwhile, nullptr)) once();
    return waited;
  }
  Status synchronize(EventHandle event) override {
    if (const auto once = std::exchange(at_event, nullptr)) once();
    return inner_.synchronize(event);
  }

  std::function<void()> meanwhile;  // done once, after what the host waits for
  std::function<void()> at_event;   // done once, as the host begins to wait
};

class DuringTheWait : public test::CoreHeap {
 protected:
  static constexpr Bytes kBlock = 64_MiB;
  static constexpr Nanoseconds kLong = 50_ms;

  void TearDown() override {
    EXPECT_EQ(watched_.meanwhile, nullptr) << "the host never waited";
    EXPECT_EQ(watched_.at_event, nullptr) << "the host never waited";
    for (const Race& race : device_.races()) ADD_FAILURE() << race.describe();
  }
  void order(Stream earlier, Stream later) {
    const EventHandle event = *device_.create_event();
    ASSERT_TRUE(device_.record(event, earlier).ok());
    ASSERT_TRUE(device_.wait(later, event).ok());
    ASSERT_TRUE(device_.destroy_event(event).ok());
  }
  void read(Stream stream, void* block, Bytes bytes) {
    ASSERT_TRUE(device_.launch(stream, Reads(block, bytes), kLong).ok());
  }
  // Its pages are idle: the block is not kept for the next request of its size.
  void give_back(DeviceHeap& heap, void* block) {
    free(heap, block);
    EXPECT_TRUE(heap.trim().ok());
  }
  static Bytes reserved(const DeviceHeap& heap) {
    return Bytes{heap.statistics().reserved_bytes.current};
  }

  Meanwhile watched_{device_};
};

// The host waits for all there is, as the stream may be gone.
TEST_F(DuringTheWait, MemoryOfAStreamThatMayEndIsFreedAndNotCoveredByTheWait) {
  DeviceHeap heap(watched_);
  Stream lasting = device_.new_stream();
  lasting.may_end = true;
  void* const x = allocate(heap, kBlock, lasting);
  void* const y = allocate(heap, kBlock, lasting);
  write(lasting, x, kBlock);
  free(heap, x);
  watched_.meanwhile = [&] {
    read(lasting, y, kBlock);
    give_back(heap, y);
  };
  EXPECT_TRUE(heap.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(heap), kBlock) << "y is read still";
  device_.finish();
}

// Blocks whose recorded stream no event can be recorded on go back once the host has waited for all
// work: one that is freed meanwhile was used meanwhile.
TEST_F(DuringTheWait, ABlockIsDeferredAndStaysDeferred) {
  constexpr Bytes kSmall = 512_KiB;
  DeviceHeap heap(watched_, {.trust = Trust::context, .context_events = false});
  void* const beside = allocate(heap, kSmall, a_);  // so that no page is idle
  void* const x = allocate(heap, kSmall, a_);
  void* const y = allocate(heap, kSmall, a_);
  for (void* const block : {x, y}) {
    write(a_, block, kSmall);
    ASSERT_TRUE(heap.record_stream(block, b_).ok());
  }
  order(a_, b_);
  read(b_, x, kSmall);
  for (std::uint64_t i = 1; i <= 100; ++i) device_.fail(DeviceCall::record, i);
  free(heap, x);
  ASSERT_TRUE(heap.find(x).has_value()) << "deferred";
  watched_.meanwhile = [&] {
    read(b_, y, kSmall);
    free(heap, y);
  };
  EXPECT_TRUE(heap.trim(0_B, Trim::waits).ok());
  EXPECT_FALSE(heap.find(x).has_value());
  EXPECT_TRUE(heap.find(y).has_value()) << "it is read still";
  for (int i = 0; i < 2; ++i) write(a_, allocate(heap, kSmall, a_), kSmall);
  EXPECT_THAT(heap.validate(), testing::IsEmpty());
  free(heap, beside);
  device_.finish();
}

// Another thread sees that it is complete, and gives back all events that it has no use for.
TEST_F(DuringTheWait, TheEventThatTheHostWaitsForStays) {
  DeviceHeap heap(watched_);
  void* const x = allocate(heap, kBlock, a_);
  write(a_, x, kBlock, kLong);
  free(heap, x);
  watched_.at_event = [&] {
    device_.finish();
    EXPECT_TRUE(heap.trim().ok());
  };
  const Result<Bytes> gone = heap.trim(0_B, Trim::waits);
  EXPECT_TRUE(gone.ok()) << (gone.ok() ? "" : gone.error().message());
  EXPECT_EQ(reserved(heap), 0_B);
  EXPECT_THAT(heap.validate(), testing::IsEmpty());
}

}  // namespace
}  // namespace weir
