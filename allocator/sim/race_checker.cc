// SPDX-License-Identifier: Apache-2.0
#include "sim/race_checker.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weir::sim {
namespace {

// Makes `position` a border: a range that has it strictly inside becomes two. Returns the first
// range that begins at or after it.
template <class Ranges>
auto split(Ranges& ranges, std::uint64_t position) {
  auto next = ranges.lower_bound(position);
  if (next == ranges.begin()) return next;
  const auto before = std::prev(next);
  if (before->second.end <= position) return next;
  auto tail = before->second;
  before->second.end = position;
  return ranges.emplace_hint(next, position, std::move(tail));
}

template <class Range>
bool same_stamps(const Range& a, const Range& b) {
  return a.written == b.written && (!a.written || a.write == b.write) && a.reads == b.reads;
}

void add_latest(std::vector<Stamp>& stamps, const Stamp& stamp) {
  for (Stamp& known : stamps) {
    if (known.stream == stamp.stream) {
      known = stamp;
      return;
    }
  }
  stamps.push_back(stamp);
}

}  // namespace

bool operator==(const Stamp& a, const Stamp& b) {
  return a.stream == b.stream && a.epoch == b.epoch && a.time == b.time &&
         a.access.kind == b.access.kind && a.access.address == b.access.address &&
         a.access.bytes == b.access.bytes;
}

void VectorClock::set(StreamIndex stream, std::uint64_t epoch) {
  if (stream >= epochs_.size()) epochs_.resize(stream + 1);
  epochs_[stream] = epoch;
}

bool VectorClock::join(const VectorClock& other) {
  if (epochs_.size() < other.epochs_.size()) epochs_.resize(other.epochs_.size());
  bool changed = false;
  for (std::size_t i = 0; i < other.epochs_.size(); ++i) {
    if (other.epochs_[i] <= epochs_[i]) continue;
    epochs_[i] = other.epochs_[i];
    changed = true;
  }
  return changed;
}

StreamIndex RaceChecker::add_stream(std::uint64_t id, ContextIndex context) {
  const auto over = std::find_if(ended_.begin(), ended_.end(), [this](StreamIndex stream) {
    return streams_[stream].last_access <= host_[stream];
  });
  if (over != ended_.end()) {
    const StreamIndex index = *over;
    ended_.erase(over);
    const std::uint64_t epoch = streams_[index].clock[index] + 1;
    streams_[index] = {.id = id, .context = context};
    if (orders_) streams_[index].clock.set(index, epoch);
    return index;
  }
  const auto index = static_cast<StreamIndex>(streams_.size());
  streams_.push_back({.id = id, .context = context});
  if (orders_) streams_.back().clock.set(index, 1);
  return index;
}

void RaceChecker::see_host(StreamState& stream) {
  if (stream.host_version == host_version_) return;
  stream.clock.join(host_);
  stream.host_version = host_version_;
}

VectorClock RaceChecker::mark(StreamIndex stream) {
  if (!orders_) return {};
  StreamState& state = streams_[stream];
  VectorClock mark = state.clock;
  state.clock.set(stream, mark[stream] + 1);
  return mark;
}

VectorClock RaceChecker::mark_all(std::span<const ContextIndex> contexts) {
  VectorClock all;
  for (StreamIndex stream = 0; stream < streams_.size(); ++stream) {
    const bool is_of_them =
        std::find(contexts.begin(), contexts.end(), streams_[stream].context) != contexts.end();
    if (is_of_them) all.join(mark(stream));
  }
  return all;
}

void RaceChecker::wait(StreamIndex stream, const VectorClock& mark) {
  streams_[stream].clock.join(mark);
}

void RaceChecker::host_saw(const VectorClock& mark) {
  if (host_.join(mark)) ++host_version_;
}

void RaceChecker::host_saw_everything() {
  for (StreamIndex stream = 0; stream < streams_.size(); ++stream) host_saw(mark(stream));
}

Stamp RaceChecker::begin(StreamIndex stream, const Access& access, Nanoseconds time) {
  StreamState& state = streams_[stream];
  see_host(state);
  reported_.clear();
  state.last_access = state.clock[stream];
  return {.stream = stream, .epoch = state.clock[stream], .time = time, .access = access};
}

void RaceChecker::touch(PageStamps& page, std::uint64_t begin, std::uint64_t end,
                        const Stamp& stamp) {
  if (stamp.access.kind == Access::Kind::write) {
    write(page, begin, end, stamp);
  } else {
    read(page, begin, end, stamp);
  }
  if (page.ranges_.size() > page.sweep_at_) sweep(page);
}

void RaceChecker::check(const PageStamps::Range& range, const Stamp& stamp) {
  if (range.written && !ordered(range.write, stamp)) report(range.write, stamp);
  if (stamp.access.kind == Access::Kind::read) return;
  for (const Stamp& earlier : range.reads) {
    if (!ordered(earlier, stamp)) report(earlier, stamp);
  }
}

void RaceChecker::write(PageStamps& page, std::uint64_t begin, std::uint64_t end,
                        const Stamp& stamp) {
  auto& ranges = page.ranges_;
  auto first = split(ranges, begin);
  auto last = first;
  for (; last != ranges.end() && last->first < end; ++last) {
    check(last->second, stamp);
    if (last->second.end > end) {
      last = split(ranges, end);
      break;
    }
  }
  if (first == last || first->first != begin) {
    first = ranges.emplace_hint(first, begin, PageStamps::Range{});
  }
  PageStamps::Range& range = first->second;
  range.end = end;
  range.written = true;
  range.write = stamp;
  range.reads.clear();
  ranges.erase(std::next(first), last);
}

void RaceChecker::read(PageStamps& page, std::uint64_t begin, std::uint64_t end,
                       const Stamp& stamp) {
  auto& ranges = page.ranges_;
  auto it = split(ranges, begin);
  for (std::uint64_t position = begin; position < end;) {
    if (it == ranges.end() || it->first > position) {  // bytes that were never accessed
      const std::uint64_t gap_end = it == ranges.end() ? end : std::min(end, it->first);
      PageStamps::Range untouched;
      untouched.end = gap_end;
      it = ranges.emplace_hint(it, position, std::move(untouched));
    } else if (it->second.end > end) {
      it = std::prev(split(ranges, end));
    }
    check(it->second, stamp);
    add_latest(it->second.reads, stamp);
    position = it->second.end;

    if (it != ranges.begin()) {
      const auto before = std::prev(it);
      if (before->second.end == it->first && same_stamps(before->second, it->second)) {
        before->second.end = it->second.end;
        ranges.erase(it);
        it = before;
      }
    }
    ++it;
  }
}

// Work that the host knows complete is ordered before all that comes: its stamps say nothing.
void RaceChecker::sweep(PageStamps& page) {
  const auto complete = [&](const Stamp& stamp) { return stamp.epoch <= host_[stamp.stream]; };
  for (auto it = page.ranges_.begin(); it != page.ranges_.end();) {
    PageStamps::Range& range = it->second;
    if (range.written && complete(range.write)) range.written = false;
    std::erase_if(range.reads, complete);
    it = range.written || !range.reads.empty() ? std::next(it) : page.ranges_.erase(it);
  }
  page.sweep_at_ = std::max<std::size_t>(256, 2 * page.ranges_.size());
}

void RaceChecker::use(LastUses& uses, const Stamp& stamp) { add_latest(uses, stamp); }

void RaceChecker::unmap(const LastUses& uses, Address address, Bytes size, Nanoseconds time) {
  for (const Stamp& use : uses) {
    if (use.epoch <= host_[use.stream]) continue;
    keep({.kind = Race::Kind::unmapped_in_use,
          .first = use.access,
          .second = {Access::Kind::write, address, size},
          .first_stream = streams_[use.stream].id,
          .second_stream = 0,
          .first_time = use.time,
          .second_time = time});
  }
}

void RaceChecker::host_touches(const PageStamps& page, std::uint64_t begin, std::uint64_t end,
                               const Access& access, Nanoseconds time) {
  reported_.clear();
  const auto check = [&](const Stamp& use) {
    if (use.epoch <= host_[use.stream]) return;
    if (std::find(reported_.begin(), reported_.end(), use) != reported_.end()) return;
    reported_.push_back(use);
    keep({.kind = Race::Kind::host,
          .first = use.access,
          .second = access,
          .first_stream = streams_[use.stream].id,
          .second_stream = 0,
          .first_time = use.time,
          .second_time = time});
  };
  auto at = page.ranges_.upper_bound(begin);
  if (at != page.ranges_.begin()) --at;
  for (; at != page.ranges_.end() && at->first < end; ++at) {
    const PageStamps::Range& range = at->second;
    if (range.end <= begin) continue;
    if (range.written) check(range.write);
    if (access.kind == Access::Kind::read) continue;
    for (const Stamp& read : range.reads) check(read);
  }
}

void RaceChecker::report(const Stamp& first, const Stamp& second) {
  if (std::find(reported_.begin(), reported_.end(), first) != reported_.end()) return;
  reported_.push_back(first);
  keep({.kind = Race::Kind::conflict,
        .first = first.access,
        .second = second.access,
        .first_stream = streams_[first.stream].id,
        .second_stream = streams_[second.stream].id,
        .first_time = first.time,
        .second_time = second.time});
}

void RaceChecker::add_races_of(const RaceChecker& other) {
  for (const Race& race : other.races_) keep(race);
  race_count_ += other.race_count_ - other.races_.size();
}

void RaceChecker::keep(Race race) {
  ++race_count_;
  if (races_.size() < kKept) races_.push_back(race);
}

}  // namespace weir::sim
