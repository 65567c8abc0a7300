// Public names that have changed: the old ones work, and options warn once.
#include "comm/renamed.h"

#include <sstream>
#include <string>

#include "tests/comm/buckets.h"
#include "tests/comm/launch_fixture.h"
#include "tests/temporary_folder.h"
#include "weir/comm/launch.h"
#include "weir/log.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace weir::test {
namespace {

class Renamed : public Buckets {
 protected:
  Renamed() { EXPECT_TRUE(configure_log(LogLevel::warn, folder_ / "log").ok()); }
  ~Renamed() override { EXPECT_TRUE(configure_log(LogLevel::warn).ok()); }

  std::size_t warnings(const std::string& text) const {
    std::istringstream log(folder_.read("log"));
    std::size_t count = 0;
    for (std::string line; std::getline(log, line);)
      count += line.find(text) != std::string::npos ? 1 : 0;
    return count;
  }

  const TemporaryFolder folder_;
};

TEST_F(Renamed, OptionsOfACommunicatorWorkUnderTheirOldNamesAndWarnOnceEach) {
  Rank& rank = *ranks_[0];
  const UniqueId id = *rank.nccl->unique_id();
  for (int time = 0; time < 2; ++time) {
    expect_error(Communicator::create(rank.context(), id, 1, 0, {.patience = Nanoseconds{-5}}),
                 ErrorCode::invalid_argument, "host_timeout is -5 ns");
    expect_error(rank.comm->split(0, 0, {.most_blocks = 0}), ErrorCode::invalid_argument,
                 "max_ctas is 0");
    expect_error(rank.comm->shrink({}, {.most_blocks = -1}), ErrorCode::invalid_argument,
                 "max_ctas is -1");
  }
  EXPECT_EQ(warnings("CommunicatorOptions::patience is now called "
                     "CommunicatorOptions::host_timeout"),
            1u);
  EXPECT_EQ(warnings("CommunicatorOptions::most_blocks is now called "
                     "CommunicatorOptions::max_ctas"),
            1u);
}

TEST_F(Renamed, TheTimeThatASimulatedRankWaitsWorksUnderItsOldNameAndWarnsOnce) {
  for (int time = 0; time < 2; ++time) {
    SimWorld world({.ranks = 2, .patience = std::chrono::milliseconds(1)});
    SimDevice device;
    const std::unique_ptr<Nccl> alone = world.rank(0, device);
    expect_error(alone->init(*alone->unique_id(), 2, 0, {}), ErrorCode::device,
                 "not all 2 ranks came");
  }
  EXPECT_EQ(warnings("SimWorldOptions::patience is now called SimWorldOptions::host_timeout"), 1u);
}

TEST_F(Renamed, NewNamesWarnOfNothing) {
  Rank& rank = *ranks_[0];
  expect_error(Communicator::create(rank.context(), *rank.nccl->unique_id(), 1, 0,
                                    {.host_timeout = Nanoseconds{-5}, .max_ctas = 1}),
               ErrorCode::invalid_argument, "host_timeout");
  EXPECT_EQ(warnings(""), 0u);
}

TEST_F(Renamed, TypesAndFunctionsWorkUnderTheirOldNames) {
  static_assert(std::is_same_v<CommPlace, CommContext>);
  static_assert(std::is_same_v<MeetBy, RendezvousMethod>);
  static_assert(std::is_same_v<MeetingPlace, Rendezvous>);
  static_assert(MeetBy::nobody == RendezvousMethod::none);
  EXPECT_EQ(Reduction::scaled_sum(3), Reduction::premul_sum(3));

  on_all([](Rank& rank) {
    // Its operations overlap, as they did: the next write has to wait.
    void* const block = rank.allocate(4_KiB, rank.compute);
    Collectives collectives(*rank.comm);
    const std::uint64_t waits = rank.device.calls(DeviceCall::wait);
    const Result<Work> sum =
        collectives.all_reduce(block, block, 1024, DataType::float32, {}, rank.compute);
    expect_ok(sum);
    expect_ok(sum->wait(rank.compute));
    EXPECT_EQ(rank.device.calls(DeviceCall::wait), waits + 2);
    rank.write(rank.compute, block, 4_KiB);
    rank.free(block);

    const Bucketer buckets = make(rank, {4});
    EXPECT_NE(buckets.place(0), nullptr);
    EXPECT_EQ(buckets.place(0), buckets.bucket_view(0));
  });

  FakeEnvironment environment;
  FakeNccl nccl(environment, "id");
  EXPECT_EQ(*meet(nccl, Launch{}, environment, 1_us), FakeNccl::id_of("id"));
  finish_meeting(Launch{});
  EXPECT_EQ(nccl.exchange({}, {}, 1_us).error().code(), ErrorCode::unavailable);
}

}  // namespace
}  // namespace weir::test
