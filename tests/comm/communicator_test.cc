// SPDX-License-Identifier: Apache-2.0
// A communicator's life: how it begins, what ends it, and what is left then.
#include "weir/comm/communicator.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "comm/comm_state.h"
#include "tests/comm/ranks.h"
#include "tests/temporary_folder.h"
#include "weir/allocator.h"
#include "weir/comm/registered_buffer.h"
#include "weir/interposed_device.h"

namespace weir {
namespace {

using test::begin;
using test::expect_error;
using test::expect_ok;
using test::got;
using test::kCount;
using test::kSecond;
using test::kSize;
using test::Rank;

class Communicators : public test::CommRanks {
 protected:
  explicit Communicators(int ranks = 2) : CommRanks(ranks) {}
};

TEST_F(Communicators, OfARankThatCannotBeAreRefused) {
  Rank& rank = *ranks_[0];
  for (const auto& [ranks, number] : {std::pair(0, 0), std::pair(2, 2), std::pair(2, -1)}) {
    expect_error(Communicator::create(rank.context(), UniqueId{}, ranks, number),
                 ErrorCode::invalid_argument, "there is no rank");
  }
}

TEST_F(Communicators, TakeNoTimesThatCannotBe) {
  Rank& rank = *ranks_[0];
  const UniqueId id = *rank.nccl->unique_id();
  const std::pair<CommunicatorOptions, const char*> bad[] = {
      {{.timeout = Nanoseconds{-1}}, "timeout is -1 ns"},
      {{.host_timeout = Nanoseconds{-5}}, "host_timeout -5 ns"},
      {{.host_timeout = Nanoseconds{0}}, "host_timeout 0 ns"},
      {{.watch_every = Nanoseconds{-7}}, "watch_every -7 ns"}};
  for (const auto& [options, says] : bad) {
    expect_error(Communicator::create(rank.context(), id, 1, 0, options),
                 ErrorCode::invalid_argument, says);
  }
  // For ever, as people write it.
  const Nanoseconds ever{std::numeric_limits<std::int64_t>::max()};
  Result<Communicator> made =
      Communicator::create(rank.context(), id, 1, 0, {.host_timeout = ever, .watch_every = ever});
  expect_ok(made);
  if (made) expect_ok(made->prepare());
}

// The call that was given up goes on once the rank comes: until then it uses NCCL, which its owner
// may have left.
TEST_F(Communicators, WithoutARankAreAnErrorInTimeAndEndWhenItComesLate) {
  Rank& rank = *ranks_[0];
  const UniqueId id = *rank.nccl->unique_id();
  auto owner = std::shared_ptr<Nccl>(world_.rank(0, rank.device));
  const std::weak_ptr<Nccl> kept = owner;
  const auto begin = std::chrono::steady_clock::now();
  expect_error(create_comm_state(owner, {*owner, rank.device, *rank.heap}, id, 2, 0,
                                 {.host_timeout = Nanoseconds{200'000'000}}),
               ErrorCode::device, "not all ranks came");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  owner.reset();
  EXPECT_FALSE(kept.expired());
  expect_ok(Communicator::create(ranks_[1]->context(), id, 2, 1, {.watch_every = {}}));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!kept.expired() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(kept.expired());
}

TEST_F(Communicators, ThatOneRankCannotMakeOrPrepareSayWhyAtOnce) {
  Rank& first = *ranks_[0];
  world_.fail(0, NcclCall::init, 1);
  expect_error(Communicator::create(first.context(), *first.nccl->unique_id(), 1, 0),
               ErrorCode::device, "communicator 'world': init: made to fail");
  const std::pair<NcclCall, std::uint64_t> ends[] = {{NcclCall::allocate_segment, 1},
                                                     {NcclCall::enqueue, 11}};  // to itself
  for (const auto& [call, nth] : ends) {
    create();
    world_.fail(1, call, nth);
    on_all([](Rank& rank) {
      expect_error(rank.comm->prepare(), ErrorCode::device,
                   rank.number == 1 ? "made to fail" : "rank 1 has failed");
    });
  }
}

TEST_F(Communicators, AbortedWhileTheyWaitForARankSayWhyAtOnce) {
  create();
  prepare();
  Communicator& waiting = *ranks_[0]->comm;
  std::thread aborts([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    waiting.abort("the user pressed a key");
  });
  expect_error(RegisteredBuffer::create(waiting, ranks_[0]->compute, 4_MiB), ErrorCode::device,
               "aborted: the user pressed a key");
  aborts.join();
}

TEST_F(Communicators, PreparedByOneRankAloneAreAnErrorInTime) {
  const UniqueId id = *ranks_[0]->nccl->unique_id();
  on_all([&](Rank& rank) {
    const Nanoseconds host_timeout{rank.number == 0 ? 500'000'000 : 2'000'000'000};
    Result<Communicator> made = Communicator::create(
        rank.context(), id, 2, rank.number, {.host_timeout = host_timeout, .watch_every = {}});
    expect_ok(made);
    rank.comm = *std::move(made);
  });
  // The other comes while the first ends what it waits in, and is told, or waits in vain.
  std::thread first([&] {
    expect_error(ranks_[0]->comm->prepare(), ErrorCode::device, "not all ranks came in time");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  expect_error(ranks_[1]->comm->prepare(), ErrorCode::device, "prepare: ");
  EXPECT_FALSE(ranks_[1]->comm->prepared());
  first.join();
}

// The device has no memory left but what the heap holds idle, some of it used by work still.
TEST_F(Communicators, MayBePreparedAndClosedInACaptureWhichGoesOn) {
  create();
  on_all([](Rank& rank) {
    void* const block = rank.allocate(rank.device.memory_info()->free, rank.compute);
    rank.write(rank.compute, block, 1_MiB, 5_ms);
    rank.free(block);
    GraphPool pool(*rank.heap);
    CaptureScope capture = begin(rank, pool);
    expect_ok(rank.comm->prepare());
    expect_ok(rank.comm->close());
    expect_ok(capture.end());
  });
}

class FourRanks : public Communicators {
 protected:
  FourRanks() : Communicators(4) {}
};

TEST_F(FourRanks, SplitByColorInOrderOfKey) {
  create();
  on_all([](Rank& rank) {
    // Even ranks, in reverse; odd ones; and rank 3 is in none.
    const int color = rank.number == 3 ? -1 : rank.number % 2;
    Result<std::optional<Communicator>> half =
        rank.comm->split(color, -rank.number, {.name = "half", .watch_every = {}});
    expect_ok(half);
    EXPECT_EQ(half->has_value(), rank.number != 3);
    if (!*half) return;
    EXPECT_EQ((*half)->ranks(), rank.number == 1 ? 1 : 2);
    EXPECT_EQ((*half)->rank(), rank.number == 0 ? 1 : 0);
    expect_ok((*half)->prepare());
    void* const block = rank.allocate(kSize, rank.compute);
    expect_ok(
        (*half)->all_reduce(block, block, kCount, DataType::int32, {}, overlapped(rank.compute)));
    rank.free(block);
  });
}

TEST_F(Communicators, AreWatchedByAThreadOfTheirOwn) {
  const UniqueId id = *ranks_[0]->nccl->unique_id();
  Rank& rank = *ranks_[0];
  Result<Communicator> made =
      Communicator::create(rank.context(), id, 1, 0, {.watch_every = Nanoseconds{1'000'000}});
  ASSERT_TRUE(made.ok());
  world_.set_async_error(0, "remote process exited");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (made->status() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  expect_error(made->status(), ErrorCode::device, "remote process exited");
}

TEST_F(Communicators, SeeALaunchThatHangs) {
  create({.timeout = kSecond});
  prepare();
  world_.hang(0, 1);
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    Graph graph = captured_sum(rank, pool, kSize);
    expect_ok(rank.comm->launch(graph, rank.compute));
    expect_ok(rank.comm->launch(graph, rank.compute));
    expect_ok(rank.comm->poll());
    rank.device.advance(kSecond + 1_ms);
    const Status found = rank.comm->poll();
    if (rank.number == 0) {
      expect_error(found, ErrorCode::device, "the launch of a graph, has not ended in 1.0 s");
      expect_error(rank.comm->launch(graph, rank.compute), ErrorCode::device, "has not ended");
    } else {
      expect_ok(found);
    }
  });
}

TEST_F(Communicators, WatchWithoutAnyTraceInTheHeap) {
  create();
  on_all([](Rank& rank) {
    void* const block = rank.allocate(kSize, rank.compute);
    expect_ok(rank.sum(block, kSize, rank.compute));
    expect_ok(rank.comm->poll());
    rank.device.advance(kSecond);
    expect_ok(rank.comm->poll());
    rank.free(block);
    // The watchdog knows that it has ended. The heap may not, or the memory that a program needs
    // would depend on when somebody looked.
    const std::uint64_t waits = rank.device.calls(DeviceCall::wait);
    rank.free(rank.allocate(kSize, rank.compute));
    EXPECT_EQ(rank.device.calls(DeviceCall::wait), waits + 1);
  });
}

TEST_F(Communicators, ThatAreAbortedSayWhyAndAreClosed) {
  create();
  on_all([](Rank& rank) {
    void* const block = rank.allocate(kSize, rank.compute);
    expect_ok(rank.sum(block, kSize, rank.compute));
    rank.comm->abort("the user pressed a key");
    rank.comm->abort("again");
    expect_error(rank.sum(block, kSize, rank.compute), ErrorCode::device,
                 "aborted: the user pressed a key");
    expect_error(rank.comm->prepare(), ErrorCode::device, "aborted");
    expect_error(rank.comm->split(0, 0), ErrorCode::device, "aborted");
    rank.free(block);
    expect_ok(rank.comm->close());
    expect_ok(rank.comm->close());
    EXPECT_EQ(rank.heap->statistics().live_blocks.current, 0u);
  });
}

// The device, the heap and NCCL may go before the last Work.
TEST_F(Communicators, LeaveNothingOfTheDeviceToTheirWorks) {
  std::optional<Work> kept;
  {
    Rank lone;
    lone.nccl = world_.rank(0, lone.device);
    Result<Communicator> made =
        Communicator::create(lone.context(), *lone.nccl->unique_id(), 1, 0, {.watch_every = {}});
    ASSERT_TRUE(made.ok());
    void* const block = lone.allocate(kSize, lone.compute);
    kept = *made->all_reduce(block, block, kCount, DataType::int32, {}, lone.compute);
    lone.free(block);
    expect_ok(made->close());
    lone.device.finish();
    lone.heap.reset();
    EXPECT_EQ(lone.device.live().events, 0u);
  }
  kept.reset();  // asks nobody anything
}

TEST_F(Communicators, ThatCannotWatchALaunchEnd) {
  Rank& rank = *ranks_[0];
  Result<Communicator> made =
      Communicator::create(rank.context(), *rank.nccl->unique_id(), 1, 0, {.watch_every = {}});
  ASSERT_TRUE(made.ok());
  expect_ok(made->prepare());
  GraphPool pool(*rank.heap);
  Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
  void* const block = rank.allocate(kSize, rank.compute);
  expect_ok(made->all_reduce(block, block, kCount, DataType::int32, {}, rank.compute));
  rank.free(block);
  Graph graph = got(made->end_capture(*capture));
  rank.device.fail(DeviceCall::create_event, 1);
  const std::uint64_t launches = rank.device.calls(DeviceCall::launch_graph);
  expect_error(made->launch(graph, rank.compute), ErrorCode::device, "create_event");
  EXPECT_EQ(rank.device.calls(DeviceCall::launch_graph), launches + 1);
  expect_error(made->launch(graph, rank.compute), ErrorCode::device, "create_event");
  EXPECT_EQ(rank.device.calls(DeviceCall::launch_graph), launches + 1) << "it has ended";
  rank.device.finish();
}

TEST_F(Communicators, ThatTheirGraphsOutliveGoWithTheLastGraph) {
  create();
  prepare();
  on_all([](Rank& rank) {
    GraphPool pool(*rank.heap);
    Graph graph = captured_sum(rank, pool, kSize);
    rank.comm.reset();  // which is logged
    rank.device.finish();
  });
  EXPECT_EQ(world_.counts().communicators, 0u);
  EXPECT_EQ(world_.counts().streams, 0u);
}

// The host waits long on it from slow_down() on.
class SlowDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void slow_down(std::chrono::milliseconds time) { time_ = time; }
  bool waits() const { return waits_; }
  Status synchronize(EventHandle event) override {
    waits_ = true;
    std::this_thread::sleep_for(time_.load());
    waits_ = false;
    return ForwardingDevice::synchronize(event);
  }

 private:
  std::atomic<std::chrono::milliseconds> time_{};
  std::atomic<bool> waits_ = false;
};

class BoundedCommunicators : public test::CommRanks {
 protected:
  BoundedCommunicators() : CommRanks(1) {}
};

TEST_F(BoundedCommunicators, AreClosedOnceNobodyWaitsOnTheirDevice) {
  for (const bool prepared : {true, false}) {
    Rank& rank = *ranks_[0];
    SlowDevice slow(rank.device);
    Result<Communicator> made =
        Communicator::create({*rank.nccl, slow, *rank.heap}, *rank.nccl->unique_id(), 1, 0,
                             {.host_timeout = 1'500_ms, .watch_every = {}});
    ASSERT_TRUE(made.ok()) << made.error().message();
    if (prepared) {
      expect_ok(made->prepare());
      expect_ok(made->all_reduce(nullptr, nullptr, 0, DataType::float32, {}, rank.compute));
    }
    slow.slow_down(std::chrono::milliseconds(2200));  // more than one wait, less than two
    EXPECT_FALSE((prepared ? made->close() : made->prepare()).ok());
    if (!prepared) (void)made->close();
    EXPECT_FALSE(slow.waits()) << prepared;
  }
}

// A communicator of the launch in one call.
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

}  // namespace
}  // namespace weir
