// SPDX-License-Identifier: Apache-2.0
#include "weir/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "tests/events_of.h"
#include "tests/unit/recording_fixture.h"

namespace weir {
namespace {

using test::allocated;

using test::freed;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using RecorderFile = test::RecordingFiles;

TEST_F(RecorderFile, NamesTheRunningProgram) {
  open()->on_event(allocated(0x1000, 1_B, 1_us, 1));
  EXPECT_THAT(read().program, HasSubstr("unit_recording"));
}

TEST_F(RecorderFile, TimeNeverGoesBack) {
  {
    const auto recorder = open();
    recorder->on_event(allocated(0x1000, 1_B, 9_us, 1));
    recorder->on_event(allocated(0x2000, 1_B, 8_us, 2));  // a thread that was slow to get here
  }
  const Recording recording = read();
  ASSERT_THAT(recording.events, SizeIs(2));
  EXPECT_EQ(recording.events[1].time, 9_us);
}

TEST_F(RecorderFile, DropsAndCountsWhatComesWhileTheRingIsFull) {
  constexpr std::uint64_t kBlocks = 200'000;
  const auto recorder = open({.ring_events = 2});
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    const Event block = allocated(0x1000 + 0x200 * (i % 64), 1_B, Nanoseconds{1}, 1);
    recorder->on_event(block);
    recorder->on_event(freed(block, 1_ns));
  }
  ASSERT_TRUE(recorder->close().ok());
  ASSERT_GT(recorder->dropped(), 0u) << "the writer kept up with a ring of two events";
  const Recording recording = read();
  EXPECT_EQ(recording.dropped, recorder->dropped());
  EXPECT_EQ(recording.damage, "");
  bool live[64] = {};
  for (const Event& each : recording.events) {
    bool& block = live[(each.address.value - 0x1000) / 0x200];
    EXPECT_NE(block, each.kind == EventKind::allocate) << "a block in the place of a live one";
    block = each.kind == EventKind::allocate;
  }
}

TEST_F(RecorderFile, AKilledProcessLeavesWhatWasFlushed) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto recorder = Recorder::open(path_);
    for (std::uint64_t i = 0; i < 1000; ++i) {
      (*recorder)->on_event(allocated(0x1000 + i * 0x200, 1_B, 9_us, 1));
    }
    (void)(*recorder)->flush();
    (void)raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const Recording recording = read();
  EXPECT_THAT(recording.events, SizeIs(1000));
  EXPECT_THAT(recording.damage, HasSubstr("the end is missing"));
}

TEST_F(RecorderFile, ThatAnotherRecorderWritesIsRefusedAndLeftAlone) {
  const auto first = Recorder::open(path_);
  ASSERT_TRUE(first.ok()) << first.error().message();
  (*first)->on_event(allocated(0x1000, 1_B, 9_us, 1));
  const auto second = Recorder::open(path_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message(), HasSubstr("another recorder"));
  ASSERT_TRUE((*first)->close().ok());
  EXPECT_EQ(read_recording(path_)->events.size(), 1u);
  EXPECT_TRUE(Recorder::open(path_).ok()) << "the first is closed";
}

TEST_F(RecorderFile, OnAFullDiskIsAnErrorOfClose) {
  const auto recorder = Recorder::open("/dev/full");
  if (!recorder.ok()) GTEST_SKIP() << "no /dev/full here";
  (*recorder)->on_event(allocated(0x1000, 1_B, 9_us, 1));
  EXPECT_THAT((*recorder)->flush().error().message(), HasSubstr("No space left"));
  const Status closed = (*recorder)->close();
  ASSERT_FALSE(closed.ok());
  EXPECT_THAT(closed.error().message(), HasSubstr("No space left"));
  EXPECT_TRUE((*recorder)->close().ok()) << "a second close does nothing";
}

TEST_F(RecorderFile, SaysWhoAskedForEachBlock) {
  const RecordedFrame main{"main", "main.cc", 1}, here{"leaf", "a.cc", 500},
      there{"leaf", "a.cc", 20};
  test::GivenStacks stacks;
  stacks.of = {{500, {here, main}}, {20, {there, main}}};
  SimDevice device;
  DeviceHeap heap(device);
  const Stream stream = device.new_stream();
  const auto recorder = open({.stacks = &stacks});
  heap.start_recording(*recorder);
  for (const std::uint32_t asking : {500u, 20u, 500u, 0u}) {
    stacks.next = asking;
    ASSERT_TRUE(heap.allocate(1_MiB, stream).ok());
  }
  EXPECT_TRUE(heap.stop_recording(*recorder));
  ASSERT_TRUE(recorder->close().ok());

  const Recording recording = read();
  std::vector<std::vector<RecordedFrame>> who;
  for (const Event& each : recording.events) {
    if (each.kind != EventKind::allocate) continue;
    auto& frames = who.emplace_back();
    for (const std::uint32_t frame : recording.stacks.at(each.stack)) {
      frames.push_back(recording.frames.at(frame));
    }
  }
  EXPECT_THAT(who, ElementsAre(ElementsAre(here, main), ElementsAre(there, main),
                               ElementsAre(here, main), ElementsAre()));
  EXPECT_THAT(recording.frames, SizeIs(3)) << "a frame stands in the file once";
  EXPECT_EQ(stacks.asked, 2) << "a stack is named once";
}

[[gnu::noinline]] std::uint32_t stack_of_one_caller() { return cpp_stacks().here(); }

TEST(CppStacks, AreTheSameForTheSameCallsAndNameTheirPlaces) {
  std::vector<std::uint32_t> seen;
  for (int i = 0; i < 3; ++i) seen.push_back(stack_of_one_caller());
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_NE(seen[0], 0u);
  EXPECT_NE(cpp_stacks().here(), seen[0]);
  const std::vector<RecordedFrame> frames = cpp_stacks().frames(seen[0]);
  ASSERT_FALSE(frames.empty());
  for (const RecordedFrame& frame : frames) EXPECT_NE(frame.function, "");
  EXPECT_THAT(frames.front().file, HasSubstr("unit_recording"));
  EXPECT_THAT(cpp_stacks().frames(0), SizeIs(0));
}

// As of a kernel's wrapper that a program compiled while it ran.
TEST(CppStacks, CodeThatIsInNoFileIsNamedByItsAddress) {
#ifndef __x86_64__
  GTEST_SKIP() << "the code below is of another processor";
#endif
  // push rbp; mov rbp, rsp; call rdi; pop rbp; ret
  constexpr unsigned char kCode[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
  void* const page = ::mmap(nullptr, sizeof kCode, PROT_READ | PROT_WRITE | PROT_EXEC,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) GTEST_SKIP() << "no code may be made here";
  std::memcpy(page, kCode, sizeof kCode);
  using Caller = std::uint32_t (*)(std::uint32_t(*)());
  const std::uint32_t stack = reinterpret_cast<Caller>(page)(&stack_of_one_caller);
  const std::vector<RecordedFrame> frames = cpp_stacks().frames(stack);
  const auto* const after_the_call = static_cast<const char*>(page) + 6;
  const std::string name =
      (std::ostringstream() << std::hex << "0x"
                            << reinterpret_cast<std::uintptr_t>(after_the_call) - 1)
          .str();
  EXPECT_THAT(frames, Contains(RecordedFrame{name, "", 0}));
  ::munmap(page, sizeof kCode);
}

[[gnu::noinline]] std::uint32_t python_stack_of_one_caller() { return python_stacks().here(); }

TEST(PythonStacks, WhereThereIsNoPythonAreThoseOfCpp) {
  const std::uint32_t stack = python_stack_of_one_caller();
  ASSERT_NE(stack, 0u);
  const std::vector<RecordedFrame> frames = python_stacks().frames(stack);
  ASSERT_FALSE(frames.empty());
  EXPECT_EQ(frames.back(), cpp_stacks().frames(cpp_stacks().here()).back());
  EXPECT_THAT(python_stacks().frames(0), SizeIs(0));
  python_ends();  // nothing to wait for
}

}  // namespace
}  // namespace weir
