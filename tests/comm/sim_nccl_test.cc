// SPDX-License-Identifier: Apache-2.0
// The simulated NCCL alone: what it refuses, what it connects, and what it says of ranks that are
// missing.
#include "weir/comm/sim_nccl.h"

#include <array>

#include "comm/comm_state.h"
#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::got;
using test::Rank;

constexpr Bytes kBytes = 1_KiB;

// Ranks of one communicator of NCCL's, each with memory that its operations use.
class SimNcclRanks : public test::CommRanks {
 protected:
  SimNcclRanks() : CommRanks(3, {.host_timeout = std::chrono::milliseconds(200)}) {
    const UniqueId id = *ranks_[0]->nccl->unique_id();
    on_all([&](Rank& rank) {
      memory_[at(rank)] = rank.allocate(2_MiB, rank.compute);
      comms_[at(rank)] = got(rank.nccl->init(id, 3, rank.number, {.name = "many"}));
    });
  }
  void TearDown() override {
    for (const auto& rank : ranks_) {
      (void)rank->nccl->abort(comms_[at(*rank)]);
      rank->free(memory_[at(*rank)]);
    }
    CommRanks::TearDown();
  }
  static std::size_t at(const Rank& rank) { return static_cast<std::size_t>(rank.number); }
  Nccl& nccl(std::size_t rank = 0) { return *ranks_[rank]->nccl; }

  Status enqueue(std::size_t rank, const Operation& operation) {
    return nccl(rank).enqueue(comms_[rank], {&operation, 1}, ranks_[rank]->compute);
  }
  Status sum(std::size_t rank) {
    return enqueue(rank, {.send = memory_[rank], .receive = memory_[rank], .count = 256});
  }
  Status pair(std::size_t rank, OperationKind kind, int peer) {
    return enqueue(rank, {.kind = kind,
                          .send = memory_[rank],
                          .receive = memory_[rank],
                          .count = kBytes.count / 4,
                          .peer = peer});
  }
  // Waits for what the stream holds.
  Status finish(std::size_t rank) { return host_wait(ranks_[rank]->device, ranks_[rank]->compute); }

  std::array<void*, 3> memory_{};
  std::array<CommHandle, 3> comms_;
};

TEST_F(SimNcclRanks, ThatAreNoneAreRefused) {
  for (const auto& [ranks, rank] :
       {std::pair(0, 0), std::pair(1, 1), std::pair(1, 2), std::pair(2, -1)}) {
    expect_error(nccl().init(*nccl().unique_id(), ranks, rank, {}), ErrorCode::device,
                 "init: there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  EXPECT_EQ(world_.rank(3, ranks_[0]->device), nullptr);
  EXPECT_EQ(world_.rank(-1, ranks_[0]->device), nullptr);
  EXPECT_EQ(world_.counts().communicators, 3u);
  EXPECT_EQ(*nccl(2).size(comms_[2]), 3);
  EXPECT_EQ(*nccl(2).rank(comms_[2]), 2);
}

TEST_F(SimNcclRanks, RefuseBuffersThatOverlapAndAreNotInPlace) {
  auto* const at = static_cast<std::byte*>(memory_[0]);
  expect_error(enqueue(0, {.send = at, .receive = at + 512, .count = 256}), ErrorCode::device,
               "its buffers overlap");
}

TEST_F(SimNcclRanks, AreToldWhatIsNotThere) {
  Nccl& nccl = this->nccl();
  expect_error(nccl.destroy(CommHandle{4711}), ErrorCode::device, "there is no such communicator");
  expect_error(nccl.free_segment(Address{4096}), ErrorCode::device, "free_segment: there is none");
  const std::uint64_t reservations = ranks_[0]->device.live().reservations;
  const Address segment = *nccl.allocate_segment(3_MiB);  // of 4 MiB: of whole pages
  const auto expect_not_whole = [&](Address address, Bytes bytes) {
    expect_error(nccl.register_range(comms_[0], address, bytes), ErrorCode::device,
                 "is not one whole segment");
  };
  expect_not_whole(segment, 2_MiB);
  expect_not_whole(segment + 2_MiB, 2_MiB);
  const Result<RegistrationHandle> registered = nccl.register_range(comms_[0], segment, 4_MiB);
  expect_ok(registered);
  expect_error(nccl.free_segment(segment), ErrorCode::device, "is still registered");
  expect_ok(nccl.deregister(comms_[0], *registered));
  expect_error(nccl.deregister(comms_[0], *registered), ErrorCode::device,
               "deregister: there is none");
  EXPECT_EQ(world_.counts().registrations, 0u);
  expect_ok(nccl.free_segment(segment));
  expect_error(nccl.free_segment(segment), ErrorCode::device, "there is none");
  EXPECT_EQ(ranks_[0]->device.live().reservations, reservations) << "it went with its address";
  expect_ok(nccl.destroy(comms_[0]));
  expect_error(nccl.destroy(comms_[0]), ErrorCode::device, "there is no such communicator");
  EXPECT_EQ(world_.counts().communicators, 2u);
}

using SimNcclRanksThatAreMissing = SimNcclRanks;

TEST_F(SimNcclRanksThatAreMissing, AreNamed) {
  expect_ok(sum(1));
  const std::string whole =
      "operation 1 of communicator 'many', all-reduce of 1.00 KiB of float32 (sum), 256 elements, "
      "has not ended on rank 1 of 3: ranks 0, 2 have not come to it";
  expect_error(finish(1), ErrorCode::device, whole);
  expect_error(nccl(1).destroy(comms_[1]), ErrorCode::device,
               "destroy: it would wait for ever: " + whole);
  expect_ok(sum(0));
  expect_error(finish(1), ErrorCode::device, "rank 1 of 3: rank 2 has not come to it");
  // The first that lacks somebody is the one that is named.
  expect_ok(sum(1));
  expect_error(finish(1), ErrorCode::device, "operation 1 of communicator");
  expect_ok(sum(2));
  expect_error(finish(1), ErrorCode::device, "operation 2 of communicator");
  for (const std::size_t rank : {0, 2}) expect_ok(sum(rank));
  expect_ok(finish(1));
  expect_ok(nccl(1).destroy(comms_[1]));
  EXPECT_EQ(world_.counts().communicators, 2u);
}

TEST_F(SimNcclRanksThatAreMissing, OfAPairAreNamed) {
  expect_ok(pair(2, OperationKind::send, 1));
  expect_error(finish(2), ErrorCode::device,
               "operation 1 of communicator 'many' between ranks 2>1, ");
  expect_error(finish(2), ErrorCode::device, "rank 2 of 3: rank 1 has not come to it");
  expect_ok(pair(0, OperationKind::receive, 1));
  expect_error(finish(0), ErrorCode::device, "between ranks 1>0, ");
  expect_error(finish(0), ErrorCode::device, "rank 0 of 3: rank 1 has not come to it");
  expect_ok(pair(1, OperationKind::send, 0));
  expect_ok(pair(1, OperationKind::receive, 2));
  for (std::size_t rank = 0; rank < 3; ++rank) expect_ok(finish(rank));
}

}  // namespace
}  // namespace weir
