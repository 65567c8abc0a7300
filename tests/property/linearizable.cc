// SPDX-License-Identifier: Apache-2.0
#include "tests/property/linearizable.h"

#include <algorithm>

namespace weir::test {
namespace {

using Kind = Call::Kind;

constexpr std::size_t kMostComplaints = 12;

bool may_fail(const Call& call) {
  switch (call.kind) {
    case Kind::allocate:
      return call.error == ErrorCode::out_of_memory && call.bytes > 0_B;
    case Kind::deallocate:
    case Kind::fence:
    case Kind::record_stream:
      return call.error == ErrorCode::unknown_pointer;
    default:
      return false;
  }
}

void check_allocate(const Call& call, Complaints& complaints) {
  if (call.error) return;
  if (call.addresses.empty() != (call.bytes == 0_B)) {
    complaints.push_back("null is for zero bytes, and for nothing else: " + describe(call));
  }
  Bytes mapped;
  for (const Segment& segment : call.segments) mapped += segment.bytes;
  if (!call.segments.empty() && mapped < round_up(call.bytes, kGrain)) {
    complaints.push_back("not all of a block is mapped: " + describe(call));
  }
  for (const Address at : call.addresses) {
    if (at.value % kGrain.count != 0) complaints.push_back("not aligned: " + describe(call));
  }
}

// fence, record_stream and deallocate: every block named, or for an error not every one, was live.
void check_named(const Call& call, const BlockLifetimes& lifetimes, Complaints& complaints) {
  const auto certain = [&](Address at) { return lifetimes.certain_at(at, call) != nullptr; };
  if (call.error) {
    if (std::all_of(call.addresses.begin(), call.addresses.end(), certain)) {
      complaints.push_back("a live block was refused: " + describe(call));
    }
    return;
  }
  for (const Address at : call.addresses) {
    if (lifetimes.possible_at(at, call) == nullptr) {
      complaints.push_back(hex(at) + " was not live: " + describe(call));
    }
  }
}

void check_find(const Call& call, const BlockLifetimes& lifetimes, Complaints& complaints) {
  const Address pointer = call.addresses.front();
  if (call.blocks.empty()) {
    if (const BlockLifetime* const lifetime = lifetimes.certain_over(pointer, call)) {
      complaints.push_back("find missed a live block: " + describe(call) + "\n  " +
                           describe(*lifetime));
    }
    return;
  }
  const BlockInfo& info = call.blocks.front();
  const std::vector<const BlockLifetime*> seen = lifetimes.candidates(info, call);
  if (seen.empty()) {
    complaints.push_back("find found what was not live, or not as it was asked for: " +
                         describe(call));
  } else if (!seen.front()->covers(pointer)) {
    complaints.push_back("find found a block elsewhere: " + describe(call));
  }
}

// One heap serves a stream, from the stream's first block on.
HeapOfStream heaps_of_streams(const History& history, Complaints& complaints) {
  HeapOfStream heaps;
  for (const Call& call : history) {
    for (const BlockInfo& info : call.blocks) {
      const auto [known, first] = heaps.emplace(info.stream, info.heap);
      if (!first && known->second != info.heap) {
        complaints.push_back("a stream has blocks of two heaps: " + describe(call));
      }
    }
  }
  return heaps;
}

void check_call(const Call& call, const BlockLifetimes& lifetimes, Complaints& complaints) {
  if (call.error && !may_fail(call)) complaints.push_back("an error: " + describe(call));
  switch (call.kind) {
    case Kind::allocate:
      return check_allocate(call, complaints);
    case Kind::deallocate:
    case Kind::fence:
    case Kind::record_stream:
      return check_named(call, lifetimes, complaints);
    case Kind::find:
      return check_find(call, lifetimes, complaints);
    case Kind::validate:
      for (const std::string& broken : call.broken) {
        complaints.push_back(describe(call) + ": " + broken);
      }
      return;
    default:
      return;  // checked elsewhere, or nothing to check but the error
  }
}

}  // namespace

std::vector<std::string> contradictions(const History& history) {
  Complaints complaints;
  BlockLifetimes lifetimes(history, complaints);
  // Before they are narrowed: that a block is seen does not say that it is counted.
  check_statistics(history, lifetimes, heaps_of_streams(history, complaints), complaints);
  lifetimes.narrow(history);
  find_overlaps(lifetimes, complaints);
  for (const Call& call : history) check_call(call, lifetimes, complaints);
  check_snapshots(history, lifetimes, complaints);
  if (complaints.size() > kMostComplaints) {
    const std::size_t more = complaints.size() - kMostComplaints;
    complaints.resize(kMostComplaints);
    complaints.push_back("and " + std::to_string(more) + " more");
  }
  return complaints;
}

}  // namespace weir::test
