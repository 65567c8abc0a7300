// RangeSet against a model: two ordered containers and nothing clever, over long random programs
// on addresses of very different density.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/range_set.h"

namespace weir {
namespace {

class Model {
 public:
  void insert(Range range) {
    auto next = by_address_.lower_bound(range.begin);
    if (next != by_address_.end() && next->first == range.end()) {
      range.size += next->second;
      next = remove(next);
    }
    if (next != by_address_.begin() && ends(std::prev(next)) == range.begin) {
      const auto previous = std::prev(next);
      range = {previous->first, previous->second + range.size};
      remove(previous);
    }
    add(range);
  }
  void erase(Range range) {
    const auto member = std::prev(by_address_.upper_bound(range.begin));
    const Range whole{member->first, member->second};
    remove(member);
    if (whole.begin < range.begin) add({whole.begin, range.begin - whole.begin});
    if (range.end() < whole.end()) add({range.end(), whole.end() - range.end()});
  }

  std::optional<Range> containing(Address address) const {
    const std::optional<Range> last = last_before(address + 1_B);
    return last && address < last->end() ? last : std::nullopt;
  }
  std::optional<Range> ending_at(Address end) const {
    const std::optional<Range> last = last_before(end);
    return last && last->end() == end ? last : std::nullopt;
  }
  bool overlaps(Range range) const {
    const std::optional<Range> last = last_before(range.end());
    return last && range.begin < last->end();
  }
  std::vector<Range> fitting(Bytes size, std::size_t most) const {
    std::vector<Range> fitting;
    for (auto it = by_size_.lower_bound({size, Address{}});
         it != by_size_.end() && fitting.size() < most; ++it) {
      fitting.push_back({it->second, it->first});
    }
    return fitting;
  }
  std::vector<Range> members() const {
    std::vector<Range> members;
    for (const auto& [begin, size] : by_address_) members.push_back({begin, size});
    return members;
  }
  // The first member at or behind `at`, or else the first of all.
  std::optional<Range> member_near(Address at) const {
    auto it = by_address_.lower_bound(at);
    if (it == by_address_.end()) it = by_address_.begin();
    if (it == by_address_.end()) return std::nullopt;
    return Range{it->first, it->second};
  }
  std::size_t count() const { return by_address_.size(); }

 private:
  using ByAddress = std::map<Address, Bytes>;
  static Address ends(ByAddress::const_iterator member) { return member->first + member->second; }
  std::optional<Range> last_before(Address at) const {
    const auto after = by_address_.lower_bound(at);
    if (after == by_address_.begin()) return std::nullopt;
    return Range{std::prev(after)->first, std::prev(after)->second};
  }
  void add(Range range) {
    by_address_.emplace(range.begin, range.size);
    by_size_.emplace(range.size, range.begin);
  }
  ByAddress::iterator remove(ByAddress::const_iterator member) {
    by_size_.erase({member->second, member->first});
    return by_address_.erase(member);
  }

  ByAddress by_address_;
  std::set<std::pair<Bytes, Address>> by_size_;
};

// Where the addresses of a program lie, and how long its ranges are.
struct Terrain {
  const char* name;
  Address base;
  Bytes span;
  Bytes unit;                // all is a multiple of it, and beside the base
  std::uint64_t most_units;  // of a range; the lengths' logarithms are spread evenly
  std::size_t most_members;  // then they become fewer, until there is half
  int steps;
};

constexpr std::uint64_t kHigh = 0x1'FFFF'F000'0000;  // 49 bits
constexpr Terrain kTerrains[] = {
    {"odd and dense", {3}, 5000_B, 1_B, 60, 600, 150'000},
    {"odd, from zero, across many granules", {0}, 1_GiB, 1_B, 1 << 24, 400, 150'000},
    {"hundreds in one granule", {(5_GiB).count}, 2_MiB, 512_B, 1, 500, 250'000},
    {"a stream heap", {0x7F12'3400'0000}, 256_GiB, 512_B, 200'000, 3000, 250'000},
    {"many of few sizes", {0x7F12'3400'0000}, 4_GiB, 64_KiB, 2, 6000, 150'000},
    {"few, at the end of 49 bits", {kHigh - (300_GiB).count}, 300_GiB, 2_MiB, 30'000, 12, 100'000},
    {"all of 49 bits", {512}, {kHigh}, 512_B, 1 << 26, 2000, 50'000},
};

class RangeSetModel : public testing::TestWithParam<Terrain> {
 protected:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  Address address() { return terrain_.base + terrain_.unit * below(terrain_.span / terrain_.unit); }
  Bytes length() {
    const std::uint64_t most = std::uint64_t{2} << below(std::bit_width(terrain_.most_units));
    return terrain_.unit * (1 + below(std::min(most, terrain_.most_units)));
  }

  // Where members become fewer, half of it fills from a member's end, up to the next or in part.
  void insert() {
    Range range{address(), length()};
    if (const auto member = model_.member_near(range.begin);
        member && below(grows_ ? 16 : 2) == 0) {
      range.begin = member->end();
    }
    const Range room{range.begin, terrain_.base + terrain_.span - range.begin};
    if (room.size == 0_B || model_.containing(range.begin)) return;
    range.size = std::min(range.size, room.size);
    if (const auto next = model_.member_near(range.begin); next && next->begin >= range.begin) {
      const Bytes gap = next->begin - range.begin;
      if (range.size > gap || (below(3) == 0 && gap < terrain_.unit * 64)) range.size = gap;
    }
    ASSERT_FALSE(set_.overlaps(range));
    set_.insert(range);
    model_.insert(range);
  }
  // A part of a member: from its begin, up to its end, between, or all. Where members become more,
  // a little of the middle, mostly.
  void erase() {
    const std::optional<Range> member = model_.member_near(address());
    if (!member) return;
    const std::uint64_t units = member->size / terrain_.unit;
    const bool splits = grows_ && units > 2 && below(4) != 0;
    const std::uint64_t first = splits ? units / 2 : below(2) == 0 ? 0 : below(units);
    const std::uint64_t count = splits          ? 1
                                : below(2) == 0 ? units - first
                                                : 1 + below(units - first);
    const Range range{member->begin + terrain_.unit * first, terrain_.unit * count};
    ASSERT_TRUE(set_.contains(range));
    set_.erase(range);
    model_.erase(range);
    ASSERT_FALSE(set_.overlaps(range));
  }
  void compare_around(Address at, Bytes size) {
    ASSERT_EQ(set_.containing(at), model_.containing(at));
    ASSERT_EQ(set_.ending_at(at), model_.ending_at(at));
    ASSERT_EQ(set_.overlaps({at, size}), model_.overlaps({at, size}));
    const auto member = model_.containing(at);
    ASSERT_EQ(set_.contains({at, size}), member && member->contains({at, size}));
    if (const auto near = model_.member_near(at)) {
      ASSERT_EQ(set_.ending_at(near->end()), near);
      ASSERT_EQ(set_.containing(near->begin), near);
      ASSERT_EQ(set_.containing(near->end() - 1_B), near);
    }
    const std::vector<Range> fitting = model_.fitting(size, 5);
    std::vector<Range> visited;
    set_.visit_fitting(size, [&](Range range) {
      visited.push_back(range);
      return visited.size() < 5;
    });
    ASSERT_EQ(visited.size(), fitting.size());
    for (const Range range : visited) {
      ASSERT_GE(range.size, size);
      ASSERT_EQ(model_.containing(range.begin), range);
    }
    // A later one is smaller by an eighth at most.
    for (std::size_t i = 1; i < visited.size(); ++i) {
      ASSERT_GT(visited[i].size.count * 9 / 8 + 1, visited[i - 1].size.count);
    }
    ASSERT_EQ(set_.best_fit(size),
              fitting.empty() ? std::nullopt : std::optional<Range>(fitting.front()));
  }
  void compare_all() {
    ASSERT_TRUE(set_.consistent());
    ASSERT_EQ(std::vector<Range>(set_.begin(), set_.end()), model_.members());
    std::vector<Range> by_size;
    set_.visit_fitting(1_B, [&](Range range) {
      by_size.push_back(range);
      return true;
    });
    const auto smaller = [](Range a, Range b) {
      return std::pair(a.size, a.begin) < std::pair(b.size, b.begin);
    };
    std::sort(by_size.begin(), by_size.end(), smaller);
    ASSERT_EQ(by_size, model_.fitting(1_B, model_.count()));
    const RangeSet copy = set_;
    ASSERT_TRUE(copy == set_);
    ASSERT_TRUE(copy.consistent());
  }

  const Terrain terrain_ = GetParam();
  bool grows_ = true;  // whether members become more, or fewer
  std::mt19937_64 random_{terrain_.span.count};
  RangeSet set_;
  Model model_;
};

TEST_P(RangeSetModel, AgreesWithTheModel) {
  std::size_t most = 0;
  for (int step = 0; step < terrain_.steps; ++step) {
    if (model_.count() >= terrain_.most_members) grows_ = false;
    if (model_.count() <= terrain_.most_members / 2) grows_ = true;
    if (below(8) < (grows_ ? 5u : 3u)) {
      insert();
    } else {
      erase();
    }
    compare_around(address(), length());
    ASSERT_EQ(set_.count(), model_.count());
    if (step % (terrain_.steps / 40) == 0) compare_all();
    if (HasFatalFailure()) FAIL() << "at step " << step;
    most = std::max(most, model_.count());
  }
  EXPECT_GE(most, terrain_.most_members) << "the program is not what it is meant to be";
  while (model_.count() > 0) {
    const Range member = *model_.member_near(address());
    set_.erase(member);
    model_.erase(member);
  }
  compare_all();
  EXPECT_TRUE(set_.empty());
  insert();  // what is empty works like what is new
  compare_all();
}

INSTANTIATE_TEST_SUITE_P(Terrains, RangeSetModel, testing::ValuesIn(kTerrains),
                         [](const testing::TestParamInfo<Terrain>& info) {
                           std::string name = info.param.name;
                           std::erase_if(name, [](char c) { return c == ','; });
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace weir
