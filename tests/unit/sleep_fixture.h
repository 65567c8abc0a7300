// SPDX-License-Identifier: Apache-2.0
// A simulated device that knows what its bytes hold, and a heap on it, for tests of sleep. Every
// test ends with the heap destroyed: it was sound, no race was seen, and nothing is left.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir::test {

class SleepFixture : public testing::Test {
 protected:
  explicit SleepFixture(HeapOptions options = {})
      : heap_(std::make_unique<DeviceHeap>(device_, options)) {}

  void TearDown() override {
    expect_sound();
    device_.finish();
    heap_.reset();
    for (const Race& race : device_.races()) ADD_FAILURE() << race.describe();
    EXPECT_EQ(device_.live().events, 0u);
    EXPECT_EQ(device_.live().mappings, 0u);
    EXPECT_EQ(device_.live().handles, 0u);
    EXPECT_EQ(device_.live().reservations, 0u);
    EXPECT_EQ(device_.live().host_bytes, 0_B);
  }

  void expect_sound() const { EXPECT_THAT(heap_->validate(), testing::IsEmpty()); }

  // A block that was written, whose bytes are to stay as they are.
  void* written(Bytes bytes, Stream stream) {
    return write(ok(heap_->allocate(bytes, stream)), bytes, stream);
  }
  void* written_in(const std::string& tag, Bytes bytes, Stream stream) {
    return write(ok(ok(heap_->tags().pool(tag))->allocate(bytes, stream)), bytes, stream);
  }
  void* write(void* block, Bytes bytes, Stream stream) {
    EXPECT_TRUE(device_.launch(stream, Writes(block, bytes), 50_us).ok());
    blocks_[block] = {bytes, device_.contents(Address::of(block), bytes)};
    return block;
  }
  void free(void* block) {
    EXPECT_TRUE(heap_->deallocate(block).ok());
    blocks_.erase(block);
  }
  void free_all() {
    while (!blocks_.empty()) free(blocks_.begin()->first);
  }
  // Every block holds what was written to it.
  void expect_intact() const {
    for (const auto& [block, known] : blocks_) {
      EXPECT_EQ(device_.contents(Address::of(block), known.bytes).size(), known.contents.size());
      EXPECT_TRUE(device_.contents(Address::of(block), known.bytes) == known.contents)
          << "the block of " << known.bytes.count << " bytes at " << block;
    }
  }

  template <class T>
  static T ok(Result<T> result) {
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
    return *std::move(result);
  }
  static void ok(const Status& status) {
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message());
  }
  template <class Outcome>
  static void expect_error(const Outcome& outcome, ErrorCode code, const char* says) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code(), code) << outcome.error().message();
    EXPECT_THAT(outcome.error().message(), testing::HasSubstr(says));
  }
  TagInfo tag(const std::string& name) const {
    for (const TagInfo& info : heap_->tags().list()) {
      if (info.tag == name) return info;
    }
    ADD_FAILURE() << "no tag " << name;
    return {};
  }

  struct Known {
    Bytes bytes;
    std::vector<SimContent> contents;
  };

  SimDevice device_{{.memory = 8_GiB, .track_contents = true}};
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream();
  std::unique_ptr<DeviceHeap> heap_;
  std::map<void*, Known> blocks_;
};

}  // namespace weir::test
