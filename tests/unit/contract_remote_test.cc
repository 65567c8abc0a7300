// SPDX-License-Identifier: Apache-2.0
// Work that waits for other processes, on a device with streams that nobody tells about: requests
// are not made to wait for it while there is memory that needs no such wait.
#include <gmock/gmock.h>

#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/unit/contract_pools.h"

namespace weir {
namespace {

// The other rank, which comes when the test says so.
class LateRank final : public SimPeers {
 public:
  std::uint64_t arrive(const std::string&) override { return 1; }
  Status await(std::uint64_t) override {
    return came ? Status{} : Status(Error(ErrorCode::device, "the other rank does not come"));
  }
  bool are_there(std::uint64_t) const override { return came; }
  bool came = false;
};

class BesideRemoteWork : public test::ContractPools {
 protected:
  explicit BesideRemoteWork(HeapOptions options = {}) : ContractPools(options) {}
  ~BesideRemoteWork() override {
    rank_->came = true;
    device_.finish();
  }

  // A receive on m_, posted early.
  void post_receive() {
    const Access writes = Writes(received_, 4_MiB);
    EXPECT_TRUE(device_.launch(m_, {&writes, 1}, 10_us, {.peers = rank_, .what = "receive"}).ok());
    heap_.note_remote_work(m_);
  }
  // Memory that s_ used, and is done with.
  void* leave(Bytes bytes) {
    void* const x = written(bytes, s_);
    free(x);
    device_.advance(10_ms);
    return x;
  }
  bool is_done(Stream stream) {
    const EventHandle event = *device_.create_event();
    EXPECT_TRUE(device_.record(event, stream).ok());
    device_.advance(10_ms);
    const bool done = device_.finished(event);
    EXPECT_TRUE(device_.destroy_event(event).ok());
    return done;
  }

  const std::shared_ptr<LateRank> rank_ = std::make_shared<LateRank>();
  void* const received_ = allocate(4_MiB, m_);
};

class UnderEachPolicy : public BesideRemoteWork,
                        public testing::WithParamInterface<std::tuple<ReusePolicy, MemoryKind>> {
 protected:
  UnderEachPolicy()
      : BesideRemoteWork({.reuse = std::get<0>(GetParam()), .memory = std::get<1>(GetParam())}) {}
};
INSTANTIATE_TEST_SUITE_P(Policies, UnderEachPolicy,
                         testing::Combine(testing::Values(ReusePolicy::wait, ReusePolicy::balanced),
                                          testing::Values(MemoryKind::pages, MemoryKind::plain)));

TEST_P(UnderEachPolicy, RequestsTakeNewMemoryRatherThanWaitForIt) {
  std::mt19937 random(1);
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) {
    if (i == 20) post_receive();
    blocks.push_back(written(2_MiB * (1 + random() % 16), random() % 2 == 0 ? s_ : t_));
    std::swap(blocks[random() % blocks.size()], blocks.back());
    if (random() % 3 == 0) continue;
    free(blocks.back());
    blocks.pop_back();
  }
  EXPECT_TRUE(is_done(s_) && is_done(t_)) << "a stream stands for what it has nothing to do with";
}

TEST_P(UnderEachPolicy, OnceItIsOverMemoryServesOtherStreamsAgain) {
  post_receive();
  void* const x = leave(kBlock);
  rank_->came = true;
  device_.advance(10_ms);
  EXPECT_EQ(written(kBlock, t_), x);
}

TEST_P(UnderEachPolicy, AStreamsOwnMemoryServesItMeanwhile) {
  post_receive();
  void* const x = leave(kBlock);
  const Bytes before = reserved();
  EXPECT_EQ(written(kBlock, s_), x);
  EXPECT_EQ(reserved(), before);
}

TEST_P(UnderEachPolicy, MemoryWhoseUseIsSeenToBeOverServesOtherStreamsMeanwhile) {
  void* const x = written(kBlock, s_, kLong);
  free(x);
  EXPECT_TRUE(heap_.trim().ok());  // asks, and x is in use
  post_receive();
  device_.advance(kLong + kLong);
  EXPECT_EQ(written(kBlock, t_), x);
  EXPECT_TRUE(is_done(t_));
}

TEST_P(UnderEachPolicy, WhereNoMemoryIsLeftARequestWaits) {
  post_receive();
  void* const x = leave(kBlock);
  heap_.set_limit(reserved() + 2_MiB);
  EXPECT_EQ(written(kBlock, t_), x);
  EXPECT_FALSE(is_done(t_));
  rank_->came = true;
  EXPECT_TRUE(is_done(t_));
}

// A prefetch a step: work that two streams hand to each other is not held up by it.
TEST_P(UnderEachPolicy, PrefetchesRunBesideComputation) {
  constexpr int kSteps = 20;
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_TRUE(device_.launch(m_, 10_ms).ok());
    heap_.note_remote_work(m_);
    for (const Stream stream : {s_, t_}) {
      void* const x = written(kBlock, stream, 2_ms);
      free(x);
    }
    device_.advance(5_ms);
  }
  EXPECT_LE(device_.stream_waited(s_) + device_.stream_waited(t_), 40_ms);
}

class BesideAReceive : public BesideRemoteWork {};

TEST_F(BesideAReceive, PiecesOfOtherStreamsMemoryAreNotJoined) {
  std::vector<void*> pieces, between;
  for (int i = 0; i < 4; ++i) {
    pieces.push_back(written(kBlock, s_));
    between.push_back(written(4_MiB, s_));
  }
  post_receive();
  for (void* const piece : pieces) free(piece);
  device_.advance(10_ms);
  (void)written(kBlock * 4, t_);
  EXPECT_TRUE(is_done(t_));
}

TEST_F(BesideAReceive, ARequestThatTheProgramRepeatsDoesNotWaitWhereItWaitedBefore) {
  for (int step = 0; step < 6; ++step) {
    if (step == 4) post_receive();
    void* const x = written(kBlock, s_);
    free(x);
    void* const y = written(kBlock, t_);
    free(y);
    device_.advance(10_ms);
  }
  EXPECT_TRUE(is_done(t_));
  EXPECT_TRUE(is_done(s_));
}

// The same of pieces that were joined before.
TEST_F(BesideAReceive, ARequestThatTheProgramRepeatsJoinsNoPiecesThatItWaitedForBefore) {
  std::vector<void*> pieces, between;
  for (int i = 0; i < 4; ++i) {
    pieces.push_back(written(kBlock, s_));
    between.push_back(written(4_MiB, s_));
  }
  heap_.set_limit(reserved());
  for (int step = 0; step < 6; ++step) {
    if (step == 4) {
      heap_.set_limit(0_B);
      post_receive();
    }
    for (void* const piece : pieces) free(piece);
    pieces.clear();
    void* const joined = written(kBlock * 4, t_);
    ASSERT_GT(heap_.statistics().mappings.current, heap_.statistics().pages.current);
    free(joined);
    for (int i = 0; i < 4; ++i) pieces.push_back(written(kBlock, s_));
    device_.advance(10_ms);
  }
  EXPECT_TRUE(is_done(t_));
  EXPECT_TRUE(is_done(s_));
}

TEST_F(BesideAReceive, SmallBlocksOfAnotherStreamDoNotWaitEither) {
  post_receive();
  (void)leave(kBlock);
  (void)written(1_KiB, t_);
  EXPECT_TRUE(is_done(t_));
}

TEST_F(BesideAReceive, RequestsOfAPoolDoNotWaitEither) {
  GraphPool* pool = open_pool();
  {
    PoolBinding binding = warm_up(*pool, s_);
    post_receive();
    free(written(kBlock, s_));
  }
  {
    PoolBinding binding = warm_up(*pool, t_);
    free(written(kBlock, t_));
  }
  EXPECT_TRUE(is_done(t_));
}

// A stream that may be gone when somebody asks: what is asked about is an event from before.
TEST_F(BesideAReceive, AStreamThatMayEndIsAskedAboutInTime) {
  Stream ends = device_.new_stream();
  ends.may_end = true;
  EXPECT_TRUE(device_.launch(ends, 10_us).ok());
  heap_.note_remote_work(ends);
  device_.advance(10_ms);
  EXPECT_TRUE(device_.destroy_stream(ends).ok());
  void* const x = leave(kBlock);
  EXPECT_EQ(written(kBlock, t_), x);
}

TEST(RemoteWorkUnderTold, ChangesNothing) {
  SimDevice device;
  DeviceHeap heap(device);
  const Stream a = device.new_stream(), b = device.new_stream(), n = device.new_stream();
  EXPECT_TRUE(device.launch(n, 1000_ms).ok());
  heap.note_remote_work(n);
  void* const x = *heap.allocate(64_MiB, a);
  EXPECT_TRUE(heap.deallocate(x).ok());
  EXPECT_EQ(*heap.allocate(64_MiB, b), x);
  EXPECT_EQ(device.calls(DeviceCall::query), 0u);
}

}  // namespace
}  // namespace weir
