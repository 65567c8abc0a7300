// SPDX-License-Identifier: Apache-2.0
// The lifetimes of blocks, as a history of calls shows them: each from an allocate to a deallocate,
// with the stamps between which it must have begun and ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/property/history.h"
#include "weir/types.h"

namespace weir::test {

struct BlockLifetime {
  Address at;
  Bytes bytes;      // rounded up as the contract says
  Bytes requested;  // as asked for
  std::uint64_t stream = 0;
  std::vector<Segment> segments;
  // It began at a moment from `allocate_begin` and before `allocate_end`, and ended likewise.
  Stamp allocate_begin = 0, allocate_end = 0;
  Stamp free_begin = kNever, free_end = kNever;

  Address end() const { return at + bytes; }
  bool covers(Address address) const { return at <= address && address < end(); }
  bool possible_during(const Call& call) const {
    return allocate_begin < call.end && free_end > call.begin;
  }
  bool certain_throughout(const Call& call) const {
    return allocate_end <= call.begin && call.end <= free_begin;
  }
  bool is(const BlockInfo& info) const {
    return at == info.address && bytes == info.bytes && requested == info.requested &&
           stream == info.stream;
  }
};

std::string describe(const BlockLifetime& lifetime);

class BlockLifetimes {
 public:
  // What can't be (a block given out twice, one deallocated that was not live) is added to
  // `complaints`.
  BlockLifetimes(const History& history, std::vector<std::string>& complaints);

  // Takes in what finds and snapshots saw: a block that was seen began before and ended after.
  void narrow(const History& history);

  const std::vector<BlockLifetime>& all() const { return lifetimes_; }  // by address, then time

  // Those that may have been live at some moment of `call`, and are what `info` says.
  std::vector<const BlockLifetime*> candidates(const BlockInfo& info, const Call& call) const;
  // One that starts at `address` and may have been live during `call`; null: none.
  const BlockLifetime* possible_at(Address address, const Call& call) const;
  // One that was live throughout `call` for certain, and starts at / covers `address`; or null.
  const BlockLifetime* certain_at(Address address, const Call& call) const;
  const BlockLifetime* certain_over(Address address, const Call& call) const;

 private:
  void narrow_by_sightings(const History& history);
  // At one address, a block ends before the next begins.
  void narrow_by_order();
  std::vector<BlockLifetime>::const_iterator first_at(Address address) const;

  std::vector<BlockLifetime> lifetimes_;
  Bytes largest_;
};

// Pairs of blocks that were live at the same time for certain and share an address, or a byte of a
// page.
void find_overlaps(const BlockLifetimes& lifetimes, std::vector<std::string>& complaints);

}  // namespace weir::test
