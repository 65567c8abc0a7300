// SPDX-License-Identifier: Apache-2.0
// A heap that is recorded from its beginning, from the middle, and while threads are at work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "observe/recorded_state.h"
#include "tests/events_of.h"
#include "tests/unit/recording_fixture.h"
#include "weir/config.h"
#include "weir/graph_pool.h"

namespace weir {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

std::vector<std::string> kinds_of(const std::vector<Event>& events, EventKind kind) {
  std::vector<std::string> texts;
  for (const Event& event : events) {
    if (event.kind != kind) continue;
    texts.push_back("stream " + std::to_string(event.stream) + " pool " +
                    std::to_string(event.pool));
  }
  return texts;
}

// What the events say must be what the heap says.
void expect_agreement(const DeviceHeap& heap, const std::vector<Event>& events) {
  const HeapSnapshot snapshot = heap.snapshot();  // gives back what is cached: that is recorded
  RecordedState state;
  for (const Event& event : events) state.accept(event, [](const Event&) {});
  EXPECT_EQ(state.repaired(), 0u);
  std::map<std::uint64_t, BlockInfo> blocks;
  for (const BlockInfo& block : snapshot.blocks) blocks[block.address.value] = block;
  std::set<std::uint32_t> pages;
  std::size_t live = 0, mappings = 0, leases = 0;
  for (const Event& event : state.as_events({})) {
    if (event.kind == EventKind::create) pages.insert(event.page.value);
    if (event.kind == EventKind::map) ++mappings;
    if (event.kind == EventKind::lease) ++leases;
    if (event.kind != EventKind::allocate) continue;
    ++live;
    ASSERT_TRUE(blocks.contains(event.address.value));
    const BlockInfo& block = blocks[event.address.value];
    EXPECT_EQ(block.bytes, event.bytes);
    EXPECT_EQ(block.requested, event.requested);
    EXPECT_EQ(block.stream, event.stream);
    EXPECT_EQ(block.heap, event.heap);
  }
  EXPECT_EQ(live, snapshot.blocks.size());
  EXPECT_EQ(mappings, snapshot.statistics.mappings.current);
  EXPECT_EQ(pages.size(), snapshot.pages.size());
  std::size_t leased = 0;
  for (const PageInfo& page : snapshot.pages) {
    EXPECT_TRUE(pages.contains(page.page.value));
    leased += page.lease ? 1 : 0;
  }
  EXPECT_EQ(leases, leased);
}

class HeapRecording : public test::RecordingFiles {
 protected:
  SimDevice device_;
  Stream a_ = device_.new_stream(), b_ = device_.new_stream();
};

TEST_F(HeapRecording, AFileHasEachEventAsItWasWithAllOfItsFields) {
  for (const MemoryKind memory : {MemoryKind::pages, MemoryKind::plain}) {
    test::Collector events;
    DeviceHeap heap(device_, {.memory = memory}, &events);
    const auto recorder = open();
    heap.start_recording(*recorder);
    events.events.clear();
    test::run_some(heap, a_, b_, 300);
    {
      GraphPool pool(heap, {.memory = MemoryKind::plain});
      void* const block = *pool.allocate(3_MiB, a_);
      ASSERT_TRUE(heap.deallocate(block).ok());
    }
    EXPECT_TRUE(heap.trim().ok());
    EXPECT_TRUE(heap.stop_recording(*recorder));
    ASSERT_TRUE(recorder->close().ok());
    const Recording recording = read();
    std::vector<Event> recorded = test::events_of(recording);
    recorded.erase(recorded.begin(),
                   recorded.begin() + static_cast<std::ptrdiff_t>(recording.initial));
    EXPECT_EQ(test::texts_of(recorded), test::texts_of(events.events)) << name_of(memory);
    const auto is_plain = [](const Event& event) { return event.plain; };
    EXPECT_TRUE(std::any_of(recorded.begin(), recorded.end(), is_plain)) << name_of(memory);
  }
}

TEST_F(HeapRecording, OnceStoppedGetsNoMoreAndCanBeStartedByAnother) {
  DeviceHeap heap(device_);
  test::Collector first, second;
  heap.start_recording(first);
  test::run_some(heap, a_, b_, 20);
  heap.start_recording(second);
  EXPECT_TRUE(heap.stop_recording(first));
  EXPECT_FALSE(heap.stop_recording(first));
  const std::size_t had = first.events.size();
  test::run_some(heap, a_, b_, 20);
  EXPECT_EQ(first.events.size(), had);
  expect_agreement(heap, second.events);
  EXPECT_TRUE(heap.stop_recording(second));
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(HeapRecording, SaysWhenPoolsAndCapturesBeginAndEnd) {
  test::Collector events;
  DeviceHeap heap(device_, {}, &events);
  test::Collector late;
  {
    GraphPool pool(heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, a_);
    ASSERT_TRUE(capture.ok()) << capture.error().message();
    Result<void*> block = heap.allocate(3_MiB, a_);
    ASSERT_TRUE(block.ok()) << block.error().message();
    heap.start_recording(late);
    ASSERT_TRUE(heap.deallocate(*block).ok());
    ASSERT_TRUE(capture->end().ok());
  }
  for (const test::Collector* each : {&events, &late}) {
    for (const EventKind kind : {EventKind::pool_open, EventKind::capture_begin,
                                 EventKind::capture_end, EventKind::pool_close}) {
      EXPECT_EQ(kinds_of(each->events, kind), std::vector<std::string>{"stream 0 pool 1"})
          << name_of(kind);
    }
    EXPECT_THAT(kinds_of(each->events, EventKind::heap_open),
                Contains("stream " + std::to_string(a_.id) + " pool 1"));
    expect_agreement(heap, each->events);
  }
}

// Threads allocate at full speed while recordings start and stop and snapshots are taken.
TEST_F(HeapRecording, StartsAndStopsWhileThreadsAllocate) {
  DeviceHeap heap(device_);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    const Stream own = device_.new_stream();
    threads.emplace_back([&, own, t] {
      while (!done)
        test::run_some(heap, t == 0 ? a_ : own, t == 0 ? own : a_, 40, test::Kept::none);
    });
  }
  for (int round = 0; round < 15; ++round) {
    const auto recorder = open({.ring_events = std::size_t{1} << 18});
    heap.start_recording(*recorder);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(heap.stop_recording(*recorder));
    ASSERT_TRUE(recorder->close().ok());
    const Recording recording = read();
    EXPECT_EQ(recording.damage, "");
    EXPECT_EQ(recording.dropped, recorder->dropped());
    RecordedState state;
    for (const Event& event : recording.events) state.accept(event, [](const Event&) {});
    EXPECT_EQ(state.repaired(), 0u);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(heap.validate(), IsEmpty());
}

}  // namespace
}  // namespace weir
