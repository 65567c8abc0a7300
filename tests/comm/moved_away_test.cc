// SPDX-License-Identifier: Apache-2.0
// What was moved from is refused, never used.
#include "tests/comm/ranks.h"
#include "weir/comm/bucketer.h"
#include "weir/comm/registered_pool.h"

namespace weir {
namespace {

using test::expect_error;
using test::expect_ok;
using test::Rank;

class MovedAway : public test::CommRanks {};

TEST_F(MovedAway, CommunicatorsSaySo) {
  create();
  on_all([](Rank& rank) {
    const Communicator world = std::move(*rank.comm);
    Communicator& gone = *rank.comm;
    const auto expect_gone = [](const auto& outcome) {
      expect_error(outcome, ErrorCode::invalid_argument, "this communicator was moved away");
    };
    EXPECT_EQ(gone.rank(), -1);
    EXPECT_EQ(gone.ranks(), 0);
    EXPECT_EQ(gone.name(), "");
    EXPECT_FALSE(gone.prepared());
    expect_gone(gone.prepare());
    expect_gone(gone.status());
    expect_gone(gone.poll());
    expect_gone(gone.close());
    expect_gone(gone.suspend());
    expect_gone(gone.resume());
    expect_gone(gone.split(0, 0));
    const int other[] = {1 - rank.number};
    expect_gone(gone.shrink(other));
    gone.abort("of nothing");
    GraphPool pool(*rank.heap);
    Result<CaptureScope> capture = CaptureScope::begin(pool, rank.compute);
    expect_gone(gone.end_capture(*capture));
    Result<Graph> graph = capture->end();
    expect_ok(graph);
    expect_gone(gone.launch(*graph, rank.compute));
    expect_gone(RegisteredPool::create(gone));
    const TensorSize tensors[] = {{10}};
    expect_gone(Bucketer::create(gone, tensors, DataType::float32, rank.compute));
    float number = 0;
    expect_gone(
        gone.all_reduce(&number, &number, 1, DataType::float32, {}, overlapped(rank.compute)));
    expect_gone(Communicator::run_together(std::vector<Communicator::Part>{{world, {}}, {gone, {}}},
                                           rank.compute));
    EXPECT_EQ(world.rank(), rank.number);
    expect_ok(world.status());
  });
}

TEST_F(MovedAway, RegisteredPoolsSaySo) {
  create();
  prepare();
  on_all([](Rank& rank) {
    Result<RegisteredPool> made = RegisteredPool::create(*rank.comm, {.segment = 2_MiB});
    expect_ok(made);
    RegisteredPool kept = *std::move(made);
    RegisteredPool& gone = *made;
    const auto expect_gone = [](const auto& outcome) {
      expect_error(outcome, ErrorCode::invalid_argument, "this registered pool was moved away");
    };
    expect_gone(gone.allocate(1_MiB, rank.compute));
    expect_gone(gone.deallocate(nullptr));
    expect_gone(gone.verify());
    expect_gone(gone.close());
    EXPECT_EQ(gone.statistics().segments, 0u);
    expect_ok(kept.close());
  });
}

}  // namespace
}  // namespace weir
