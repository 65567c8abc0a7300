// SPDX-License-Identifier: Apache-2.0
// The checker through the device: which orders count, across aliases, pages and the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/unit/sim_graph_fixture.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using test::MappedPage;
using test::new_page;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SimRaces : public test::SimGraphs {
 protected:
  void launch(Stream stream, const Access& access, Nanoseconds duration = 10_us) {
    touch(stream, access, duration);
  }
};

TEST_F(SimRaces, TwoStreamsWithoutAnEventAreReportedByName) {
  launch(a_, Writes(page_.at(), 2_MiB));
  launch(b_, Reads(page_.at(1_MiB), 512_B));
  ASSERT_THAT(device_.races(), SizeIs(1));
  const Race race = device_.races()[0];
  EXPECT_EQ(race.first_stream, a_.id);
  EXPECT_EQ(race.second_stream, b_.id);
  EXPECT_THAT(race.describe(), HasSubstr("stream " + std::to_string(b_.id) + " reads 512 bytes"));
  EXPECT_THAT(race.describe(),
              HasSubstr("stream " + std::to_string(a_.id) + ", which writes 2097152 bytes"));
}

TEST_F(SimRaces, AQueryOrdersOnlyWhenItSaidTrue) {
  launch(a_, Writes(page_.at(), 1_MiB));
  const EventHandle event = record(a_);
  ASSERT_FALSE(*device_.query(event));
  launch(b_, Reads(page_.at(), 1_MiB));
  EXPECT_EQ(device_.race_count(), 1u);

  device_.advance(1_ms);
  ASSERT_TRUE(*device_.query(event));
  launch(c_, Reads(page_.at(), 1_MiB));
  EXPECT_EQ(device_.race_count(), 1u);
}

TEST_F(SimRaces, UnmappingMemoryThatAKernelMayStillUseIsReported) {
  launch(a_, Reads(page_.at(), 512_B));
  order(a_, b_);
  ASSERT_TRUE(device_.unmap(page_.address, page_.size).ok());
  ASSERT_THAT(device_.races(), SizeIs(1));
  const Race race = device_.races()[0];
  EXPECT_EQ(race.kind, Race::Kind::unmapped_in_use);
  EXPECT_THAT(race.describe(), HasSubstr("the host has not waited for stream"));
}

// A driver waits for all work before it frees a segment, and here for no peer that never comes.
TEST_F(SimRaces, AFreedSegmentIsWaitedForButNotTheWorkOfPeersThatAreMissing) {
  class Nobody final : public SimPeers {
   public:
    std::uint64_t arrive(const std::string&) override { return 1; }
    Status await(std::uint64_t) override { return Error(ErrorCode::device, "nobody came"); }
    bool are_there(std::uint64_t) const override { return false; }
  };
  const auto segment = [&] { return *device_.allocate_segment(2_MiB); };
  const Address waited_for = segment(), in_use = segment();
  launch(a_, Writes(waited_for.pointer(), 2_MiB), 1_ms);
  const std::uint64_t waits = device_.host_waits();
  ASSERT_TRUE(device_.free_segment(waited_for, 2_MiB).ok());
  EXPECT_EQ(device_.host_waits(), waits + 1);
  EXPECT_THAT(device_.races(), IsEmpty());
  const Access write = Writes(in_use.pointer(), 2_MiB);
  ASSERT_TRUE(device_.launch(b_, {&write, 1}, 1_ms, {std::make_shared<Nobody>(), "a kernel"}).ok());
  ASSERT_TRUE(device_.free_segment(in_use, 2_MiB).ok());
  ASSERT_THAT(device_.races(), SizeIs(1));
  EXPECT_EQ(device_.races()[0].kind, Race::Kind::unmapped_in_use);
  EXPECT_EQ(device_.races()[0].first_stream, b_.id);
  EXPECT_EQ(device_.races()[0].second.address, in_use);
}

TEST(SimRacesOff, NothingIsCheckedWhenNotAskedFor) {
  SimOptions options;
  options.check_races = false;
  SimDevice device(options);
  const MappedPage page = new_page(device);
  const Stream a = device.new_stream(), b = device.new_stream();
  ASSERT_TRUE(device.launch(a, Writes(page.at(), 512_B), 1_us).ok());
  ASSERT_TRUE(device.launch(b, Writes(page.at(), 512_B), 1_us).ok());
  ASSERT_TRUE(device.unmap(page.address, page.size).ok());
  EXPECT_EQ(device.race_count(), 0u);
}

}  // namespace
}  // namespace weir
