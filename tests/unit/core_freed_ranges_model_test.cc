// SPDX-License-Identifier: Apache-2.0
// FreedRanges against a model that keeps, for each grain, who freed it and who else used it, over
// random programs that cut lists, put them together, and free and use bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/time/freed_ranges.h"
#include "tests/unit/core_last_use.h"

namespace weir {
namespace {

constexpr Address kFirst{(3_GiB).count};
constexpr std::uint64_t kGrains = 400;
constexpr std::uint32_t kStreams = 5;

Range grains(std::uint64_t begin, std::uint64_t end) {
  return {kFirst + kGrain * begin, kGrain * (end - begin)};
}
std::uint64_t grain_of(Address at) { return (at - kFirst) / kGrain; }

// The last use of one grain.
struct Use {
  std::uint32_t by = 0;
  std::uint64_t released = 0;
  Fences fences;
  std::uint64_t freed_at = 0;

  Fences waits(std::uint32_t taker) const {
    Fences all = fences;
    if (by != taker) join(all, {{by, released}});
    return all;
  }
};

// A list, and the bytes that it speaks of.
struct Piece {
  std::uint64_t begin, end;
  FreedRanges list;
};

struct Program {
  const char* name;
  // No list gets more ranges than it keeps apart, so what it says is exact. Else it may say more.
  bool exact;
  std::uint64_t longest;  // of a range, in grains
  int steps;
};

class FreedRangesModel : public testing::TestWithParam<Program> {
 protected:
  void SetUp() override { pieces_.push_back({0, kGrains, {}}); }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  Piece& any_piece() { return pieces_[below(pieces_.size())]; }
  std::uint32_t any_stream() { return static_cast<std::uint32_t>(below(kStreams)); }

  LastUse any_use() {
    // Points repeat, so that neighbours often say the same.
    if (below(3) == 0) ++point_;
    LastUse use;
    use.by = {any_stream()};
    use.released = {use.by, {point_}};
    use.freed_at = ++requests_;
    if (below(3) == 0) use.fences = any_fences();
    return use;
  }
  FenceSet any_fences() {
    FenceSet fences;
    for (std::uint64_t i = below(4); i > 0; --i) fences.join({{any_stream()}, {1 + below(point_)}});
    return fences;
  }

  void note(std::uint64_t from, std::uint64_t end, const LastUse& use) {
    const Use mine{use.by.value, use.released.sequence.value, fences_of(use.fences), use.freed_at};
    for (std::uint64_t at = from; at < end; ++at) used_[at] = mine;
  }

  // A range behind the last one of a piece.
  void free_behind() {
    Piece& piece = any_piece();
    std::uint64_t from = piece.begin;
    // (Where ranges were joined the last one may go on behind the last grain that was used.)
    piece.list.visit(grains(piece.begin, piece.end), [&](const FreedRange& range) {
      from = grain_of(range.end);
      return true;
    });
    if (below(3) == 0) from += below(4);
    if (from >= piece.end) return;
    if (program_.exact && piece.list.size() >= FreedRanges::kMost) return;
    const std::uint64_t end = std::min(piece.end, from + 1 + below(program_.longest));
    const LastUse use = any_use();
    piece.list.append(pool_, grains(from, end), use);
    note(from, end, use);
  }
  // One before the first of a piece.
  void free_before() {
    Piece& piece = any_piece();
    std::optional<std::uint64_t> first;
    piece.list.visit(grains(piece.begin, piece.end), [&](const FreedRange& range) {
      first = grain_of(range.begin);
      return false;
    });
    std::uint64_t end = first.value_or(piece.end);
    if (below(3) == 0) end -= std::min(below(4), end - piece.begin);
    if (end <= piece.begin) return;
    if (program_.exact && piece.list.size() >= FreedRanges::kMost) return;
    const std::uint64_t from = end - std::min(end - piece.begin, 1 + below(program_.longest));
    const LastUse use = any_use();
    piece.list.prepend(pool_, grains(from, end), use);
    note(from, end, use);
  }
  void drop() {
    Piece& piece = any_piece();
    const std::uint64_t at = piece.begin + below(piece.end - piece.begin + 1);
    const bool before = below(2) == 0;
    if (before) {
      piece.list.drop_before(pool_, kFirst + kGrain * at);
    } else {
      piece.list.drop_from(pool_, kFirst + kGrain * at);
    }
    for (std::uint64_t i = before ? piece.begin : at; i < (before ? at : piece.end); ++i) {
      used_[i].reset();
    }
  }
  void split() {
    const std::uint64_t index = below(pieces_.size());
    Piece& piece = pieces_[index];
    if (piece.end - piece.begin < 2) return;
    const std::uint64_t at = piece.begin + 1 + below(piece.end - piece.begin - 1);
    Piece later{at, piece.end, {}};
    piece.list.split(pool_, kFirst + kGrain * at, later.list);
    piece.end = at;
    pieces_.insert(pieces_.begin() + static_cast<long>(index) + 1, std::move(later));
  }
  void put_together() {
    if (pieces_.size() < 2) return;
    const std::uint64_t index = below(pieces_.size() - 1);
    Piece& piece = pieces_[index];
    Piece& next = pieces_[index + 1];
    if (program_.exact && piece.list.size() + next.list.size() > FreedRanges::kMost) return;
    piece.list.append(pool_, next.list);
    piece.end = next.end;
    pieces_.erase(pieces_.begin() + static_cast<long>(index) + 1);
  }
  void clear() {
    Piece& piece = any_piece();
    piece.list.clear(pool_);
    for (std::uint64_t at = piece.begin; at < piece.end; ++at) used_[at].reset();
  }
  // A range carries fences as a whole: the exact program names whole ones.
  void add_fences() {
    Piece& piece = any_piece();
    std::uint64_t begin = below(kGrains), end = begin + 1 + below(20);
    if (program_.exact) {
      std::uint64_t first = end, last = begin;
      piece.list.visit(grains(begin, end), [&](const FreedRange& range) {
        first = std::min(first, grain_of(range.begin));
        last = std::max(last, grain_of(range.end));
        return true;
      });
      begin = first;
      end = last;
      if (begin >= end) return;
    }
    const FenceSet fences = any_fences();
    piece.list.add_fences(grains(begin, end), fences);
    for (std::uint64_t at = std::max(begin, piece.begin); at < std::min(end, piece.end); ++at) {
      if (used_[at]) join(used_[at]->fences, fences_of(fences));
    }
  }

  void check(const Piece& piece) {
    ASSERT_EQ(piece.list.validate(grains(piece.begin, piece.end)), std::nullopt);
    ASSERT_LE(piece.list.size(), FreedRanges::kMost);
    for (std::uint64_t at = piece.begin; at < piece.end; ++at) {
      std::vector<const FreedRange*> found;
      piece.list.visit(grains(at, at + 1), [&](const FreedRange& range) {
        found.push_back(&range);
        return true;
      });
      ASSERT_LE(found.size(), 1u) << "grain " << at;
      if (program_.exact) {
        ASSERT_EQ(found.size() == 1, used_[at].has_value()) << "grain " << at;
      }
      if (!used_[at]) continue;
      ASSERT_EQ(found.size(), 1u) << "grain " << at << " was used, and is not known to be";
      check(found[0]->use, *used_[at]);
      ASSERT_FALSE(HasFatalFailure()) << "grain " << at;
    }
  }
  void check(const LastUse& known, const Use& expected) {
    ASSERT_GE(known.freed_at, expected.freed_at);
    for (std::uint32_t taker = 0; taker <= kStreams; ++taker) {
      FenceSet all;
      collect(known, {taker}, all);
      Fences waits = fences_of(all);
      const Fences least = expected.waits(taker);
      if (program_.exact) {
        ASSERT_EQ(waits, least) << "stream " << taker;
        continue;
      }
      for (const auto& [timeline, sequence] : least) {
        if (timeline != taker) {
          ASSERT_GE(waits[timeline], sequence) << "stream " << taker;
        }
      }
      for (const auto& [timeline, sequence] : waits) ASSERT_LE(sequence, point_);
    }
    if (program_.exact) {
      ASSERT_EQ(known.by.value, expected.by);
    }
  }

  const Program program_ = GetParam();
  std::mt19937_64 random_{program_.longest};
  FreedRangePool pool_;
  std::vector<Piece> pieces_;
  std::vector<std::optional<Use>> used_{kGrains};
  std::uint64_t point_ = 1, requests_ = 0;
};

TEST_P(FreedRangesModel, EachGrainIsWaitedForAsItsOwnLastUseSays) {
  std::uint32_t most = 0;
  for (int step = 0; step < program_.steps; ++step) {
    switch (below(22)) {
      case 0:
        clear();
        break;
      case 1:
      case 2:
        split();
        break;
      case 3:
      case 4:
      case 5:
        put_together();
        break;
      case 6:
      case 7:
        add_fences();
        break;
      case 8:
        drop();
        break;
      case 9:
      case 10:
      case 11:
      case 12:
        free_before();
        break;
      default:
        free_behind();
    }
    for (const Piece& piece : pieces_) {
      check(piece);
      most = std::max(most, piece.list.size());
      if (HasFatalFailure()) FAIL() << "at step " << step;
    }
  }
  EXPECT_EQ(most, FreedRanges::kMost) << "the program is not what it is meant to be";
}

INSTANTIATE_TEST_SUITE_P(Programs, FreedRangesModel,
                         testing::Values(Program{"few_ranges_exactly", true, 12, 6000},
                                         Program{"short_ranges", false, 2, 6000},
                                         Program{"ranges_of_all_lengths", false, 9, 6000}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir
