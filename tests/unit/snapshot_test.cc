// SPDX-License-Identifier: Apache-2.0
#include "weir/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/recording_fixture.h"
#include "weir/graph_pool.h"

namespace weir {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class SnapshotTest : public test::RecordingFiles {
 protected:
  SimDevice device_;
  Stream a_ = device_.new_stream(), b_ = device_.new_stream();
};

TEST_F(SnapshotTest, SaysOfEachBlockWhoseItIsAndWhoUsesIt) {
  DeviceHeap heap(device_);
  void* const plain = *heap.allocate(1_MiB, a_);
  void* const fenced = *heap.allocate(2_MiB, a_);
  ASSERT_TRUE(heap.fence(fenced, b_).ok());
  const HeapSnapshot snapshot = heap.snapshot();
  ASSERT_THAT(snapshot.blocks, SizeIs(2));
  for (const BlockInfo& block : snapshot.blocks) {
    EXPECT_EQ(block.stream, a_.id);
    EXPECT_EQ(block.pool, 0u);
    EXPECT_FALSE(block.allocated_at) << "nobody recorded";
    if (block.address == Address::of(fenced)) {
      EXPECT_THAT(block.waits_for, ElementsAre(b_.id));
    } else {
      EXPECT_EQ(block.address, Address::of(plain));
      EXPECT_THAT(block.waits_for, SizeIs(0));
    }
  }
  EXPECT_EQ(snapshot.device, device_.name());
  EXPECT_EQ(snapshot.device_bytes, device_.memory_info()->total);
  ASSERT_THAT(snapshot.heaps, SizeIs(1));
  EXPECT_EQ(snapshot.heaps[0].stream, a_.id);
  EXPECT_TRUE(snapshot.heaps[0].open);
  EXPECT_EQ(snapshot.statistics, heap.statistics());
}

// What must hold in any snapshot, whatever other threads do meanwhile.
void expect_consistent(const HeapSnapshot& snapshot) {
  Bytes live, requested, reserved, used, mapped;
  Address end;
  for (const BlockInfo& block : snapshot.blocks) {
    ASSERT_GE(block.address, end) << "blocks overlap";
    end = block.address + block.bytes;
    live += block.bytes;
    requested += block.requested;
    ASSERT_LT(block.heap.value, snapshot.heaps.size());
  }
  std::uint64_t mappings = 0;
  for (const PageInfo& page : snapshot.pages) {
    reserved += page.bytes;
    used += page.used;
    mappings += page.mapped_at.size();
    mapped += page.bytes * page.mapped_at.size();
    ASSERT_EQ(page.lease.has_value(), page.used > 0_B);
  }
  const Statistics& all = snapshot.statistics;
  ASSERT_EQ(all.live_blocks.current, snapshot.blocks.size());
  ASSERT_EQ(all.live_bytes.current, live.count);
  ASSERT_EQ(all.requested_bytes.current, requested.count);
  ASSERT_EQ(all.reserved_bytes.current, reserved.count);
  ASSERT_EQ(all.pages.current, snapshot.pages.size());
  ASSERT_EQ(all.mappings.current, mappings);
  ASSERT_EQ(all.mapped_bytes.current, mapped.count);
  ASSERT_GE(used, live);
}

TEST_F(SnapshotTest, IsOfOneMomentWhileThreadsAllocate) {
  DeviceHeap heap(device_);
  std::atomic<bool> done{false};
  std::atomic<int> rounds{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    const Stream own = device_.new_stream();
    threads.emplace_back([&, own] {
      for (; !done; ++rounds) test::run_some(heap, own, a_, 50, test::Kept::none);
    });
  }
  threads.emplace_back([&] {
    while (!done) ASSERT_TRUE(heap.trim().ok());
  });
  for (int i = 0; i < 60 || rounds < 100; ++i) expect_consistent(heap.snapshot());
  done = true;
  for (std::thread& thread : threads) thread.join();
  expect_consistent(heap.snapshot());
}

TEST_F(SnapshotTest, AsJsonHasWhatTheDocumentSays) {
  DeviceHeap heap(device_);
  void* const block = *heap.allocate(1000_B, a_);
  ASSERT_TRUE(heap.fence(block, b_).ok());
  const json snapshot = json::parse(to_json(heap.snapshot()));
  EXPECT_EQ(snapshot["weir_snapshot"], 1);
  EXPECT_EQ(snapshot["device"]["name"], device_.name());
  EXPECT_EQ(snapshot["heaps"][0]["stream"], a_.id);
  ASSERT_EQ(snapshot["blocks"].size(), 1u);
  EXPECT_EQ(snapshot["blocks"][0]["address"], Address::of(block).value);
  EXPECT_EQ(snapshot["blocks"][0]["bytes"], 1024);
  EXPECT_EQ(snapshot["blocks"][0]["requested"], 1000);
  EXPECT_EQ(snapshot["blocks"][0]["waits_for"], json::array({b_.id}));
  EXPECT_TRUE(snapshot["blocks"][0]["allocated_at_ns"].is_null());
  EXPECT_EQ(snapshot["pages"][0]["lease"], 0);
  EXPECT_EQ(snapshot["pages"][0]["lent_by"], 0);
  EXPECT_EQ(snapshot["pages"][0]["mappings"][0]["heap"], 0);
  EXPECT_EQ(snapshot["statistics"]["live_bytes"]["current"], 1024);
  EXPECT_EQ(snapshot["statistics"]["heaps"].size(), 1u);
}

TEST_F(SnapshotTest, IsWrittenWholeAndCompressedWhereTheNameSaysSo) {
  DeviceHeap heap(device_);
  (void)*heap.allocate(1000_B, a_);
  const HeapSnapshot snapshot = heap.snapshot();
  ASSERT_TRUE(write_snapshot(snapshot, path_).ok());
  EXPECT_EQ(bytes(), to_json(snapshot));
  const std::string zipped = path_ + ".gz";
  ASSERT_TRUE(write_snapshot(snapshot, zipped).ok());
  const gzFile file = gzopen(zipped.c_str(), "rb");
  std::string text(bytes().size() + 1, '\0');
  text.resize(
      static_cast<std::size_t>(gzread(file, text.data(), static_cast<unsigned>(text.size()))));
  EXPECT_EQ(gzdirect(file), 0);
  gzclose(file);
  (void)std::remove(zipped.c_str());
  EXPECT_EQ(text, to_json(snapshot));
  EXPECT_THAT(
      write_snapshot(snapshot, "/nowhere/at/all.json").error().message(),
      AllOf(HasSubstr("snapshot /nowhere/at/all.json: there is no folder /nowhere/at: make it"),
            Not(HasSubstr("unfinished"))));
}

TEST_F(SnapshotTest, IsWrittenIntoAPipe) {
  const HeapSnapshot snapshot;
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string text;
  std::thread reader([&] { text = test::content_of(pipe); });
  EXPECT_TRUE(write_snapshot(snapshot, pipe).ok());
  reader.join();
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(text, to_json(snapshot));
}

TEST_F(SnapshotTest, ThatCanNotTakeItsPlaceLeavesNothingBehind) {
  std::filesystem::create_directory(path_);
  const Status written = write_snapshot(HeapSnapshot{}, path_);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code(), ErrorCode::invalid_input);
  EXPECT_THAT(written.error().message(), HasSubstr(path_ + ": cannot be replaced: "));
  EXPECT_THAT(folder_.names(), ElementsAre("test.weir"));
}

TEST_F(SnapshotTest, WhatIsNoPlainFileIsWrittenToAndStays) {
  DeviceHeap heap(device_);
  const HeapSnapshot snapshot = heap.snapshot();
  const std::string link = path_ + ".link";
  ASSERT_EQ(::symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_TRUE(write_snapshot(snapshot, link).ok());
  EXPECT_EQ(bytes(), to_json(snapshot));
  EXPECT_EQ(std::remove(path_.c_str()), 0);  // it was no other file that was written
  ASSERT_EQ(::unlink(link.c_str()), 0);
  ASSERT_EQ(::symlink("/dev/full", link.c_str()), 0);
  EXPECT_THAT(write_snapshot(snapshot, link).error().message(), HasSubstr("No space left"));
  EXPECT_EQ(::unlink(link.c_str()), 0);
}

}  // namespace
}  // namespace weir
