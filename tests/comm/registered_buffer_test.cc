// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/registered_buffer.h"

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::begin;
using test::expect_error;
using test::expect_ok;
using test::got;
using test::Rank;

class Registered : public test::CommRanks {
 protected:
  explicit Registered(const CommunicatorOptions& options = {}) {
    create(options);
    prepare();
    buffers_.resize(ranks_.size());
  }
  void TearDown() override {
    on_all([&](Rank& rank) { of(rank).reset(); });
    CommRanks::TearDown();
  }
  std::optional<RegisteredBuffer>& of(const Rank& rank) {
    return buffers_[static_cast<std::size_t>(rank.number)];
  }
  void create_buffers(Bytes bytes = 8_MiB) {
    on_all([&](Rank& rank) {
      Result<RegisteredBuffer> made = RegisteredBuffer::create(*rank.comm, rank.compute, bytes);
      expect_ok(made);
      if (made) of(rank).emplace(*std::move(made));
    });
  }
  void expect_none() {
    EXPECT_EQ(world_.counts().segments, 0u);
    EXPECT_EQ(world_.counts().registrations, 0u);
  }

  std::vector<std::optional<RegisteredBuffer>> buffers_;
};

TEST_F(Registered, BuffersAreWholeSegmentsAndLeaveNothing) {
  create_buffers(1_B);
  EXPECT_EQ(world_.counts().segments, 2u);
  EXPECT_EQ(world_.counts().registrations, 2u);
  on_all([&](Rank& rank) {
    EXPECT_EQ(of(rank)->bytes(), rank.device.granularity());
    rank.write(rank.compute, of(rank)->data(), of(rank)->bytes());
    expect_ok(of(rank)->close());
    expect_ok(of(rank)->close());  // which does nothing
    EXPECT_EQ(of(rank)->data(), nullptr);
  });
  expect_none();
}

TEST_F(Registered, BuffersOfACommunicatorThatIsNotPreparedAreRefused) {
  on_all([](Rank& rank) {
    Result<std::optional<Communicator>> other =
        rank.comm->split(0, rank.number, {.name = "other", .watch_every = {}});
    expect_ok(other);
    expect_error(RegisteredBuffer::create(**other, rank.compute, 1_MiB),
                 ErrorCode::invalid_argument, "call prepare() first");
    expect_ok((*other)->status());
  });
  expect_none();
}

TEST_F(Registered, DifferentBuffersAreRefusedEverywhereAndNothingIsKept) {
  on_all([](Rank& rank) {
    expect_error(
        RegisteredBuffer::create(*rank.comm, rank.compute, rank.number == 0 ? 64_MiB : 32_MiB),
        ErrorCode::invalid_argument,
        rank.number == 0 ? "rank 1 create a registered buffer of 33554432 bytes, this one create a "
                           "registered buffer of 67108864 bytes: make the same calls on every rank"
                         : "rank 0 create a registered buffer of 67108864 bytes");
  });
  expect_none();
  create_buffers();  // the ranks are in step still
}

TEST_F(Registered, BuffersThatNobodyCanHaveAreRefused) {
  on_all([](Rank& rank) {
    expect_error(RegisteredBuffer::create(*rank.comm, rank.compute, 0_B),
                 ErrorCode::invalid_argument, "at least one byte");
    for (const Bytes bytes : {Bytes{~std::uint64_t{0}}, 1_TiB * 1025}) {
      expect_error(RegisteredBuffer::create(*rank.comm, rank.compute, bytes),
                   ErrorCode::out_of_memory, "no device has 1");
    }
  });
}

// The others are told at once, and do not wait for their host_timeout.
TEST_F(Registered, BuffersThatOneRankAloneCanNotHaveAreRefusedEverywhere) {
  const Stream unknown{.id = 4711};
  on_all([&](Rank& rank) {
    const bool is_bad = rank.number == 1;
    for (const Bytes bad : {0_B, Bytes{~std::uint64_t{0}}}) {
      expect_error(RegisteredBuffer::create(*rank.comm, rank.compute, is_bad ? bad : 2_MiB),
                   ErrorCode::invalid_argument, "ranks ask for different things");
    }
    expect_error(RegisteredBuffer::create(*rank.comm, is_bad ? unknown : rank.compute, 2_MiB),
                 ErrorCode::device,
                 "failed on rank 1, and therefore on all ranks: capture_info: invalid handle");
    expect_ok(rank.comm->status());
  });
  expect_none();
  create_buffers();  // the ranks are in step still
}

TEST_F(Registered, BuffersOfACommunicatorThatHasEndedOnOneRankAreRefusedEverywhere) {
  ranks_[1]->comm->abort("a test");
  on_all([](Rank& rank) {
    expect_error(RegisteredBuffer::create(*rank.comm, rank.compute, 2_MiB), ErrorCode::device,
                 rank.number == 1
                     ? "rank 1 of 2: aborted: a test"
                     : "failed on rank 1, and therefore on all ranks: communicator 'world', "
                       "rank 1 of 2: aborted: a test");
  });
  expect_none();
}

TEST_F(Registered, BuffersAreNowhereWhereOneRankHasNone) {
  for (const NcclCall call : {NcclCall::register_range, NcclCall::allocate_segment}) {
    world_.fail(1, call, 1);
    on_all([](Rank& rank) {
      expect_error(RegisteredBuffer::create(*rank.comm, rank.compute, 2_MiB), ErrorCode::device,
                   "failed on rank 1, and therefore on all ranks: ");
    });
    expect_none();
  }
}

class RegisteredSoon : public Registered {
 protected:
  RegisteredSoon() : Registered({.host_timeout = Nanoseconds{2'000'000'000}}) {}
};

TEST_F(RegisteredSoon, BuffersWhoseOtherRanksDoNotComeEndTheCommunicator) {
  expect_error(RegisteredBuffer::create(*ranks_[0]->comm, ranks_[0]->compute, 2_MiB),
               ErrorCode::device,
               "create a registered buffer of 2097152 bytes: a rank did not take part");
  EXPECT_FALSE(ranks_[0]->comm->status());
  expect_none();
}

TEST_F(RegisteredSoon, BuffersAreKeptWhereWorkDoesNotEnd) {
  create_buffers();
  world_.hang(0, 1);
  on_all([&](Rank& rank) {
    expect_ok(rank.sum(of(rank)->data(), 8_MiB, rank.compute));
    if (rank.number != 0) return;
    expect_error(of(rank)->close(), ErrorCode::device,
                 "all-reduce of 8.00 MiB of float32 (sum), 2097152 elements, has not ended");
    expect_error(of(rank)->close(), ErrorCode::device, "abort() the communicator, then close");
    expect_error(rank.comm->close(), ErrorCode::invalid_argument, "abort() the communicator");
    rank.comm->abort("a test");
    expect_ok(of(rank)->close());
  });
}

TEST_F(Registered, BuffersAreNotClosedInACaptureWhichGoesOn) {
  create_buffers();
  on_all([&](Rank& rank) {
    GraphPool graphs(*rank.heap);
    CaptureScope capture = begin(rank, graphs);
    rank.write(rank.compute, of(rank)->data(), 8_MiB);
    expect_error(of(rank)->close(), ErrorCode::capture, "is being captured");
    EXPECT_NE(of(rank)->data(), nullptr);
    Graph graph = got(capture.end());
    graph = Graph();
    expect_ok(of(rank)->close());
  });
  expect_none();
}

TEST_F(Registered, BuffersThatAreDestroyedInACaptureAreLeftToTheCommunicator) {
  create_buffers();
  on_all([&](Rank& rank) {
    rank.write(rank.compute, of(rank)->data(), 8_MiB, 5_ms);
    GraphPool graphs(*rank.heap);
    CaptureScope capture = begin(rank, graphs);
    of(rank).reset();
    expect_ok(capture.end());
  });
  EXPECT_EQ(world_.counts().segments, 2u);
  on_all([&](Rank& rank) { expect_ok(rank.comm->close()); });
  expect_none();
}

// The race checker sees memory that is unmapped while it is used.
TEST_F(Registered, BuffersGoOnceOperationsAndTheStreamAreDoneWithThem) {
  create_buffers();
  on_all([&](Rank& rank) {
    void* const buffer = of(rank)->data();
    rank.write(rank.side, buffer, 8_MiB);
    expect_ok(rank.sum(buffer, 8_MiB, rank.side));  // overlapped: nobody waits for it
    expect_ok(rank.heap->order(rank.side, rank.compute));
    expect_ok(of(rank)->close());
  });
  create_buffers();
  on_all([&](Rank& rank) {
    expect_ok(got(rank.sum(of(rank)->data(), 8_MiB, rank.compute)).wait(rank.compute));
    rank.read(rank.compute, of(rank)->data(), 8_MiB, 5_ms);
    expect_ok(of(rank)->close());
  });
  expect_none();
}

TEST_F(Registered, BuffersStayForGraphs) {
  create_buffers();
  on_all([&](Rank& rank) {
    GraphPool graphs(*rank.heap);
    CaptureScope capture = begin(rank, graphs);
    expect_ok(rank.sum(of(rank)->data(), 8_MiB, rank.compute));
    Graph graph = got(rank.comm->end_capture(capture));
    expect_ok(rank.comm->launch(graph, rank.side));
    expect_error(of(rank)->close(), ErrorCode::invalid_argument, "1 graphs that captured");
    expect_ok(rank.comm->launch(graph, rank.side));  // it works as before
    graph = Graph();
    expect_ok(of(rank)->close());
  });
  expect_none();
}

TEST_F(Registered, BuffersHoldTheCommunicatorUntilTheyAreClosed) {
  create_buffers();
  on_all([&](Rank& rank) {
    expect_error(rank.comm->close(), ErrorCode::invalid_argument,
                 "registered buffers are open: close them first");
    rank.comm.reset();  // which is logged: it goes with the buffers
    expect_ok(of(rank)->close());
  });
  EXPECT_EQ(world_.counts().communicators, 0u);
}

TEST_F(Registered, BuffersMoveAndGoWithWhatTheyAreAssignedTo) {
  create_buffers();
  create_buffers();  // emplace() destroys those of before
  EXPECT_EQ(world_.counts().segments, 2u);
  on_all([&](Rank& rank) {
    RegisteredBuffer moved = *std::move(of(rank));
    void* const buffer = moved.data();
    *of(rank) = std::move(moved);
    EXPECT_EQ(of(rank)->data(), buffer);
  });
  EXPECT_EQ(world_.counts().segments, 2u);
}

}  // namespace
}  // namespace weir
