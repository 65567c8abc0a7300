// SPDX-License-Identifier: Apache-2.0
// NCCL lets one thread at a time work with a communicator; programs may call Weir's from any.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <type_traits>

#include "tests/comm/ranks.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::Rank;
using testing::IsEmpty;

// Passes every call on to another Nccl, and notes where two calls that work with one communicator
// are made side by side, which NCCL does not allow. For one communicator. It may tell no size.
class OneAtATime final : public Nccl {
 public:
  explicit OneAtATime(Nccl& inner) : inner_(inner) {}
  bool tells_no_size = false;

  // The next call of this name stays until another one is made beside it, or 0.3 s.
  void hold(const std::string& call) {
    const std::lock_guard lock(mutex_);
    held_ = call;
  }
  // Until the call that is to be held is there.
  void await_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.empty(); });
  }
  std::vector<std::string> side_by_side() const {
    const std::lock_guard lock(mutex_);
    return side_by_side_;
  }

  Status revoke(CommHandle comm) override {
    return alone("revoke", [&] { return inner_.revoke(comm); });
  }
  Result<CommHandle> split(CommHandle comm, int color, int key, const CommConfig& with) override {
    return alone("split", [&] { return inner_.split(comm, color, key, with); });
  }
  Status enqueue(CommHandle comm, std::span<const Operation> group, Stream stream) override {
    return alone("enqueue", [&] { return inner_.enqueue(comm, group, stream); });
  }
  Result<std::vector<std::vector<std::byte>>> host_all_gather(CommHandle comm,
                                                              std::span<const std::byte> mine,
                                                              Nanoseconds timeout) override {
    return alone("host_all_gather", [&] { return inner_.host_all_gather(comm, mine, timeout); });
  }

  std::string version() const override { return inner_.version(); }
  Result<UniqueId> unique_id() override { return inner_.unique_id(); }
  Result<CommHandle> init(const UniqueId& id, int ranks, int rank,
                          const CommConfig& with) override {
    return inner_.init(id, ranks, rank, with);
  }
  Status destroy(CommHandle comm) override { return inner_.destroy(comm); }
  Status abort(CommHandle comm) override { return inner_.abort(comm); }
  Status async_error(CommHandle comm) override { return inner_.async_error(comm); }
  Result<int> size(CommHandle comm) override {
    if (tells_no_size) return Error(ErrorCode::device, "size: made to fail");
    return inner_.size(comm);
  }
  Result<int> rank(CommHandle comm) override { return inner_.rank(comm); }
  Result<Address> allocate_segment(Bytes bytes) override { return inner_.allocate_segment(bytes); }
  Status free_segment(Address segment) override { return inner_.free_segment(segment); }
  Result<RegistrationHandle> register_range(CommHandle comm, Address address,
                                            Bytes bytes) override {
    return inner_.register_range(comm, address, bytes);
  }
  Status deregister(CommHandle comm, RegistrationHandle registration) override {
    return inner_.deregister(comm, registration);
  }
  Result<Stream> create_stream() override { return inner_.create_stream(); }
  Status destroy_stream(Stream stream) override { return inner_.destroy_stream(stream); }

 private:
  template <class Call>
  std::invoke_result_t<Call> alone(const std::string& name, Call&& call) {
    {
      std::unique_lock lock(mutex_);
      for (const std::string& other : going_on_) {
        side_by_side_.push_back(name + " beside " + other);
      }
      going_on_.push_back(name);
      const bool held = held_ == name;
      if (held) held_.clear();
      changed_.notify_all();
      if (held) {
        changed_.wait_for(lock, std::chrono::milliseconds(300),
                          [&] { return going_on_.size() > 1; });
      }
    }
    std::invoke_result_t<Call> result = call();
    const std::lock_guard lock(mutex_);
    going_on_.erase(std::find(going_on_.begin(), going_on_.end(), name));
    return result;
  }

  Nccl& inner_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string held_;
  std::vector<std::string> going_on_, side_by_side_;
};

constexpr Bytes kSmallSize = 4_KiB;
constexpr std::uint64_t kSmallCount = kSmallSize.count / 4;

// A communicator of one rank, whose calls of NCCL's are looked at.
class OneThreadAtATime : public test::CommRanks {
 protected:
  OneThreadAtATime() : CommRanks(1), nccl_(*ranks_[0]->nccl) {
    Rank& rank = *ranks_[0];
    Result<Communicator> made = Communicator::create({nccl_, rank.device, *rank.heap},
                                                     *nccl_.unique_id(), 1, 0, {.watch_every = {}});
    expect_ok(made);
    rank.comm = *std::move(made);
    block_ = rank.allocate(kSmallSize, rank.compute);
  }
  void TearDown() override {
    ranks_[0]->free(block_);
    CommRanks::TearDown();
  }
  Rank& rank() { return *ranks_[0]; }
  Operation sum() const { return {.send = block_, .receive = block_, .count = kSmallCount}; }

  // Makes `call` while the call of NCCL's that `first` makes goes on.
  void make_beside(const std::string& held, const std::function<void()>& first,
                   const std::function<void()>& call) {
    nccl_.hold(held);
    std::thread other(first);
    nccl_.await_held();
    call();
    other.join();
    EXPECT_THAT(nccl_.side_by_side(), IsEmpty());
  }

  OneAtATime nccl_;
  void* block_ = nullptr;
};

TEST_F(OneThreadAtATime, AnAbortWaitsForTheOperationThatIsBeingQueued) {
  make_beside(
      "enqueue", [&] { expect_ok(rank().comm->run(sum(), overlapped(rank().compute))); },
      [&] { rank().comm->abort("a test"); });
  expect_error(rank().comm->status(), ErrorCode::device, "aborted: a test");
}

TEST_F(OneThreadAtATime, AnOperationIsNotQueuedOnceAnAbortHasBegun) {
  make_beside(
      "revoke", [&] { rank().comm->abort("a test"); },
      [&] {
        expect_error(rank().comm->run(sum(), overlapped(rank().compute)), ErrorCode::device,
                     "communicator 'world', rank 0 of 1: aborted: a test");
      });
}

TEST_F(OneThreadAtATime, ASplitWaitsForTheOperationThatIsBeingQueued) {
  make_beside(
      "enqueue", [&] { expect_ok(rank().comm->run(sum(), overlapped(rank().compute))); },
      [&] { expect_ok(rank().comm->split(0, 0, {.watch_every = {}})); });
}

TEST_F(OneThreadAtATime, ASplitWhoseSizeNcclDoesNotTellIsEnded) {
  nccl_.tells_no_size = true;
  expect_error(rank().comm->split(0, 0), ErrorCode::device, "size: made to fail");
  EXPECT_EQ(world_.counts().communicators, 1u) << "the split's goes on";
}

class ThatComeLate : public test::CommRanks {};

TEST_F(ThatComeLate, RanksOfASplitEndTheCommunicatorThatWaited) {
  create();
  const CommunicatorOptions short_host_timeout{.host_timeout = Nanoseconds{200'000'000},
                                               .watch_every = {}};
  expect_error(ranks_[0]->comm->split(0, 0, short_host_timeout), ErrorCode::device,
               "not all ranks came in time");
  expect_error(ranks_[0]->comm->status(), ErrorCode::device, "split: not all ranks came in time");
  (void)ranks_[1]->comm->split(0, 0, short_host_timeout);  // so that what waited for it ends
}

}  // namespace
}  // namespace weir
