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

class BesideAReceive : public BesideRemoteWork {};

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

}  // namespace
}  // namespace weir
