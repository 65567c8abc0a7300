// SPDX-License-Identifier: Apache-2.0
// Snapshots: the blocks of a stream are those of one moment of the call.
#include <algorithm>
#include <map>
#include <set>

#include "tests/property/linearizable.h"

namespace weir::test {
namespace {

// Which moments of a call are ruled out.
class Moments {
 public:
  explicit Moments(const Call& call)
      : begin_(call.begin), ruled_out_(static_cast<std::size_t>(call.end - call.begin), false) {}

  // Those from `first` and before `last`.
  void rule_out(Stamp first, Stamp last) {
    first = std::max(first, begin_);
    last = std::min(last, begin_ + ruled_out_.size());
    for (; first < last; ++first) ruled_out_[static_cast<std::size_t>(first - begin_)] = true;
  }

  // Those at which none of `lifetimes` was possibly live. Only of those that were at some of them.
  void rule_out_without(std::vector<const BlockLifetime*> lifetimes) {
    std::sort(lifetimes.begin(), lifetimes.end(),
              [](const BlockLifetime* a, const BlockLifetime* b) {
                return a->allocate_begin < b->allocate_begin;
              });
    Stamp from = begin_;
    for (const BlockLifetime* const lifetime : lifetimes) {
      rule_out(from, lifetime->allocate_begin);
      from = std::max(from, lifetime->free_end);
    }
    rule_out(from, kNever);
  }

  bool any_left() const {
    return std::find(ruled_out_.begin(), ruled_out_.end(), false) != ruled_out_.end();
  }

 private:
  Stamp begin_;
  std::vector<bool> ruled_out_;
};

void check_pages(const Call& call, Complaints& complaints) {
  for (const PageInfo& page : call.pages) {
    if (page.used > page.bytes || (page.used > 0_B) != page.lease.has_value()) {
      complaints.push_back("page " + std::to_string(page.page.value) + " has " +
                           std::to_string(page.used.count) + " bytes in use and is " +
                           (page.lease ? "" : "not ") + "leased: " + describe(call));
    }
  }
}

void check_snapshot(const Call& call, const BlockLifetimes& lifetimes, Complaints& complaints) {
  std::map<std::uint64_t, Moments> moments;  // by stream
  const auto moments_of = [&](std::uint64_t stream) -> Moments& {
    return moments.try_emplace(stream, call).first->second;
  };
  std::set<Address> listed;
  Address end;
  for (const BlockInfo& info : call.blocks) {
    if (info.address < end) {
      complaints.push_back("blocks of a snapshot overlap, or are out of order: " + describe(call) +
                           " at " + hex(info.address));
    }
    end = info.address + info.bytes;
    listed.insert(info.address);
    const std::vector<const BlockLifetime*> seen = lifetimes.candidates(info, call);
    if (seen.empty()) {
      complaints.push_back("a snapshot has a block that was not live: " + hex(info.address) +
                           " in " + describe(call));
      return;
    }
    moments_of(info.stream).rule_out_without(seen);
  }
  for (const BlockLifetime& lifetime : lifetimes.all()) {
    if (!lifetime.possible_during(call) || listed.contains(lifetime.at)) continue;
    if (lifetime.certain_throughout(call)) {
      complaints.push_back("a snapshot lacks a live block: " + describe(call) + "\n  " +
                           describe(lifetime));
      return;
    }
    moments_of(lifetime.stream).rule_out(lifetime.allocate_end, lifetime.free_begin);
  }
  for (const auto& [stream, of_stream] : moments) {
    if (of_stream.any_left()) continue;
    complaints.push_back("the blocks of stream " + std::to_string(stream) +
                         " in a snapshot are those of no one moment: " + describe(call));
  }
}

}  // namespace

void check_snapshots(const History& history, const BlockLifetimes& lifetimes,
                     Complaints& complaints) {
  for (const Call& call : history) {
    if (call.kind != Call::Kind::snapshot) continue;
    check_pages(call, complaints);
    check_snapshot(call, lifetimes, complaints);
  }
}

}  // namespace weir::test
