// SPDX-License-Identifier: Apache-2.0
// Weir's own snapshots as recordings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "look/block_lifetimes.h"
#include "look/report.h"
#include "look/snapshot_reader.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

constexpr std::string_view kText = R"({"weir_snapshot": 1, "version": "0.1.0",
 "device": {"name": "a device", "bytes": 150754820096}, "time_ns": 81230441, "statistics": {},
 "heaps": [{"heap": 0, "stream": 7, "pool": 0, "open": true},
           {"heap": 1, "stream": 8, "pool": 3, "open": true}],
 "pages": [{"page": 4, "bytes": 2097152, "used": 1048576, "lease": 1,
            "mappings": [{"address": 1099511627776, "heap": 0},
                         {"address": 2199023255552, "heap": 1}]},
           {"page": 6, "bytes": 2097152, "used": 0, "lease": null, "lent_by": 3, "mappings": []}],
 "blocks": [{"address": 2199023255552, "bytes": 1048576, "requested": 1048000, "heap": 1,
             "stream": 8, "pool": 3, "waits_for": [9, 10], "allocated_at_ns": null}]})";

TEST(SnapshotReader, GivesWhatWasThere) {
  const Result<Recording> recording = parse_snapshot(kText, "s");
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  EXPECT_EQ(recording->device, "a device");
  EXPECT_EQ(recording->device_bytes, Bytes{150754820096});
  EXPECT_EQ(recording->initial, recording->events.size());
  EXPECT_EQ(recording->end(), Nanoseconds{81230441});
  const BlockLifetimes lifetimes = lifetimes_of(*recording);
  ASSERT_EQ(lifetimes.blocks.size(), 1U);
  EXPECT_EQ(lifetimes.blocks[0].requested, 1048000_B);
  EXPECT_EQ(lifetimes.blocks[0].pool, 3U);
  EXPECT_EQ(lifetimes.blocks[0].fences, 2U);
  EXPECT_TRUE(lifetimes.blocks[0].live_at_end);
  EXPECT_EQ(lifetimes.peak_reserved.reserved, 4_MiB);
  const Moment end = report_of(*recording).end;
  EXPECT_EQ(end.pages, 2U);
  EXPECT_EQ(end.leased, 2_MiB) << "one of them";
  std::vector<Address> mappings;
  std::vector<std::uint64_t> lenders;
  for (const Event& event : recording->events) {
    if (event.kind == EventKind::create) lenders.push_back(event.pool);
    if (event.kind == EventKind::map) mappings.push_back(event.address);
  }
  EXPECT_THAT(mappings, ElementsAre(Address{1099511627776}, Address{2199023255552}));
  EXPECT_THAT(lenders, ElementsAre(0U, 3U));
}

TEST(SnapshotReader, RefusesWhatIsNoneAndNamesIt) {
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("3"),
        std::string("{\"weir_snapshot\": 2}"), std::string("{\"weir_snapshot\": \"1\"}"),
        std::string(kText.substr(0, 500)), std::string(2'000'000, '[')}) {
    const Result<Recording> recording = parse_snapshot(text, "s");
    ASSERT_FALSE(recording.ok()) << text.substr(0, 50);
    EXPECT_EQ(recording.error().code(), ErrorCode::invalid_input);
    EXPECT_THAT(recording.error().message(), StartsWith("s: "));
  }
}

TEST(SnapshotReader, TakesMembersOfAnotherKindForMissing) {
  for (const char* text :
       {R"({"weir_snapshot": 1})",
        R"({"weir_snapshot": 1, "pages": {}, "blocks": 3, "heaps": null})",
        R"({"weir_snapshot": 1, "pages": [1, {"page": -1, "mappings": [null, []]}], "heaps": [0],
            "blocks": ["x", {"address": 1e300, "waits_for": [-1, "a"]}], "device": 7})"}) {
    EXPECT_TRUE(parse_snapshot(text, "s").ok()) << text;
  }
}

}  // namespace
}  // namespace weir
