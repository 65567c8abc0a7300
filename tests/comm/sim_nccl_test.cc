// SPDX-License-Identifier: Apache-2.0
// The simulated NCCL alone: what it refuses, what it connects, and what it says of ranks that are
// missing.
#include "weir/comm/sim_nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/comm/expect.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using testing::IsEmpty;

constexpr Bytes kBytes = 1_KiB;

// Ranks of one communicator, each with memory that its operations use.
class SimNcclRanks : public testing::Test {
 protected:
  struct One {
    SimDevice device;
    Stream stream = device.new_stream(), other = device.new_stream();
    Address memory = *device.allocate_segment(2_MiB);
    std::unique_ptr<Nccl> nccl;
    CommHandle comm;

    void* at(Bytes offset = 0_B) const { return (memory + offset).pointer(); }
    Status enqueue(const Operation& operation) {
      return nccl->enqueue(comm, {&operation, 1}, stream);
    }
    // Waits for what the stream holds.
    Status finish() {
      const EventHandle event = *device.create_event();
      expect_ok(device.record(event, stream));
      return device.synchronize(event);
    }
  };

  void make(int ranks, SimWorldOptions options = {}) {
    options.ranks = ranks;
    world_ = std::make_unique<SimWorld>(options);
    for (int rank = 0; rank < ranks; ++rank) {
      all_.push_back(std::make_unique<One>());
      all_.back()->nccl = world_->rank(rank, all_.back()->device);
    }
    const UniqueId id = *one(0).nccl->unique_id();
    on_all([&](One& each, int rank) {
      const Result<CommHandle> made = each.nccl->init(id, ranks, rank, {.name = "many"});
      expect_ok(made);
      if (made) each.comm = *made;
    });
  }
  template <class Work>
  void on_all(Work work) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      threads.emplace_back([&, rank] { work(*all_[rank], static_cast<int>(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  One& one(std::size_t rank = 0) { return *all_[rank]; }

  static Operation sum(const One& of) {
    return {
        .send = of.at(), .receive = of.at(), .count = kBytes.count / 4, .type = DataType::float32};
  }
  static Operation pair(OperationKind kind, const One& of, int peer) {
    const bool sends = kind == OperationKind::send;
    return {.kind = kind,
            .send = sends ? of.at() : nullptr,
            .receive = sends ? nullptr : of.at(),
            .count = kBytes.count / 4,
            .type = DataType::float32,
            .peer = peer};
  }

  std::unique_ptr<SimWorld> world_;
  std::vector<std::unique_ptr<One>> all_;
};

TEST_F(SimNcclRanks, ThatAreNoneAreRefused) {
  make(1);
  Nccl& nccl = *one().nccl;
  for (const auto& [ranks, rank] :
       {std::pair(0, 0), std::pair(1, 1), std::pair(1, 2), std::pair(2, -1)}) {
    expect_error(nccl.init(*nccl.unique_id(), ranks, rank, {}), ErrorCode::device,
                 "init: there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  EXPECT_EQ(world_->rank(1, one().device), nullptr);
  EXPECT_EQ(world_->rank(-1, one().device), nullptr);
  EXPECT_EQ(world_->counts().communicators, 1u);
  EXPECT_EQ(*nccl.size(one().comm), 1);
  EXPECT_EQ(*nccl.rank(one().comm), 0);
}

TEST_F(SimNcclRanks, RefuseBuffersThatOverlapAndAreNotInPlace) {
  make(2);
  const Operation overlapping{.send = one().at(), .receive = one().at(512_B), .count = 256};
  expect_error(one().enqueue(overlapping), ErrorCode::device, "its buffers overlap");
}

TEST_F(SimNcclRanks, AreToldWhatIsNotThere) {
  make(1);
  Nccl& nccl = *one().nccl;
  expect_error(nccl.destroy(CommHandle{4711}), ErrorCode::device, "there is no such communicator");
  expect_error(nccl.abort(CommHandle{4711}), ErrorCode::device, "there is no such communicator");
  expect_error(nccl.free_segment(Address{4096}), ErrorCode::device, "free_segment: there is none");
  const Address segment = *nccl.allocate_segment(3_MiB);  // of 4 MiB: of whole pages
  const auto expect_not_whole = [&](Address address, Bytes bytes) {
    expect_error(nccl.register_range(one().comm, address, bytes), ErrorCode::device,
                 "is not one whole segment");
  };
  expect_not_whole(segment, 2_MiB);
  expect_not_whole(segment + 2_MiB, 2_MiB);
  const Result<RegistrationHandle> registered = nccl.register_range(one().comm, segment, 4_MiB);
  expect_ok(registered);
  EXPECT_EQ(world_->counts().registrations, 1u);
  expect_error(nccl.free_segment(segment), ErrorCode::device, "is still registered");
  EXPECT_EQ(world_->counts().segments, 1u);
  expect_ok(nccl.deregister(one().comm, *registered));
  expect_error(nccl.deregister(one().comm, *registered), ErrorCode::device,
               "deregister: there is none");
  EXPECT_EQ(world_->counts().registrations, 0u);
  expect_ok(nccl.free_segment(segment));
  expect_error(nccl.free_segment(segment), ErrorCode::device, "there is none");
  EXPECT_EQ(world_->counts().segments, 0u);
  EXPECT_EQ(one().device.live().reservations, 1u) << "the segment went with its address";
  expect_ok(nccl.destroy(one().comm));
  expect_error(nccl.destroy(one().comm), ErrorCode::device, "there is no such communicator");
  EXPECT_EQ(world_->counts().communicators, 0u);
}

class SimNcclRanksThatAreMissing : public SimNcclRanks {
 protected:
  static constexpr SimWorldOptions kSoon{.host_timeout = std::chrono::milliseconds(20)};
};

TEST_F(SimNcclRanksThatAreMissing, AreNamed) {
  make(3, kSoon);
  expect_ok(one(1).enqueue(sum(one(1))));
  const std::string whole =
      "operation 1 of communicator 'many', all-reduce of 1.00 KiB of float32 (sum), has not ended "
      "on rank 1 of 3: ranks 0, 2 have not come to it";
  expect_error(one(1).finish(), ErrorCode::device, whole);
  expect_error(one(1).nccl->destroy(one(1).comm), ErrorCode::device,
               "destroy: it would wait for ever: " + whole);
  expect_ok(one(0).enqueue(sum(one(0))));
  expect_error(one(1).finish(), ErrorCode::device, "rank 1 of 3: rank 2 has not come to it");
  // The first that lacks somebody is the one that is named.
  expect_ok(one(1).enqueue(sum(one(1))));
  expect_error(one(1).finish(), ErrorCode::device, "operation 1 of communicator");
  expect_ok(one(2).enqueue(sum(one(2))));
  expect_error(one(1).finish(), ErrorCode::device, "operation 2 of communicator");
  for (const std::size_t rank : {0, 2}) expect_ok(one(rank).enqueue(sum(one(rank))));
  expect_ok(one(1).finish());
  expect_ok(one(1).nccl->destroy(one(1).comm));
  EXPECT_EQ(world_->counts().communicators, 2u);
}

TEST_F(SimNcclRanksThatAreMissing, OfAPairAreNamed) {
  make(3, kSoon);
  expect_ok(one(2).enqueue(pair(OperationKind::send, one(2), 1)));
  expect_error(one(2).finish(), ErrorCode::device,
               "operation 1 of communicator 'many' between ranks 2>1, ");
  expect_error(one(2).finish(), ErrorCode::device, "rank 2 of 3: rank 1 has not come to it");
  expect_ok(one(0).enqueue(pair(OperationKind::receive, one(0), 1)));
  expect_error(one(0).finish(), ErrorCode::device, "between ranks 1>0, ");
  expect_error(one(0).finish(), ErrorCode::device, "rank 0 of 3: rank 1 has not come to it");
  expect_ok(one(1).enqueue(pair(OperationKind::send, one(1), 0)));
  expect_ok(one(1).enqueue(pair(OperationKind::receive, one(1), 2)));
  for (std::size_t rank = 0; rank < 3; ++rank) expect_ok(one(rank).finish());
}

TEST_F(SimNcclRanksThatAreMissing, AreNotWaitedForOnceTheCommunicatorIsAborted) {
  make(3, {.host_timeout = std::chrono::seconds(10)});
  expect_ok(one(0).enqueue(sum(one(0))));
  expect_ok(one(0).enqueue(pair(OperationKind::send, one(0), 1)));
  std::thread waiting([&] { expect_ok(one(0).finish()); });
  expect_ok(one(0).nccl->abort(one(0).comm));
  waiting.join();
  expect_ok(one(0).finish());
  expect_error(one(0).nccl->abort(one(0).comm), ErrorCode::device, "there is no such communicator");
  EXPECT_EQ(world_->counts().communicators, 2u);
  for (const std::size_t rank : {1, 2}) expect_ok(one(rank).nccl->destroy(one(rank).comm));
  EXPECT_EQ(world_->counts().communicators, 0u);
}

}  // namespace
}  // namespace weir
