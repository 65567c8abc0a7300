// SPDX-License-Identifier: Apache-2.0
// A communicator of the launch in one call; errors of communicators made of others.
#include <chrono>
#include <string>

#include "tests/comm/ranks.h"
#include "tests/temporary_folder.h"
#include "weir/allocator.h"
#include "weir/comm/launch.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::Rank;

TEST(World, OfASimulatedDeviceHasOneRankAndIsPrepared) {
  SimDevice device;
  Allocator allocator(device);
  Result<Communicator> world = Communicator::world(allocator);
  expect_ok(world);
  EXPECT_EQ(world->ranks(), 1);
  EXPECT_EQ(world->rank(), 0);
  EXPECT_TRUE(world->prepared());
  EXPECT_EQ(&world->context().heap, &allocator.heap());
  const Stream stream = device.new_stream();
  Result<void*> block = allocator.heap().allocate(4_MiB, stream);
  expect_ok(block);
  expect_ok(world->all_reduce(*block, *block, 1024, DataType::float32, {}, stream));
  expect_ok(allocator.heap().deallocate(*block));
}

TEST(World, LivesAsLongAsTheLastCommunicatorMadeOfIt) {
  SimDevice device;
  Allocator allocator(device);
  std::optional<Communicator> left;
  {
    Result<Communicator> world = Communicator::world(allocator);
    expect_ok(world);
    Result<std::optional<Communicator>> part = world->split(0, 0, {.name = "part"});
    expect_ok(part);
    left = std::move(*part);
  }
  const Stream stream = device.new_stream();
  Result<void*> block = allocator.heap().allocate(4_MiB, stream);
  expect_ok(left->all_reduce(*block, *block, 1024, DataType::float32, {}, stream));
  expect_ok(allocator.heap().deallocate(*block));
  expect_ok(left->close());
}

TEST(World, OfALaunchThatIsWrongIsRefusedByItsVariable) {
  ::setenv("WEIR_RANK", "0", 1);
  SimDevice device;
  Allocator allocator(device);
  expect_error(Communicator::world(allocator), ErrorCode::invalid_argument, "WEIR_WORLD_SIZE");
  ::unsetenv("WEIR_RANK");
}

TEST(World, TheDocumentShowsTheExample) {
  const std::string file = test::content_of("docs/examples/world.cc");
  const std::string example = file.substr(file.find('\n') + 1);  // without the licence's line
  EXPECT_THAT(test::content_of("docs/comm.md"), testing::HasSubstr("```cpp\n" + example + "```"));
}

class Derived : public test::CommRanks {
 protected:
  Derived() : CommRanks(2, {.host_timeout = std::chrono::milliseconds(500)}) {}
};

TEST_F(Derived, ErrorsNameTheCallTheRankAndTheNewName) {
  create({.name = "all"});
  world_.fail(1, NcclCall::split, 1);
  const CommunicatorOptions options{
      .name = "half", .host_timeout = Nanoseconds{500'000'000}, .watch_every = {}};
  on_all([&](Rank& rank) {
    const Result<std::optional<Communicator>> half = rank.comm->split(0, 0, options);
    if (rank.number == 1) {
      expect_error(half, ErrorCode::device,
                   "communicator 'all', rank 1 of 2: split into 'half': split: made to fail");
      return;
    }
    expect_error(half, ErrorCode::device, "communicator 'all', rank 0 of 2: split into 'half': ");
  });
}

}  // namespace
}  // namespace weir
