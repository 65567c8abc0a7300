// SPDX-License-Identifier: Apache-2.0
// What buffers are filled with, and what must be in them after an operation, against collectives
// done by hand in the host's memory.
#include "comm/contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace weir {
namespace {

constexpr std::uint64_t kCount = 257;

// Buffers' buffers of float32, to send from and to receive into.
class Buffers {
 public:
  Buffers(int ranks, OperationKind kind, int root = 0)
      : ranks_(ranks), send_(size()), receive_(size()) {
    for (int rank = 0; rank < ranks; ++rank) {
      send_[of(rank)].resize(kCount * size());
      receive_[of(rank)].assign(kCount * size(), -7);
      operations_.push_back({.kind = kind,
                             .send = send_[of(rank)].data(),
                             .receive = receive_[of(rank)].data(),
                             .count = kCount,
                             .type = DataType::float32,
                             .peer = root});
    }
  }

  void fill(std::uint64_t seed) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const Contents contents{operations_[of(rank)], rank, ranks_, seed};
      const Bytes bytes = contents.operation.reads(ranks_, rank);
      for (std::uint64_t i = 0; i < bytes.count / sizeof(float); ++i) {
        send_[of(rank)][i] = contents.to_send(i);
      }
    }
  }
  std::uint64_t count_wrong(std::uint64_t seed) const {
    std::uint64_t wrong = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      const Contents contents{operations_[of(rank)], rank, ranks_, seed};
      const Bytes bytes = contents.operation.writes(ranks_, rank);
      for (std::uint64_t i = 0; i < bytes.count / sizeof(float); ++i) {
        wrong += receive_[of(rank)][i] == contents.to_receive(i) ? 0 : 1;
      }
    }
    return wrong;
  }

  // By the definition of the operation.
  void collect() {
    const Operation& operation = operations_.front();
    const int root = operation.peer;
    for (int to = 0; to < ranks_; ++to) {
      const bool takes = to == root || (operation.kind != OperationKind::reduce &&
                                        operation.kind != OperationKind::gather);
      if (!takes) continue;
      for (std::uint64_t i = 0; i < kCount; ++i) collect(operation, to, i);
    }
  }

 private:
  static std::size_t of(int rank) { return static_cast<std::size_t>(rank); }
  std::size_t size() const { return of(ranks_); }

  float sum(std::uint64_t i) const {
    float value = 0;
    for (const auto& sent : send_) value += sent[i];
    return value;
  }
  void collect(const Operation& operation, int to, std::uint64_t i) {
    auto& into = receive_[of(to)];
    const std::uint64_t mine = kCount * of(to);
    switch (operation.kind) {
      case OperationKind::all_reduce:
      case OperationKind::reduce:
        into[i] = sum(i);
        return;
      case OperationKind::reduce_scatter:
        into[i] = sum(mine + i);
        return;
      case OperationKind::broadcast:
        into[i] = send_[of(operation.peer)][i];
        return;
      case OperationKind::scatter:
        into[i] = send_[of(operation.peer)][mine + i];
        return;
      case OperationKind::all_gather:
      case OperationKind::gather:
        for (std::size_t from = 0; from < size(); ++from) into[kCount * from + i] = send_[from][i];
        return;
      case OperationKind::all_to_all:
        for (std::size_t from = 0; from < size(); ++from) {
          into[kCount * from + i] = send_[from][mine + i];
        }
        return;
      default:
        FAIL() << "not of two ranks alone";
    }
  }

  const int ranks_;
  std::vector<std::vector<float>> send_, receive_;
  std::vector<Operation> operations_;  // by rank
};

class ContentsOf : public testing::TestWithParam<OperationKind> {};

TEST_P(ContentsOf, AreWhatTheOperationIsDefinedToGive) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (int root = 0; root < ranks; ++root) {
      Buffers all(ranks, GetParam(), root);
      all.fill(11);
      EXPECT_NE(all.count_wrong(11), 0u);
      all.collect();
      EXPECT_EQ(all.count_wrong(11), 0u) << ranks << " ranks, root " << root;
      EXPECT_NE(all.count_wrong(12), 0u) << "of another seed";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ContentsOf,
                         testing::Values(OperationKind::all_reduce, OperationKind::all_gather,
                                         OperationKind::reduce_scatter, OperationKind::broadcast,
                                         OperationKind::reduce, OperationKind::all_to_all,
                                         OperationKind::gather, OperationKind::scatter),
                         [](const auto& info) {
                           std::string name(name_of(info.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST(Contents, OfSendsGoWithTheirReceives) {
  const auto sent = [](int peer) {
    return Contents{{.kind = OperationKind::send, .count = 2, .peer = peer}, 0, 3, 9};
  };
  const Contents received{{.kind = OperationKind::receive, .count = 2, .peer = 0}, 1, 3, 9};
  for (const std::uint64_t i : {0, 1}) {
    EXPECT_EQ(received.to_receive(i), sent(1).to_send(i));
    EXPECT_NE(received.to_receive(i), sent(2).to_send(i));
  }
}

// Whatever order ranks are added in: float32 has every whole number up to there.
TEST(Contents, OfSumsAreExact) {
  const Contents sum{{.kind = OperationKind::all_reduce, .count = 64}, 0, 4096, 3};
  for (std::uint64_t i = 0; i < 64; ++i) {
    EXPECT_GT(sum.to_receive(i), 0);
    EXPECT_LE(sum.to_receive(i), 1 << 24);
  }
}

}  // namespace
}  // namespace weir
