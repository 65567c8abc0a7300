// SPDX-License-Identifier: Apache-2.0
// Files for tests of recordings, and a heap that makes them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/temporary_folder.h"
#include "weir/device_heap.h"
#include "weir/recorder.h"
#include "weir/recording.h"
#include "weir/sim_device.h"

namespace weir::test {

inline Event event(EventKind kind, std::uint64_t address, Nanoseconds time,
                   std::uint64_t stream = 40) {
  Event event;
  event.kind = kind;
  event.address = Address{address};
  event.time = time;
  event.stream = stream;
  return event;
}

inline Event allocated(std::uint64_t address, Bytes requested, Nanoseconds time,
                       std::uint64_t stream) {
  Event allocate = event(EventKind::allocate, address, time, stream);
  allocate.requested = requested;
  allocate.bytes = round_up(requested, kGrain);
  return allocate;
}

inline Event freed(const Event& allocate, Nanoseconds time) {
  Event event = allocate;
  event.kind = EventKind::deallocate;
  event.time = time;
  event.stack = 0;
  return event;
}

// All fields of one event, for comparing and for messages.
inline std::string text_of(const Event& event) {
  std::string text(name_of(event.kind));
  for (const std::uint64_t field :
       {std::uint64_t{event.heap.value}, std::uint64_t{event.page.value},
        static_cast<std::uint64_t>(event.time.count), event.stream, event.other,
        event.address.value, event.bytes.count, event.requested.count, event.sequence.value,
        static_cast<std::uint64_t>(event.duration.count), event.pool, std::uint64_t{event.stack},
        std::uint64_t{event.plain}}) {
    text += ' ' + std::to_string(field);
  }
  return text;
}

inline std::vector<std::string> texts_of(const std::vector<Event>& events) {
  std::vector<std::string> texts;
  for (const Event& each : events) texts.push_back(text_of(each));
  return texts;
}

// Keeps every event as it comes, for comparing with what a recording says.
class Collector final : public EventSink {
 public:
  void on_event(const Event& event) override { events.push_back(event); }
  std::vector<Event> events;  // of one thread
};

// Stacks of given frames; the current one is `next`.
class GivenStacks final : public StackSource {
 public:
  std::uint32_t here() override { return next; }
  std::vector<RecordedFrame> frames(std::uint32_t stack) override { return ++asked, of[stack]; }
  std::map<std::uint32_t, std::vector<RecordedFrame>> of;
  std::uint32_t next = 0;
  int asked = 0;
};

class RecordingFiles : public testing::Test {
 protected:
  std::unique_ptr<Recorder> open(const RecorderOptions& options = {}) {
    Result<std::unique_ptr<Recorder>> recorder = Recorder::open(path_, options);
    EXPECT_TRUE(recorder.ok()) << recorder.error().message();
    return *std::move(recorder);
  }
  Recording read(const ReadOptions& options = {}) const {
    Result<Recording> recording = read_recording(path_, options);
    EXPECT_TRUE(recording.ok()) << recording.error().message();
    return recording.ok() ? *std::move(recording) : Recording{};
  }
  std::string bytes() const { return content_of(path_); }
  void put_bytes(std::string_view bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "test.weir";
};

enum class Kept { some, none };
// Allocations, fences and deallocations of several sizes, on two streams. A few blocks stay live,
// or none.
inline void run_some(DeviceHeap& heap, Stream a, Stream b, int rounds, Kept kept = Kept::some) {
  std::vector<void*> live;
  for (int i = 0; i < rounds; ++i) {
    const Bytes bytes{std::uint64_t{700} << (i * 7 % 15)};
    Result<void*> block = heap.allocate(bytes, i % 3 == 0 ? b : a);
    ASSERT_TRUE(block.ok()) << block.error().message();
    if (i % 4 == 0) {
      ASSERT_TRUE(heap.fence(*block, i % 3 == 0 ? a : b).ok());
    }
    live.push_back(*block);
    if (live.size() < 9) continue;
    ASSERT_TRUE(heap.deallocate(live[static_cast<std::size_t>(i) % 9]).ok());
    live.erase(live.begin() + i % 9);
  }
  if (kept == Kept::some) return;
  for (void* const block : live) ASSERT_TRUE(heap.deallocate(block).ok());
}

}  // namespace weir::test
