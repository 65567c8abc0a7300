// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/registered_pool.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::Rank;
using testing::IsEmpty;

constexpr Bytes kSegment = 64_MiB;

class RegisteredPools : public test::CommRanks {
 protected:
  explicit RegisteredPools(const CommunicatorOptions& options = {}) {
    create(options);
    prepare();
    pools_.resize(ranks_.size());
    for (const auto& rank : ranks_) waits_.push_back(rank->device.host_waits());
  }
  void TearDown() override {
    on_all([&](Rank& rank) { pool(rank).reset(); });
    CommRanks::TearDown();
  }
  std::optional<RegisteredPool>& pool(const Rank& rank) {
    return pools_[static_cast<std::size_t>(rank.number)];
  }
  void create_pools(Bytes segment = kSegment, int segments = 1) {
    on_all([&](Rank& rank) {
      Result<RegisteredPool> made =
          RegisteredPool::create(*rank.comm, {.segment = segment, .segments = segments});
      expect_ok(made);
      if (made) pool(rank).emplace(*std::move(made));
    });
  }
  void* take(Rank& rank, Bytes bytes, Stream stream) {
    Result<void*> block = pool(rank)->allocate(bytes, stream);
    expect_ok(block);
    return block.ok() ? *block : nullptr;
  }
  void give(Rank& rank, void* block) { expect_ok(pool(rank)->deallocate(block)); }

  // Since the communicator was prepared.
  std::uint64_t host_waits(const Rank& rank) const {
    return rank.device.host_waits() - waits_[static_cast<std::size_t>(rank.number)];
  }

  std::vector<std::optional<RegisteredPool>> pools_;
  std::vector<std::uint64_t> waits_;
};

TEST_F(RegisteredPools, RegisterEachSegmentOnceAndLeaveNothing) {
  const std::uint64_t before = ranks_[0]->device.live().mappings;
  create_pools(1_B);
  EXPECT_EQ(world_.live_segments(), 2u);
  EXPECT_EQ(world_.live_registrations(), 2u);
  EXPECT_EQ(pools_[0]->statistics().segment_bytes, ranks_[0]->device.granularity());
  on_all([&](Rank& rank) { expect_ok(pool(rank)->close()); });
  EXPECT_EQ(world_.live_segments(), 0u);
  EXPECT_EQ(world_.live_registrations(), 0u);
  EXPECT_EQ(ranks_[0]->device.live().mappings, before);
}

TEST_F(RegisteredPools, OfACommunicatorThatIsNotPreparedAreRefused) {
  on_all([](Rank& rank) {
    Result<std::optional<Communicator>> other =
        rank.comm->split(0, rank.number, {.name = "other", .watch_every = {}});
    expect_ok(other);
    expect_error(RegisteredPool::create(**other), ErrorCode::invalid_argument,
                 "call prepare() first");
    expect_ok((*other)->status());
  });
}

TEST_F(RegisteredPools, OfDifferentSizesAreRefusedEverywhereAndNothingIsKept) {
  on_all([](Rank& rank) {
    const Result<RegisteredPool> made =
        RegisteredPool::create(*rank.comm, {.segment = rank.number == 0 ? 64_MiB : 32_MiB});
    expect_error(made, ErrorCode::invalid_argument,
                 "rank 0 for 1 of 67108864 bytes, rank 1 for 1 of 33554432 bytes");
    const Result<RegisteredPool> other =
        RegisteredPool::create(*rank.comm, {.segment = 2_MiB, .segments = 1 + rank.number});
    expect_error(other, ErrorCode::invalid_argument,
                 "rank 0 for 1 of 2097152 bytes, rank 1 for 2 of");
    expect_error(RegisteredPool::create(*rank.comm, {.segments = 0}), ErrorCode::invalid_argument,
                 "at least one segment");
  });
  EXPECT_EQ(world_.live_segments(), 0u);
  create_pools();  // the ranks are in step still
}

TEST_F(RegisteredPools, AreNowhereWhereOneRankHasNone) {
  for (const NcclCall call : {NcclCall::register_range, NcclCall::allocate_segment}) {
    world_.fail(1, call, 3);
    on_all([](Rank& rank) {
      expect_error(RegisteredPool::create(*rank.comm, {.segments = 4}), ErrorCode::device,
                   "rank 1 has no segment of 64.00 MiB, so no rank keeps one: ");
    });
    EXPECT_EQ(world_.live_segments(), 0u);
    EXPECT_EQ(world_.live_registrations(), 0u);
  }
}

class RegisteredPoolsSoon : public RegisteredPools {
 protected:
  RegisteredPoolsSoon() : RegisteredPools({.host_timeout = Nanoseconds{2'000'000'000}}) {}
};

TEST_F(RegisteredPoolsSoon, WhoseOtherRanksDoNotComeEndTheCommunicator) {
  expect_error(RegisteredPool::create(*ranks_[0]->comm), ErrorCode::device,
               "creates registered pool 1: a rank did not take part");
  EXPECT_FALSE(ranks_[0]->comm->status());
  EXPECT_EQ(world_.live_segments(), 0u);
}

TEST_F(RegisteredPools, AskedForDifferentThingsSayWho) {
  create_pools();
  on_all([&](Rank& rank) {
    GraphPool graphs(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(graphs, rank.compute);
    const Error error = rank.number == 0 ? rank.comm->end_capture(*capture).error()
                                         : RegisteredPool::create(*rank.comm).error();
    expect_error(Status(error), ErrorCode::invalid_argument, "ranks ask for different things");
  });
}

// The oracle is a map of what is live.
TEST_F(RegisteredPools, GiveRanksTheSameOffsetsWhateverTheirStreamsDo) {
  create_pools(8_MiB, 12);
  std::vector<std::vector<Bytes>> sizes(2);
  std::vector<std::vector<std::uint64_t>> addresses(2);
  on_all([&](Rank& rank) {
    std::mt19937 random(7);
    const auto number = static_cast<std::size_t>(rank.number);
    std::map<Address, Bytes> live;
    for (int step = 0; step < 2000; ++step) {
      const Stream stream = step % 3 == 0 ? rank.side : rank.compute;
      if (live.size() > 20 || (random() % 2 == 0 && !live.empty())) {
        const auto gone =
            std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        give(rank, gone->first.pointer());
        live.erase(gone);
        continue;
      }
      const Bytes bytes{random() % (step % 50 == 0 ? 6'000'000 : 700'000) + 1};
      const Address address = Address::of(take(rank, bytes, stream));
      EXPECT_EQ(address.value % 4096, 0u);
      const auto [at, is_new] = live.emplace(address, bytes);
      ASSERT_TRUE(is_new);
      const bool after_the_last =
          at == live.begin() || std::prev(at)->first + std::prev(at)->second <= address;
      const bool before_the_next =
          std::next(at) == live.end() || address + bytes <= std::next(at)->first;
      EXPECT_TRUE(after_the_last && before_the_next);
      EXPECT_EQ(rank.device.translate(address, bytes).size(), 1u) << "straddles two handles";
      rank.write(stream, address.pointer(), bytes, rank.number == 0 ? 1_us : 70_us);
      addresses[number].push_back(address.value);
      sizes[number].push_back(bytes);
    }
    for (const auto& [address, bytes] : live) give(rank, address.pointer());
    EXPECT_EQ(host_waits(rank), 0u);
    EXPECT_EQ(pool(rank)->statistics().live_blocks, 0u);
  });
  EXPECT_EQ(sizes[0], sizes[1]);
  EXPECT_EQ(addresses[0], addresses[1]);  // simulated devices give the same addresses
  EXPECT_EQ(pools_[0]->statistics().segments, 12u);
  EXPECT_EQ(world_.live_registrations(), world_.live_segments());
}

TEST_F(RegisteredPools, RefuseWhatNoSegmentHasRoomFor) {
  create_pools(4_MiB, 2);
  on_all([&](Rank& rank) {
    EXPECT_EQ(pool(rank)->statistics().segment_bytes, 8_MiB);
    expect_error(
        pool(rank)->allocate(5_MiB, rank.compute), ErrorCode::out_of_memory,
        "no segment has room for 5.00 MiB in one piece: the pool has 2 segments of 4.00 MiB");
    void* const first = take(rank, 4_MiB, rank.compute);
    void* const second = take(rank, 3_MiB, rank.compute);
    expect_error(pool(rank)->allocate(2_MiB, rank.side), ErrorCode::out_of_memory, "no segment");
    give(rank, first);
    EXPECT_EQ(take(rank, 4_MiB, rank.side), first);
    give(rank, first);
    give(rank, second);
    EXPECT_EQ(*pool(rank)->allocate(0_B, rank.side), nullptr);
    expect_ok(pool(rank)->deallocate(nullptr));
    expect_error(pool(rank)->allocate(Bytes{~std::uint64_t{0}}, rank.side),
                 ErrorCode::out_of_memory, "no segment has room");
  });
}

TEST_F(RegisteredPools, OrderWhoeverGetsTheBytesNextOnTheGpu) {
  create_pools();
  on_all([&](Rank& rank) {
    const Stream third = rank.device.new_stream();
    void* const first = take(rank, 40_MiB, rank.compute);
    rank.write(rank.compute, first, 40_MiB, 5_ms);
    const Result<Fence> written = rank.heap->take_fence({}, rank.compute);
    expect_ok(rank.heap->wait(rank.side, *written));
    rank.read(rank.side, first, 40_MiB, 9_ms);
    expect_ok(pool(rank)->fence(first, rank.side));
    give(rank, first);
    // In parts, and across what was one block: each of them waits.
    void* const left = take(rank, 10_MiB, third);
    rank.write(third, left, 10_MiB);
    void* const right = take(rank, 54_MiB, third);
    rank.write(third, right, 54_MiB);
    EXPECT_EQ(host_waits(rank), 0u);
    give(rank, left);
    give(rank, right);
    expect_error(pool(rank)->deallocate(left), ErrorCode::unknown_pointer, "no live block");
    expect_error(pool(rank)->fence(right, third), ErrorCode::unknown_pointer, "no live block");
  });
}

TEST_F(RegisteredPools, WaitForWhoeverHadTheBytesLastAlone) {
  create_pools();
  on_all([&](Rank& rank) {
    const auto waits = [&] { return rank.device.calls(DeviceCall::wait); };
    const Stream third = rank.device.new_stream(), fourth = rank.device.new_stream();
    void* const first = take(rank, 8_MiB, rank.compute);
    rank.write(rank.compute, first, 8_MiB);
    give(rank, first);
    const std::uint64_t before = waits();
    EXPECT_EQ(take(rank, 8_MiB, third), first);
    EXPECT_EQ(waits(), before + 1);
    rank.write(third, first, 8_MiB);
    give(rank, first);
    EXPECT_EQ(take(rank, 8_MiB, fourth), first);
    EXPECT_EQ(waits(), before + 2) << "the third stream's work comes after the first's";
    rank.write(fourth, first, 8_MiB);
    give(rank, first);
    EXPECT_EQ(take(rank, 8_MiB, fourth), first);
    EXPECT_EQ(waits(), before + 2) << "a stream need not wait for itself";
    give(rank, first);
  });
}

TEST_F(RegisteredPools, AreFencedByCollectives) {
  create_pools();
  on_all([&](Rank& rank) {
    for (int step = 0; step < 10; ++step) {
      auto* const block = static_cast<std::byte*>(take(rank, 48_MiB, rank.compute));
      rank.write(rank.compute, block, 48_MiB);
      expect_ok(rank.sum(block + 4096, 40_MiB, rank.compute));
      give(rank, block);
      void* const next = take(rank, 48_MiB, rank.side);
      EXPECT_EQ(next, block);
      rank.write(rank.side, next, 48_MiB);  // a race, were the fence left out
      give(rank, next);
    }
    EXPECT_EQ(host_waits(rank), 0u);
  });
}

TEST_F(RegisteredPools, StayAllocatedForGraphsThatUseThem) {
  create_pools();
  on_all([&](Rank& rank) {
    void* const block = take(rank, 8_MiB, rank.compute);
    GraphPool graphs(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(graphs, rank.compute);
    expect_ok(capture);
    expect_error(pool(rank)->allocate(1_MiB, rank.compute), ErrorCode::capture,
                 "allocate before the capture begins");
    expect_ok(rank.sum(block, 8_MiB, rank.compute));
    expect_ok(rank.sum(block, 8_MiB, rank.compute));
    expect_error(pool(rank)->deallocate(block), ErrorCode::invalid_argument, "1 graphs");
    Result<Graph> graph = rank.comm->end_capture(*capture);
    expect_ok(graph);
    expect_ok(rank.comm->launch(*graph, rank.compute));
    // The driver destroys a graph some time after it is told to: a free waits a little for that.
    const auto asked = std::chrono::steady_clock::now();
    expect_error(pool(rank)->deallocate(block), ErrorCode::invalid_argument, "destroy them first");
    EXPECT_GE(std::chrono::steady_clock::now() - asked, std::chrono::milliseconds(100));
    expect_error(pool(rank)->close(), ErrorCode::invalid_argument, "1 blocks are live");
    *graph = Graph();
    give(rank, block);
    void* const next = take(rank, 8_MiB, rank.side);
    rank.write(rank.side, next, 8_MiB);
    give(rank, next);
  });
}

// The heap does not see the end of such a capture: the driver lets go of what its graph held.
TEST_F(RegisteredPools, StayAllocatedForGraphsOfCapturesThatTheProgramEnds) {
  create_pools();
  on_all([&](Rank& rank) {
    void* const block = take(rank, 8_MiB, rank.compute);
    GraphPool graphs(*rank.heap);
    Result<PoolBinding> binding = graphs.capture([&](Stream stream) {
      return rank.device.capture_info(stream)->status != CaptureInfo::Status::none;
    });
    expect_ok(binding);
    expect_ok(rank.device.begin_capture(rank.compute, CaptureMode::global));
    const Result<Work> work = rank.sum(block, 8_MiB, rank.compute);
    expect_ok(work);
    expect_ok(work->wait(rank.compute));
    const Result<GraphHandle> graph = rank.device.end_capture(rank.compute);
    expect_ok(graph);
    binding->close();
    const Result<ExecutableHandle> executable = rank.device.instantiate(*graph);
    expect_ok(executable);
    expect_ok(rank.device.destroy_graph(*graph));
    const auto launch = [&] {
      expect_ok(rank.device.launch_graph(*executable, rank.compute));
      const EventHandle done = *rank.device.create_event();
      expect_ok(rank.device.record(done, rank.compute));
      expect_ok(rank.device.synchronize(done));  // the other rank may launch later
      expect_ok(rank.device.destroy_event(done));
    };
    launch();
    expect_error(pool(rank)->deallocate(block), ErrorCode::invalid_argument, "1 graphs");
    expect_error(rank.comm->close(), ErrorCode::invalid_argument, "1 graphs");
    launch();  // it works as before
    expect_ok(rank.device.destroy_executable(*executable));
    graphs.release_graph();
    give(rank, block);
    void* const next = take(rank, 8_MiB, rank.side);
    rank.write(rank.side, next, 8_MiB);
    give(rank, next);
  });
}

TEST_F(RegisteredPools, AreFreeAgainWhereACaptureOfTheProgramsFails) {
  create_pools();
  on_all([&](Rank& rank) {
    void* const block = take(rank, 8_MiB, rank.compute);
    GraphPool graphs(*rank.heap);
    Result<PoolBinding> binding = graphs.capture([&](Stream stream) {
      return rank.device.capture_info(stream)->status != CaptureInfo::Status::none;
    });
    expect_ok(binding);
    expect_ok(rank.device.begin_capture(rank.compute, CaptureMode::global));
    expect_ok(
        rank.sum(block, 8_MiB, rank.compute));  // nobody waits for it: the capture can't end well
    EXPECT_FALSE(rank.device.end_capture(rank.compute).ok());
    binding->close(false);
    give(rank, block);
    expect_ok(rank.comm->status());
  });
}

TEST_F(RegisteredPools, TakeNothingBackFromAStreamThatIsCaptured) {
  create_pools();
  on_all([&](Rank& rank) {
    void* const block = take(rank, 8_MiB, rank.compute);
    GraphPool graphs(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(graphs, rank.compute);
    expect_ok(capture);
    expect_error(pool(rank)->deallocate(block), ErrorCode::capture, "after its end");
    expect_error(pool(rank)->fence(block, rank.compute), ErrorCode::capture, "fence: ");
    rank.write(rank.compute, block, 8_MiB);
    expect_ok(capture->end());
    give(rank, block);
  });
}

TEST_F(RegisteredPools, FreeTheOtherSegmentsWhereTheDriverRefusesOne) {
  create_pools(4_MiB, 3);
  on_all([&](Rank& rank) {
    rank.device.fail(DeviceCall::unreserve, 1);
    rank.device.fail(DeviceCall::unreserve, 2);
    const Status closed = pool(rank)->close();
    expect_error(closed, ErrorCode::device, "registered pool 1: unreserve: scripted fault");
    EXPECT_EQ(rank.device.forget_faults(), 0u);
    EXPECT_EQ(pool(rank)->statistics().segments, 0u);
    expect_ok(pool(rank)->close());
  });
  EXPECT_EQ(world_.live_segments(), 0u);
  EXPECT_EQ(world_.live_registrations(), 0u);
}

TEST_F(RegisteredPools, HoldTheCommunicatorUntilTheyAreClosed) {
  create_pools();
  on_all([&](Rank& rank) {
    void* const block = take(rank, 1_MiB, rank.compute);
    expect_error(rank.comm->close(), ErrorCode::invalid_argument,
                 "1 registered pools are open: close them first");
    expect_error(pool(rank)->close(), ErrorCode::invalid_argument,
                 "registered pool 1: 1 blocks are live, of 1.00 MiB: deallocate them first");
    give(rank, block);
    rank.comm.reset();  // which is logged: it goes with the pool
    expect_ok(pool(rank)->close());
  });
  EXPECT_EQ(world_.live_communicators(), 0u);
}

TEST_F(RegisteredPools, GoAfterTheCommunicatorFailedToo) {
  create_pools();
  on_all([&](Rank& rank) {
    void* const block = take(rank, 1_MiB, rank.compute);
    if (rank.number == 0) world_.hang(0, 1);
    expect_ok(rank.sum(block, 1_MiB, rank.compute));
    rank.comm->abort("a test");
    expect_error(pool(rank)->allocate(1_MiB, rank.compute), ErrorCode::device, "aborted: a test");
    give(rank, block);
    expect_ok(pool(rank)->close());
  });
  EXPECT_EQ(world_.live_segments(), 0u);
}

TEST_F(RegisteredPools, ComeAndGoTenThousandTimesWithoutATrace) {
  const Rank& rank = *ranks_[0];
  const std::uint64_t mappings = rank.device.live().mappings;
  const std::uint64_t reservations = rank.device.live().reservations;
  on_all([&](Rank& each) {
    for (int round = 0; round < 10'000; ++round) {
      Result<RegisteredPool> made = RegisteredPool::create(*each.comm, {.segment = 2_MiB});
      ASSERT_TRUE(made.ok());
      if (round % 10 != 0) continue;
      Result<void*> block = made->allocate(1_MiB, each.compute);
      expect_ok(block);
      each.write(each.compute, *block, 1_MiB);
      expect_ok(made->deallocate(*block));
    }
  });
  EXPECT_EQ(world_.live_registrations(), 0u);
  EXPECT_EQ(world_.live_segments(), 0u);
  EXPECT_EQ(rank.device.live().mappings, mappings);
  EXPECT_EQ(rank.device.live().reservations, reservations);
}

TEST_F(RegisteredPools, MayBeUsedByManyThreads) {
  create_pools();
  on_all([&](Rank& rank) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        const Stream mine = rank.device.new_stream();
        for (int step = 0; step < 200; ++step) {
          void* const block = take(rank, 1_MiB, mine);
          rank.write(mine, block, 1_MiB, 1_us);
          if (step % 4 == 0) {
            expect_ok(
                rank.comm->all_reduce(block, block, 100, DataType::float32, {}, overlapped(mine)));
          }
          give(rank, block);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_EQ(pools_[0]->statistics().live_blocks, 0u);
}

TEST_F(RegisteredPools, OfSegmentsThatNoDeviceHasAreRefusedByTheirSize) {
  const Bytes sizes[] = {Bytes{~std::uint64_t{0}}, 1_TiB * 1025};
  for (const Bytes size : sizes) {
    expect_error(RegisteredPool::create(*ranks_[0]->comm, {.segment = size}),
                 ErrorCode::out_of_memory, "no device has segments of 1");
  }
}

}  // namespace
}  // namespace weir
