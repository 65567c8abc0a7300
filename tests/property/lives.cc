#include "tests/property/lives.h"

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
  const Life* life = nullptr;
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
    steps.push_back({piece.life->allocate_end, false, &piece});
    steps.push_back({piece.life->free_begin, true, &piece});
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
                           describe(*other->life) + "\n  " + describe(*piece.life));
    }
    now[key] = &piece;
  }
}

}  // namespace

std::string describe(const Life& life) {
  std::ostringstream text;
  text << "block " << hex(life.at) << " of " << life.requested.count << " bytes on stream "
       << life.stream << ", allocated in [" << life.allocate_begin << ", " << life.allocate_end
       << "], deallocated in [" << words(life.free_begin) << ", " << words(life.free_end) << "]";
  return text.str();
}

// A block's own calls don't overlap, so its allocate ended before its deallocate began; and that
// began before the allocate that gave the address out again ended. So by these stamps they take
// turns.
Lives::Lives(const History& history, std::vector<std::string>& complaints) {
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
          complaints.push_back("a live block was given out again:\n  " + describe(lives_.back()) +
                               "\n  " + describe(*call));
        }
        live = true;
        const Bytes bytes = round_up(call->bytes, kGrain);
        largest_ = std::max(largest_, bytes);
        lives_.push_back({at, bytes, call->bytes, call->stream, call->segments, call->begin,
                          call->end, kNever, kNever});
      } else if (!live) {
        complaints.push_back("deallocate took what was not live: " + describe(*call));
      } else {
        live = false;
        lives_.back().free_begin = call->begin;
        lives_.back().free_end = call->end;
      }
    }
  }
}

void Lives::narrow(const History& history) {
  // What one sighting tells may make the next unambiguous.
  for (int pass = 0; pass < 2; ++pass) {
    narrow_by_sightings(history);
    narrow_by_order();
  }
}

void Lives::narrow_by_sightings(const History& history) {
  for (const Call& call : history) {
    for (const BlockInfo& info : call.blocks) {
      const std::vector<const Life*> seen = candidates(info, call);
      if (seen.size() != 1) continue;
      Life& life = lives_[static_cast<std::size_t>(seen.front() - lives_.data())];
      life.allocate_end = std::min(life.allocate_end, call.end);
      if (life.free_begin != kNever) life.free_begin = std::max(life.free_begin, call.begin);
    }
  }
}

void Lives::narrow_by_order() {
  for (std::size_t i = 1; i < lives_.size(); ++i) {
    Life &earlier = lives_[i - 1], &later = lives_[i];
    if (earlier.at != later.at) continue;
    earlier.free_end = std::min(earlier.free_end, later.allocate_end);
    later.allocate_begin = std::max(later.allocate_begin, earlier.free_begin);
  }
}

std::vector<Life>::const_iterator Lives::first_at(Address address) const {
  return std::lower_bound(lives_.begin(), lives_.end(), address,
                          [](const Life& life, Address at) { return life.at < at; });
}

std::vector<const Life*> Lives::candidates(const BlockInfo& info, const Call& call) const {
  std::vector<const Life*> found;
  for (auto life = first_at(info.address); life != lives_.end() && life->at == info.address;
       ++life) {
    if (life->is(info) && life->possible_during(call)) found.push_back(&*life);
  }
  return found;
}

const Life* Lives::possible_at(Address address, const Call& call) const {
  for (auto life = first_at(address); life != lives_.end() && life->at == address; ++life) {
    if (life->possible_during(call)) return &*life;
  }
  return nullptr;
}

const Life* Lives::certain_at(Address address, const Call& call) const {
  for (auto life = first_at(address); life != lives_.end() && life->at == address; ++life) {
    if (life->certain_throughout(call)) return &*life;
  }
  return nullptr;
}

const Life* Lives::certain_over(Address address, const Call& call) const {
  const Address lowest{address.value - std::min(address.value, largest_.count)};
  for (auto life = first_at(lowest); life != lives_.end() && life->at <= address; ++life) {
    if (life->covers(address) && life->certain_throughout(call)) return &*life;
  }
  return nullptr;
}

void find_overlaps(const Lives& lives, std::vector<std::string>& complaints) {
  std::vector<Piece> addresses, bytes;
  for (const Life& life : lives.all()) {
    addresses.push_back({0, life.at.value, life.end().value, &life});
    for (const Segment& segment : life.segments) {
      bytes.push_back({segment.handle.value, segment.offset.count,
                       (segment.offset + segment.bytes).count, &life});
    }
  }
  find_overlaps_of(addresses, "addresses", complaints);
  find_overlaps_of(bytes, "bytes of a page", complaints);
}

}  // namespace weir::test
