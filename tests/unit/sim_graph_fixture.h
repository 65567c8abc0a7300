// SPDX-License-Identifier: Apache-2.0
// A simulated device, three streams and a page, for tests of captures and graphs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/sim_memory_helpers.h"
#include "weir/sim_device.h"

namespace weir::test {

class SimGraphs : public testing::Test {
 protected:
  void begin(Stream stream, CaptureMode mode = CaptureMode::global) {
    const Status begun = device_.begin_capture(stream, mode);
    ASSERT_TRUE(begun.ok()) << begun.error().message();
  }
  GraphHandle end(Stream stream) {
    const Result<GraphHandle> graph = device_.end_capture(stream);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    return graph.ok() ? *graph : GraphHandle{};
  }
  ExecutableHandle instantiate(GraphHandle graph) {
    const Result<ExecutableHandle> executable = device_.instantiate(graph);
    EXPECT_TRUE(executable.ok()) << executable.error().message();
    return executable.ok() ? *executable : ExecutableHandle{};
  }

  // A kernel that touches 512 bytes of the page, in the `slot`-th place for them.
  void write(Stream stream, int slot, Nanoseconds duration = 1_us) {
    touch(stream, Writes(at(slot), 512_B), duration);
  }
  void read(Stream stream, int slot) { touch(stream, Reads(at(slot), 512_B), 1_us); }
  void touch(Stream stream, const Access& access, Nanoseconds duration = 1_us) {
    const Status launched = device_.launch(stream, access, duration);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
  }
  void* at(int slot) const { return page_.at(Bytes{512} * static_cast<std::uint64_t>(slot)); }

  EventHandle record(Stream stream) {
    const EventHandle event = *device_.create_event();
    const Status recorded = device_.record(event, stream);
    EXPECT_TRUE(recorded.ok()) << recorded.error().message();
    return event;
  }
  // `later` waits for the work queued so far on `earlier`.
  void order(Stream earlier, Stream later) {
    const Status waited = device_.wait(later, record(earlier));
    ASSERT_TRUE(waited.ok()) << waited.error().message();
  }

  CaptureInfo::Status status(Stream stream) { return device_.capture_info(stream)->status; }
  std::uint64_t id(Stream stream) { return device_.capture_info(stream)->id; }
  std::vector<GraphNode> tips(Stream stream) { return *device_.capture_tips(stream); }
  std::vector<GraphNode> dependencies(GraphNode node) { return *device_.node_dependencies(node); }

  // The capture of `stream` is broken: nothing goes on in it, and its end says `why`.
  void expect_broken(Stream stream, const char* why) {
    EXPECT_EQ(status(stream), CaptureInfo::Status::invalidated);
    EXPECT_EQ(device_.launch(stream, 1_us).error().code(), ErrorCode::capture);
    const EventHandle event = *device_.create_event();
    EXPECT_EQ(device_.record(event, stream).error().code(), ErrorCode::capture);
    EXPECT_EQ(device_.wait(stream, event).error().code(), ErrorCode::capture);
    EXPECT_EQ(device_.capture_tips(stream).error().code(), ErrorCode::capture);
    EXPECT_EQ(device_.add_capture_dependencies(stream, {}).error().code(), ErrorCode::capture);
    const Result<GraphHandle> graph = device_.end_capture(stream);
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().code(), ErrorCode::capture);
    EXPECT_THAT(graph.error().message(), testing::HasSubstr(why));
    EXPECT_EQ(status(stream), CaptureInfo::Status::none);
    EXPECT_EQ(device_.live().graphs, 0u);
  }

  SimDevice device_;
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream(), c_ = device_.new_stream();
  const MappedPage page_ = new_page(device_);
};

}  // namespace weir::test
