// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "sim/race_checker.h"

namespace weir::sim {
namespace {

class RaceCheckerTest : public testing::Test {
 protected:
  void write(StreamIndex stream, std::uint64_t begin, std::uint64_t end) {
    touch(Access::Kind::write, stream, begin, end);
  }
  void read(StreamIndex stream, std::uint64_t begin, std::uint64_t end) {
    touch(Access::Kind::read, stream, begin, end);
  }
  void touch(Access::Kind kind, StreamIndex stream, std::uint64_t begin, std::uint64_t end) {
    const Access access{kind, Address{1000 + begin}, Bytes{end - begin}};
    checker_.touch(page_, begin, end, checker_.begin(stream, access, {++time_}));
  }
  void order(StreamIndex earlier, StreamIndex later) {
    checker_.wait(later, checker_.mark(earlier));
  }

  RaceChecker checker_;
  PageStamps page_;
  const StreamIndex a_ = checker_.add_stream(7);
  const StreamIndex b_ = checker_.add_stream(8);
  const StreamIndex c_ = checker_.add_stream(9);
  std::int64_t time_ = 0;
};

TEST_F(RaceCheckerTest, TheHostItselfRacesWithWorkThatItHasNotSeenComplete) {
  read(a_, 100, 200);
  write(b_, 200, 300);
  const VectorClock read_mark = checker_.mark(a_), write_mark = checker_.mark(b_);
  const auto races_of = [&](Access::Kind kind, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t before = checker_.race_count();
    const Access access{kind, Address{1000 + begin}, Bytes{end - begin}};
    checker_.host_touches(page_, begin, end, access, {9});
    return checker_.race_count() - before;
  };
  EXPECT_EQ(races_of(Access::Kind::read, 0, 200), 0u) << "both read";
  EXPECT_EQ(races_of(Access::Kind::write, 0, 100), 0u);
  EXPECT_EQ(races_of(Access::Kind::write, 300, 400), 0u);
  EXPECT_EQ(races_of(Access::Kind::write, 50, 101), 1u);
  EXPECT_EQ(races_of(Access::Kind::write, 199, 200), 1u);
  EXPECT_EQ(races_of(Access::Kind::read, 299, 400), 1u);
  EXPECT_EQ(races_of(Access::Kind::write, 0, 400), 2u);
  const Race& race = checker_.races()[0];
  EXPECT_EQ(race.kind, Race::Kind::host);
  EXPECT_EQ(race.first_stream, 7u);
  EXPECT_EQ(race.second_stream, 0u);
  EXPECT_EQ(race.first.kind, Access::Kind::read);
  EXPECT_EQ(race.second.kind, Access::Kind::write);
  EXPECT_EQ(race.second.address, Address{1050});
  EXPECT_EQ(race.first_time, 1_ns);
  EXPECT_EQ(race.second_time, 9_ns);
  checker_.host_saw(write_mark);
  EXPECT_EQ(races_of(Access::Kind::write, 0, 400), 1u);
  checker_.host_saw(read_mark);
  EXPECT_EQ(races_of(Access::Kind::write, 0, 400), 0u);
}

TEST_F(RaceCheckerTest, TheHostRacesOnceWithAnAccessThatLiesInSeveralRanges) {
  write(a_, 0, 1000);
  order(a_, b_);
  for (std::uint64_t i = 0; i < 1000; i += 100) read(b_, i, i + 10);
  checker_.host_touches(page_, 0, 1000, {Access::Kind::read, Address{1000}, 1000_B}, {20});
  EXPECT_EQ(checker_.race_count(), 1u);
}

TEST_F(RaceCheckerTest, AStreamThatEndedLeavesItsNumberOnceTheHostHasSeenItsWork) {
  write(a_, 0, 100);
  const VectorClock mark = checker_.mark(a_);
  checker_.end_stream(a_);
  const StreamIndex early = checker_.add_stream(10);
  EXPECT_NE(early, a_);
  write(early, 0, 10);
  EXPECT_EQ(checker_.race_count(), 1u) << "the host has not seen the first write complete";

  checker_.host_saw(mark);
  const StreamIndex late = checker_.add_stream(11);
  EXPECT_EQ(late, a_);
  write(late, 50, 60);
  EXPECT_EQ(checker_.race_count(), 1u);
  // Who waited for the one that ended has not waited for the one that has its number now.
  checker_.wait(b_, mark);
  write(b_, 50, 60);
  ASSERT_EQ(checker_.race_count(), 2u);
  EXPECT_EQ(checker_.races()[1].first_stream, 11u);
}

TEST_F(RaceCheckerTest, StampsOfWorkKnownCompleteAreDropped) {
  for (std::uint64_t i = 0; i < 100000; ++i) {
    write(a_, 2 * i, 2 * i + 1);
    if (i % 100 == 0) checker_.host_saw(checker_.mark(a_));
  }
  EXPECT_LT(page_.ranges(), 1000u);
}

// Where there are many ranges, those whose work may still run stay: of writes, of reads, of both.
TEST_F(RaceCheckerTest, StampsOfWorkThatMayStillRunAreKept) {
  constexpr std::uint64_t kRanges = 1000;
  for (std::uint64_t i = 0; i < kRanges; ++i) {
    if (i % 3 != 0) write(a_, 2 * i, 2 * i + 1);
    if (i % 3 != 1) read(a_, 2 * i, 2 * i + 1);
  }
  EXPECT_EQ(page_.ranges(), kRanges);
  for (std::uint64_t i = 0; i < kRanges; ++i) {
    const std::uint64_t before = checker_.race_count();
    write(b_, 2 * i, 2 * i + 1);
    EXPECT_EQ(checker_.race_count() - before, i % 3 == 2 ? 2u : 1u) << i;
  }
}

// The independent oracle: keeps every access and every order as a graph, and searches it. Exact up
// to the first race of a program, which is all that the two are compared on.
class Oracle {
 public:
  explicit Oracle(int streams) : last_of_(static_cast<std::size_t>(streams), -1) {}

  int mark(StreamIndex stream) { return add(stream); }
  void wait(StreamIndex stream, int mark) { edge(mark, add(stream)); }
  void host_saw(int mark) { seen_.push_back(mark); }

  // Whether the access races with an earlier one.
  bool access(StreamIndex stream, bool write, std::uint64_t begin, std::uint64_t end) {
    const int node = add(stream);
    bool race = false;
    for (const Entry& earlier : entries_) {
      const bool conflict = (write || earlier.write) && earlier.begin < end && begin < earlier.end;
      race = race || (conflict && !reaches(earlier.node, node));
    }
    entries_.push_back({node, write, begin, end});
    return race;
  }

 private:
  struct Entry {
    int node;
    bool write;
    std::uint64_t begin, end;
  };

  int add(StreamIndex stream) {
    const int node = static_cast<int>(before_.size());
    before_.emplace_back();
    if (last_of_[stream] >= 0) edge(last_of_[stream], node);
    for (const int mark : seen_) edge(mark, node);
    last_of_[stream] = node;
    return node;
  }
  void edge(int from, int to) { before_[static_cast<std::size_t>(to)].push_back(from); }
  bool reaches(int from, int to) const {
    std::vector<int> todo{to};
    std::vector<bool> visited(before_.size());
    while (!todo.empty()) {
      const int node = todo.back();
      todo.pop_back();
      if (node == from) return true;
      if (visited[static_cast<std::size_t>(node)]) continue;
      visited[static_cast<std::size_t>(node)] = true;
      const auto& before = before_[static_cast<std::size_t>(node)];
      todo.insert(todo.end(), before.begin(), before.end());
    }
    return false;
  }

  std::vector<std::vector<int>> before_;
  std::vector<int> last_of_;
  std::vector<int> seen_;
  std::vector<Entry> entries_;
};

// The number of the first access that races; the same for checker and oracle.
std::optional<int> first_race_of_random_program(std::uint64_t seed) {
  constexpr int kStreams = 4;
  std::mt19937_64 random(seed);
  RaceChecker checker;
  PageStamps page;
  for (int i = 0; i < kStreams; ++i) checker.add_stream(static_cast<std::uint64_t>(i) + 1);
  Oracle oracle(kStreams);
  std::vector<std::pair<VectorClock, int>> marks;
  const auto pick_mark = [&]() -> auto& { return marks[random() % marks.size()]; };
  for (int step = 0; step < 80; ++step) {
    const auto stream = static_cast<StreamIndex>(random() % kStreams);
    const auto choice = random() % 100;
    if (choice < 30) {
      VectorClock mark = checker.mark(stream);
      marks.emplace_back(std::move(mark), oracle.mark(stream));
    } else if (choice < 60 && !marks.empty()) {
      const auto& [mark, node] = random() % 2 == 0 ? marks.back() : pick_mark();
      checker.wait(stream, mark);
      oracle.wait(stream, node);
    } else if (choice < 63 && !marks.empty()) {
      const auto& [mark, node] = pick_mark();
      checker.host_saw(mark);
      oracle.host_saw(node);
    } else {
      const bool write = random() % 2 == 0;
      const std::uint64_t begin = random() % 600;
      const std::uint64_t end = begin + 1 + random() % 4;
      const Access access{write ? Access::Kind::write : Access::Kind::read, Address{begin + 1},
                          Bytes{end - begin}};
      checker.touch(page, begin, end, checker.begin(stream, access, {step}));
      const bool races = oracle.access(stream, write, begin, end);
      EXPECT_EQ(checker.race_count() != 0, races) << "seed " << seed << " step " << step;
      if (races || checker.race_count() != 0) return step;
    }
  }
  return std::nullopt;
}

TEST(RaceCheckerProperty, AgreesWithASearchOfTheWholeGraphOnRandomPrograms) {
  int racy = 0;
  constexpr int kPrograms = 3000;
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
    racy += first_race_of_random_program(seed).has_value() ? 1 : 0;
    if (HasFailure()) return;
  }
  // The programs must be of both sorts for the comparison to say anything.
  EXPECT_GT(racy, kPrograms / 20);
  EXPECT_LT(racy, kPrograms - kPrograms / 20);
}

}  // namespace
}  // namespace weir::sim
