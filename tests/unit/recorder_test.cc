#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "observe/event_ring.h"
#include "replay/trace_reader.h"
#include "weir/trace_recorder.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

Event event(EventKind kind, std::uint64_t address, Nanoseconds time, std::uint64_t stream = 40) {
  Event event;
  event.kind = kind;
  event.address = Address{address};
  event.time = time;
  event.stream = stream;
  return event;
}

Event allocated(std::uint64_t address, Bytes requested, Nanoseconds time, std::uint64_t stream) {
  Event allocate = event(EventKind::allocate, address, time, stream);
  allocate.requested = requested;
  allocate.bytes = round_up(requested, kGrain);
  return allocate;
}

class Recorder : public ::testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "recorder_test." + std::to_string(getpid()) + ".trace";

  std::unique_ptr<TraceRecorder> open(TraceRecorderOptions options = {}) {
    Result<std::unique_ptr<TraceRecorder>> recorder = TraceRecorder::open(path_, options);
    EXPECT_TRUE(recorder.ok());
    return *std::move(recorder);
  }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
};

TEST_F(Recorder, WritesTheTraceFormat) {
  {
    const auto recorder = open({.workload = "a \"quoted\" name"});
    recorder->on_event(allocated(0x1000, 700_B, 5_us, 40));
    recorder->on_event(allocated(0x2000, 64_B, 6_us, 12));
    Event fence = event(EventKind::fence, 0x1000, 7_us, 0);
    fence.other = 12;
    recorder->on_event(fence);
    recorder->on_event(event(EventKind::create, 0, 8_us));  // not part of the format
    recorder->on_event(event(EventKind::deallocate, 0x1000, 9_us, 40));
    Event wait = event(EventKind::stream_wait, 0, 9_us, 40);
    wait.other = 12;
    recorder->on_event(wait);
    recorder->on_event(allocated(0x1000, 800_B, 10_us, 40));  // the address again: a new block
    Event out = event(EventKind::out_of_memory, 0, 11_us, 12);
    out.requested = 1_GiB;
    recorder->on_event(out);
  }
  const std::string written = text();
  EXPECT_THAT(written, HasSubstr("{\"workload\": \"a \\\"quoted\\\" name\""));
  EXPECT_EQ(written.substr(written.find('\n') + 1),
            "a 0 700 0 5\n"
            "a 1 64 1 6\n"
            "u 0 1 7\n"
            "r 0 700 0 9\n"
            "f 0 700 0 9\n"
            "w 0 1 9\n"
            "a 2 800 0 10\n"
            "m out of memory: 1073741824 bytes on stream 1\n"
            "# end: 7 events recorded, 0 dropped\n");
  EXPECT_TRUE(parse_trace(written, "written").ok());
}

TEST_F(Recorder, TimeInTheFileNeverGoesBack) {
  {
    const auto recorder = open();
    recorder->on_event(allocated(0x1000, 1_B, 9_us, 1));
    recorder->on_event(allocated(0x2000, 1_B, 8_us, 2));  // a thread that was slow to get here
  }
  EXPECT_THAT(text(), HasSubstr("a 0 1 0 9\na 1 1 1 9\n"));
}

TEST_F(Recorder, DropsAndCountsWhatComesWhileTheRingIsFull) {
  constexpr std::uint64_t kBlocks = 200000;
  std::uint64_t dropped = 0;
  {
    const auto recorder = open({.workload = "flood", .ring_events = 2});
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
      recorder->on_event(allocated(0x1000 + 0x200 * (i % 64), 1_B, Nanoseconds{1}, 1));
      recorder->on_event(event(EventKind::deallocate, 0x1000 + 0x200 * (i % 64), 1_ns, 1));
    }
    ASSERT_TRUE(recorder->close().ok());
    dropped = recorder->dropped();
  }
  ASSERT_GT(dropped, 0u) << "the writer kept up with a ring of two events";
  const std::string written = text();
  EXPECT_THAT(written, HasSubstr("# end: " + std::to_string(2 * kBlocks - dropped) +
                                 " events recorded, " + std::to_string(dropped) + " dropped\n"));
  const Result<Trace> trace = parse_trace(written, "written");
  EXPECT_TRUE(trace.ok()) << trace.error().message();
}

TEST_F(Recorder, KeepsEveryEventOfManyThreads) {
  constexpr std::uint64_t kThreads = 4, kBlocks = 2000;
  {
    const auto recorder = open();
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&recorder, t] {
        for (std::uint64_t i = 0; i < kBlocks; ++i) {
          const std::uint64_t address = ((t + 1) << 32) + 0x200 * (i % 7);
          recorder->on_event(allocated(address, Bytes{i + 1}, 1_us, t));
          recorder->on_event(event(EventKind::deallocate, address, 1_us, t));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const Result<Trace> trace = parse_trace(text(), "written");
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  EXPECT_EQ(trace->blocks.size(), kThreads * kBlocks);
  EXPECT_EQ(trace->ops.size(), 2 * kThreads * kBlocks);
  std::vector<std::uint64_t> next(kThreads, 1);  // each thread's blocks come in its own order
  for (const TraceBlock& block : trace->blocks) {
    EXPECT_EQ(block.bytes.count, next[block.stream]++);
  }
}

TEST_F(Recorder, CompressesWhenTheNameSaysSo) {
  path_ += ".gz";
  open()->on_event(allocated(0x1000, 1_B, 9_us, 1));
  EXPECT_EQ(text().substr(0, 2), "\x1f\x8b");
  const Result<Trace> trace = read_trace(path_);
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  EXPECT_EQ(trace->blocks.size(), 1u);
}

TEST_F(Recorder, FileThatCannotBeOpenedIsNamed) {
  const auto recorder = TraceRecorder::open("/nowhere/at/all.trace");
  ASSERT_FALSE(recorder.ok());
  EXPECT_EQ(recorder.error().code(), ErrorCode::invalid_input);
  EXPECT_THAT(recorder.error().message(), HasSubstr("/nowhere/at/all.trace"));
}

TEST_F(Recorder, DiskThatIsFullIsAnErrorOfClose) {
  const auto recorder = TraceRecorder::open("/dev/full");
  if (!recorder.ok()) GTEST_SKIP() << "no /dev/full here";
  (*recorder)->on_event(allocated(0x1000, 1_B, 9_us, 1));
  const Status closed = (*recorder)->close();
  ASSERT_FALSE(closed.ok());
  EXPECT_THAT(closed.error().message(), HasSubstr("No space left"));
  EXPECT_TRUE((*recorder)->close().ok()) << "a second close does nothing";
}

TEST(EventRing, GivesBackWhatWasPutInInOrderAndRefusesMore) {
  EventRing ring(4);
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(ring.push(event(EventKind::allocate, i, 0_ns)));
    }
    EXPECT_FALSE(ring.push(event(EventKind::allocate, 9, 0_ns)));
    for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(ring.pop()->address.value, i);
    EXPECT_FALSE(ring.pop().has_value());
  }
}

}  // namespace
}  // namespace weir
