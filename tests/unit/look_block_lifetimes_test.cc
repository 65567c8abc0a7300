// SPDX-License-Identifier: Apache-2.0
// Blocks, pages and memory, as the events of a recording say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "look/block_lifetimes.h"
#include "look/load.h"
#include "look/report.h"
#include "replay/replay.h"
#include "replay/trace_reader.h"
#include "tests/temporary_folder.h"
#include "tests/unit/look_recordings.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(BlockLifetimes, BlocksThatAreThereAtTheBeginningOrAtTheEndSaySo) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 512_B).initial();
  made.allocate(kAt + 512, 512_B).deallocate(kAt);
  const BlockLifetimes lifetimes = lifetimes_of(made.recording);
  ASSERT_EQ(lifetimes.blocks.size(), 2U);
  EXPECT_TRUE(lifetimes.blocks[0].live_at_begin);
  EXPECT_FALSE(lifetimes.blocks[0].live_at_end);
  EXPECT_FALSE(lifetimes.blocks[1].live_at_begin);
  EXPECT_TRUE(lifetimes.blocks[1].live_at_end);
  EXPECT_EQ(lifetimes.blocks[1].end, made.recording.end());
  EXPECT_EQ(lifetimes.blocks[1].end_event, BlockLifetime::kNone);
}

TEST(BlockLifetimes, PieceLeftOfABlockStaysItsOwn) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 4096_B).deallocate(kAt);
  made.allocate(kAt + 1024, 512_B).deallocate(kAt + 1024);
  made.allocate(kAt + 1536, 512_B);  // of the first block, not of the second
  const BlockLifetimes lifetimes = lifetimes_of(made.recording);
  EXPECT_EQ(lifetimes.blocks[0].reused_by, 1U);
  EXPECT_EQ(lifetimes.blocks[1].reused_by, BlockLifetime::kNone);
}

TEST(BlockLifetimes, ReuseOnAnotherStreamSaysWhetherItWaited) {
  const auto waited_for = [](std::uint64_t waiter, std::uint64_t awaited, bool before_the_free) {
    HandMade made;
    made.page(0).map(0, kAt).allocate(kAt, 512_B, 1);
    if (before_the_free) made.wait(waiter, awaited);
    made.deallocate(kAt);
    if (!before_the_free) made.wait(waiter, awaited);
    made.allocate(kAt, 512_B, 2);
    return lifetimes_of(made.recording).blocks[0].waited_for;
  };
  for (const std::uint64_t awaited : {std::uint64_t{1}, Stream::all().id}) {
    EXPECT_TRUE(waited_for(2, awaited, false)) << awaited;
    EXPECT_FALSE(waited_for(2, awaited, true)) << awaited;
  }
  EXPECT_FALSE(waited_for(3, 1, false));
}

TEST(BlockLifetimes, MemoryHasAPointForEachChangeAndItsPeaks) {
  HandMade made;
  made.page(0).map(0, kAt).allocate(kAt, 512_B).initial();
  made.allocate(kAt + 512, 1024_B).deallocate(kAt).page(1).release(1).deallocate(kAt + 512);
  const BlockLifetimes lifetimes = lifetimes_of(made.recording);
  std::vector<std::uint64_t> live, reserved_pages;
  memory_over_time(made.recording, [&](const MemoryPoint& point) {
    live.push_back(point.live.count);
    reserved_pages.push_back(point.reserved / HandMade::kPage);
  });
  EXPECT_THAT(live, ElementsAre(512, 1536, 1024, 1024, 1024, 0));
  EXPECT_THAT(reserved_pages, ElementsAre(1, 1, 1, 2, 1, 1));
  EXPECT_EQ(lifetimes.begin.time, made.recording.begin());
  EXPECT_EQ(lifetimes.peak_live.live, 1536_B);
  EXPECT_EQ(lifetimes.peak_live.time, 3_us);
  EXPECT_EQ(lifetimes.peak_live.event, 3U);
  EXPECT_EQ(lifetimes.begin.event, MemoryPoint::kInitial);
  EXPECT_EQ(lifetimes.peak_reserved.reserved, HandMade::kPage * 2);
  EXPECT_EQ(lifetimes.peak_reserved.time, 5_us);
}

TEST(BlockLifetimes, PoolOfABlockIsThatOfItsHeap) {
  HandMade made;
  made.add({.kind = EventKind::pool_open, .pool = 9});
  made.add({.kind = EventKind::heap_open, .heap = {4}, .stream = 1, .pool = 9});
  made.page(0).map(0, kAt).allocate(kAt, 512_B, 1, 4).allocate(kAt + 512, 512_B, 1, 5);
  const BlockLifetimes lifetimes = lifetimes_of(made.recording);
  EXPECT_EQ(lifetimes.blocks[0].pool, 9U);
  EXPECT_EQ(lifetimes.blocks[1].pool, 0U);
  EXPECT_THAT(lifetimes.pools, ElementsAre(9));
}

// What the folds say of a whole program is what the replay measured.
TEST(Load, TraceAgreesWithItsReplay) {
  const char* path = "bench/traces/serve_multistream.trace.gz";
  const Result<Loaded> recording = load(path);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const BlockLifetimes lifetimes = lifetimes_of(*recording);
  const Result<Trace> trace = read_trace(path);
  ASSERT_TRUE(trace.ok());
  const auto device = make_sim_replay_device();
  const Result<ReplayReport> report = replay(*trace, *device, {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(lifetimes.blocks.size(), trace->blocks.size());
  EXPECT_EQ(lifetimes.peak_live.live, trace->peak_live);
  EXPECT_EQ(lifetimes.peak_reserved.reserved, report->all.peak_reserved);
  EXPECT_EQ(lifetimes.fences.size(), report->all.fences);
  for (std::size_t i = 0; i < lifetimes.blocks.size(); ++i) {
    ASSERT_EQ(lifetimes.blocks[i].requested, trace->blocks[i].bytes);
    ASSERT_EQ(lifetimes.blocks[i].stream, trace->streams[trace->blocks[i].stream]);
  }
  const Report described = report_of(*recording, {.at = recording->events.size() / 2});
  EXPECT_EQ(described.peak_live.live, lifetimes.peak_live.live);
  EXPECT_EQ(described.peak_reserved.reserved, lifetimes.peak_reserved.reserved);
  for (const Moment& moment :
       {described.peak_live, described.peak_reserved, described.end, *described.at}) {
    EXPECT_EQ(moment.unplaced, 0_B);
    Bytes parts = moment.requested;
    for (const Bytes bytes : moment.causes) parts += bytes;
    EXPECT_EQ(parts, moment.reserved);
    for (const auto& shares : {moment.by_stream, moment.by_pool, moment.by_size, moment.by_stack}) {
      Bytes sum;
      for (const Share& share : shares) sum += share.bytes;
      EXPECT_EQ(sum, moment.live);
    }
  }
}

// From the end back: 6 MiB are left, 26 before the free, 24 before the map, 4 at first.
TEST(Load, WhatPyTorchHadReservedFollowsFromItsHistory) {
  const test::TemporaryFolder folder;
  const auto reserved = [&folder](const std::string& settings) {
    std::string events;
    int time = 0;
    for (const auto& [action, address, bytes] : {std::tuple{"segment_alloc", 2_TiB, 20_MiB},
                                                 {"alloc", 2_TiB, 512_B},
                                                 {"segment_map", 4_TiB, 2_MiB},
                                                 {"segment_free", 2_TiB, 20_MiB},
                                                 {"free_completed", 2_TiB, 512_B}}) {
      events += std::string(events.empty() ? "" : ",") + R"({"action": ")" + action +
                R"(", "stream": 0, "addr": )" + std::to_string(address.count) + R"(, "size": )" +
                std::to_string(bytes.count) + R"(, "time_us": )" + std::to_string(++time) + "}";
    }
    const Result<Loaded> loaded =
        load(folder.write("s.json", R"({"segments": [{"device": 0, "address": 4096, "stream": 0,
            "total_size": 6291456, "blocks": [{"size": 6291456, "state": "inactive"}]}],
            "device_traces": [[)" + events +
                                        R"(]], "allocator_settings": )" + settings + "}"));
    EXPECT_TRUE(loaded.ok());
    std::vector<std::uint64_t> mib;
    for (const RecordedReserved& at : loaded->other_reserved) mib.push_back(at.bytes.count >> 20);
    return mib;
  };
  EXPECT_THAT(reserved("{}"), ElementsAre(4, 24, 26, 6));
  EXPECT_THAT(reserved(R"({"allocator": "weir"})"), IsEmpty()) << "its pages are not PyTorch's";
}

TEST(Load, RefusesWhatItDoesNotKnowAndNamesTheFile) {
  const test::TemporaryFolder folder;
  for (const std::string& path :
       {folder.write("empty", ""), folder.write("zeros", std::string(100, '\0')),
        folder.write("broken.trace", "a 0 100 0 0\nr 1 1 1 1\n"), std::string("/no/such/file"),
        std::string("/"),
        folder.write("cut.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\3\1", 11))}) {
    const Result<Loaded> recording = load(path);
    ASSERT_FALSE(recording.ok()) << path;
    EXPECT_EQ(recording.error().code(), ErrorCode::invalid_input);
    EXPECT_THAT(recording.error().message(), testing::StartsWith(path + ":"));
  }
}

}  // namespace
}  // namespace weir
