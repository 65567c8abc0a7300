// SPDX-License-Identifier: Apache-2.0
#include "tests/property/block_lifetimes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

namespace weir::test {
namespace {

std::string words(Stamp stamp) { return stamp == kNever ? "never" : std::to_string(stamp); }

// A piece of a space (the addresses, or one page) that a block has while it is live.
struct Piece {
  std::uint64_t space = 0, first = 0, last = 0;  // last: one past
  const BlockLifetime* lifetime = nullptr;
};

void find_overlaps_of(const std::vector<Piece>& pieces, const char* what,
                      std::vector<std::string>& complaints) {
  struct Step {
    Stamp stamp;
    bool ends;
    const Piece* piece;
  };
  std::vector<Step> steps;
  for (const Piece& piece : pieces) {
    steps.push_back({piece.lifetime->allocate_end, false, &piece});
    steps.push_back({piece.lifetime->free_begin, true, &piece});
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return std::tuple(a.stamp, !a.ends) < std::tuple(b.stamp, !b.ends);
  });
  std::map<std::pair<std::uint64_t, std::uint64_t>, const Piece*> now;  // by space and first
  for (const Step& step : steps) {
    const Piece& piece = *step.piece;
    const std::pair key{piece.space, piece.first};
    if (step.ends) {
      if (const auto mine = now.find(key); mine != now.end() && mine->second == &piece) {
        now.erase(mine);
      }
      continue;
    }
    const auto after = now.lower_bound(key);
    const auto meets = [&](const Piece& other) {
      return other.space == piece.space && other.first < piece.last && piece.first < other.last;
    };
    const Piece* other = nullptr;
    if (after != now.end() && meets(*after->second)) other = after->second;
    if (after != now.begin() && meets(*std::prev(after)->second)) other = std::prev(after)->second;
    if (other != nullptr) {
      complaints.push_back(std::string("two live blocks share ") + what + ":\n  " +
                           describe(*other->lifetime) + "\n  " + describe(*piece.lifetime));
    }
    now[key] = &piece;
  }
}

}  // namespace

std::string describe(const BlockLifetime& lifetime) {
  std::ostringstream text;
  text << "block " << hex(lifetime.at) << " of " << lifetime.requested.count << " bytes on stream "
       << lifetime.stream << ", allocated in [" << lifetime.allocate_begin << ", "
       << lifetime.allocate_end << "], deallocated in [" << words(lifetime.free_begin) << ", "
       << words(lifetime.free_end) << "]";
  return text.str();
}

// A block's own calls don't overlap, so its allocate ended before its deallocate began; and that
// began before the allocate that gave the address out again ended. So by these stamps they take
// turns.
BlockLifetimes::BlockLifetimes(const History& history, std::vector<std::string>& complaints) {
  std::map<Address, std::vector<std::pair<Stamp, const Call*>>> turns;
  for (const Call& call : history) {
    if (call.error || call.addresses.empty()) continue;
    const Address at = call.addresses.front();
    if (call.kind == Call::Kind::allocate) turns[at].emplace_back(call.end, &call);
    if (call.kind == Call::Kind::deallocate) turns[at].emplace_back(call.begin, &call);
  }
  for (auto& [at, calls] : turns) {
    std::sort(calls.begin(), calls.end());
    bool live = false;
    for (const auto& [stamp, call] : calls) {
      if (call->kind == Call::Kind::allocate) {
        if (live) {
          complaints.push_back("a live block was given out again:\n  " +
                               describe(lifetimes_.back()) + "\n  " + describe(*call));
        }
        live = true;
        const Bytes bytes = round_up(call->bytes, kGrain);
        largest_ = std::max(largest_, bytes);
        lifetimes_.push_back({at, bytes, call->bytes, call->stream, call->segments, call->begin,
                              call->end, kNever, kNever});
      } else if (!live) {
        complaints.push_back("deallocate took what was not live: " + describe(*call));
      } else {
        live = false;
        lifetimes_.back().free_begin = call->begin;
        lifetimes_.back().free_end = call->end;
      }
    }
  }
}

void BlockLifetimes::narrow(const History& history) {
  // What one sighting tells may make the next unambiguous.
  for (int pass = 0; pass < 2; ++pass) {
    narrow_by_sightings(history);
    narrow_by_order();
  }
}

void BlockLifetimes::narrow_by_sightings(const History& history) {
  for (const Call& call : history) {
    for (const BlockInfo& info : call.blocks) {
      const std::vector<const BlockLifetime*> seen = candidates(info, call);
      if (seen.size() != 1) continue;
      BlockLifetime& lifetime =
          lifetimes_[static_cast<std::size_t>(seen.front() - lifetimes_.data())];
      lifetime.allocate_end = std::min(lifetime.allocate_end, call.end);
      if (lifetime.free_begin != kNever)
        lifetime.free_begin = std::max(lifetime.free_begin, call.begin);
    }
  }
}

void BlockLifetimes::narrow_by_order() {
  for (std::size_t i = 1; i < lifetimes_.size(); ++i) {
    BlockLifetime &earlier = lifetimes_[i - 1], &later = lifetimes_[i];
    if (earlier.at != later.at) continue;
    earlier.free_end = std::min(earlier.free_end, later.allocate_end);
    later.allocate_begin = std::max(later.allocate_begin, earlier.free_begin);
  }
}

std::vector<BlockLifetime>::const_iterator BlockLifetimes::first_at(Address address) const {
  return std::lower_bound(
      lifetimes_.begin(), lifetimes_.end(), address,
      [](const BlockLifetime& lifetime, Address at) { return lifetime.at < at; });
}

std::vector<const BlockLifetime*> BlockLifetimes::candidates(const BlockInfo& info,
                                                             const Call& call) const {
  std::vector<const BlockLifetime*> found;
  for (auto lifetime = first_at(info.address);
       lifetime != lifetimes_.end() && lifetime->at == info.address; ++lifetime) {
    if (lifetime->is(info) && lifetime->possible_during(call)) found.push_back(&*lifetime);
  }
  return found;
}

const BlockLifetime* BlockLifetimes::possible_at(Address address, const Call& call) const {
  for (auto lifetime = first_at(address); lifetime != lifetimes_.end() && lifetime->at == address;
       ++lifetime) {
    if (lifetime->possible_during(call)) return &*lifetime;
  }
  return nullptr;
}

const BlockLifetime* BlockLifetimes::certain_at(Address address, const Call& call) const {
  for (auto lifetime = first_at(address); lifetime != lifetimes_.end() && lifetime->at == address;
       ++lifetime) {
    if (lifetime->certain_throughout(call)) return &*lifetime;
  }
  return nullptr;
}

const BlockLifetime* BlockLifetimes::certain_over(Address address, const Call& call) const {
  const Address lowest{address.value - std::min(address.value, largest_.count)};
  for (auto lifetime = first_at(lowest); lifetime != lifetimes_.end() && lifetime->at <= address;
       ++lifetime) {
    if (lifetime->covers(address) && lifetime->certain_throughout(call)) return &*lifetime;
  }
  return nullptr;
}

void find_overlaps(const BlockLifetimes& lifetimes, std::vector<std::string>& complaints) {
  std::vector<Piece> addresses, bytes;
  for (const BlockLifetime& lifetime : lifetimes.all()) {
    addresses.push_back({0, lifetime.at.value, lifetime.end().value, &lifetime});
    for (const Segment& segment : lifetime.segments) {
      bytes.push_back({segment.handle.value, segment.offset.count,
                       (segment.offset + segment.bytes).count, &lifetime});
    }
  }
  find_overlaps_of(addresses, "addresses", complaints);
  find_overlaps_of(bytes, "bytes of a page", complaints);
}

}  // namespace weir::test
