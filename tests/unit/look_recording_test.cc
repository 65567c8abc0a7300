// SPDX-License-Identifier: Apache-2.0
// A program that is recorded while it runs, and looked at: its recording, its snapshot and the heap
// itself agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "look/block_lifetimes.h"
#include "look/export.h"
#include "look/exporters.h"
#include "look/load.h"
#include "replay/replay.h"
#include "replay/trace_reader.h"
#include "tests/temporary_folder.h"
#include "weir/device_heap.h"
#include "weir/recorder.h"
#include "weir/sim_device.h"
#include "weir/snapshot.h"

namespace weir {
namespace {

struct Recorded {
  Recording recording, snapshot;
  HeapSnapshot held;
  Statistics statistics;
};

// A program of three streams, with fences, recorded from its middle on, or from its beginning.
Recorded run_and_load(const std::string& path, int before) {
  SimDevice device;
  DeviceHeap heap(device);
  std::mt19937_64 random(7);
  const std::array<Stream, 3> streams = {device.new_stream(), device.new_stream(),
                                         device.new_stream()};
  std::vector<void*> blocks;
  const auto step = [&] {
    device.advance_to(device.now() + 50_us);
    if (blocks.size() < 40 || random() % 2 == 0) {
      const Bytes bytes{random() % 4 == 0 ? random() % (20 << 20) + 1 : random() % 100000 + 1};
      blocks.push_back(*heap.allocate(bytes, streams[random() % 3]));
      return;
    }
    std::swap(blocks[random() % blocks.size()], blocks.back());
    if (random() % 2 == 0) {
      EXPECT_TRUE(heap.fence(blocks.back(), streams[random() % 3]).ok());
    }
    EXPECT_TRUE(heap.deallocate(blocks.back()).ok());
    blocks.pop_back();
  };
  for (int i = 0; i < before; ++i) step();
  Recorded recorded;
  {
    const auto recorder = *Recorder::open(path + ".weir");
    heap.start_recording(*recorder);
    for (int i = 0; i < 2000; ++i) step();
    recorded.held = heap.snapshot();
    recorded.statistics = heap.statistics();
    heap.stop_recording(*recorder);
    EXPECT_TRUE(recorder->close().ok());
  }
  EXPECT_TRUE(write_snapshot(recorded.held, path + ".json.gz").ok());
  for (void* block : blocks) EXPECT_TRUE(heap.deallocate(block).ok());
  device.finish();
  recorded.recording = *load(path + ".weir");
  recorded.snapshot = *load(path + ".json.gz");
  return recorded;
}

// Address, size, stream.
using Live = std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>;

Live live_in(const Recording& recording) {
  Live live;
  for (const BlockLifetime& lifetime : lifetimes_of(recording).blocks) {
    if (!lifetime.live_at_end) continue;
    live.emplace_back(lifetime.address.value, lifetime.requested.count, lifetime.stream);
  }
  std::sort(live.begin(), live.end());
  return live;
}

struct Page {
  std::optional<HeapId> lease;
  std::set<Address> mappings;
  friend bool operator==(const Page&, const Page&) = default;
};
using Pages = std::map<PageId, Page>;

// At the end.
Pages pages_in(const Recording& recording) {
  Pages pages;
  for (const Event& event : moment_of(recording, recording.events.size()).events) {
    if (event.kind == EventKind::create) pages[event.page];
    if (event.kind == EventKind::lease) pages[event.page].lease = event.heap;
    if (event.kind == EventKind::map) pages[event.page].mappings.insert(event.address);
  }
  return pages;
}

TEST(LookAtARecording, AgreesWithTheHeapAndWithItsSnapshot) {
  const test::TemporaryFolder folder;
  const Recorded recorded = run_and_load(folder / "run", 500);
  EXPECT_EQ(recorded.recording.damage, "");
  EXPECT_GT(recorded.recording.initial, 40U);
  Live held;
  for (const BlockInfo& block : recorded.held.blocks) {
    held.emplace_back(block.address.value, block.requested.count, block.stream);
  }
  EXPECT_EQ(live_in(recorded.recording), held);
  EXPECT_EQ(live_in(recorded.snapshot), held);

  const BlockLifetimes lifetimes = lifetimes_of(recorded.recording);
  EXPECT_EQ(lifetimes.end.live.count, recorded.statistics.live_bytes.current);
  EXPECT_EQ(lifetimes.end.reserved.count, recorded.statistics.reserved_bytes.current);
  EXPECT_GT(lifetimes.fences.size(), 100U);
  const Pages pages = pages_in(recorded.recording);
  EXPECT_EQ(pages, pages_in(recorded.snapshot));
  ASSERT_EQ(pages.size(), recorded.held.pages.size());
  for (const PageInfo& page : recorded.held.pages) EXPECT_EQ(pages.at(page.page).lease, page.lease);
}

TEST(LookAtARecording, AsATraceItReplaysToTheSamePeaks) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "run";
  const Recorded recorded = run_and_load(path, 0);
  Result<OutputFile> file = OutputFile::open(path);
  ASSERT_TRUE(file.ok());
  write_trace(recorded.recording, *file);
  ASSERT_TRUE(file->commit().ok());
  const Result<Trace> trace = read_trace(path);
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  const BlockLifetimes lifetimes = lifetimes_of(recorded.recording);
  EXPECT_EQ(trace->peak_live, lifetimes.peak_live.live);
  EXPECT_EQ(trace->blocks.size(), lifetimes.blocks.size());
  const auto device = make_sim_replay_device();
  const Result<ReplayReport> report = replay(*trace, *device, {.validate = true});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->peak_live.count, recorded.statistics.live_bytes.peak);
  EXPECT_EQ(report->all.peak_reserved.count, recorded.statistics.reserved_bytes.peak);
  EXPECT_EQ(report->all.races, 0U) << report->first_race;
  EXPECT_EQ(std::count_if(trace->ops.begin(), trace->ops.end(),
                          [](const TraceOp& op) { return op.kind == TraceOp::Kind::fence; }),
            static_cast<std::ptrdiff_t>(lifetimes.fences.size()));
}

}  // namespace
}  // namespace weir
