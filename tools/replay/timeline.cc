// SPDX-License-Identifier: Apache-2.0
#include "replay/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weir {
namespace {

// Of each track. Together with the number of tracks these bound the file.
constexpr std::size_t kMostMarks = 2000;
constexpr std::size_t kMostPoints = 10000;
constexpr std::size_t kMostUses = 5000;
constexpr std::size_t kMostSlices = 5000;

std::int64_t time_of(const TimelineMark& mark) { return mark.start.count; }
std::int64_t time_of(const TimelineCounter::Point& point) { return point.last_at.count; }

void merge(TimelineMark& into, const TimelineMark& next) {
  into.end = next.end;
  into.count += next.count;
  into.bytes += next.bytes;
}

void merge(TimelineCounter::Point& into, const TimelineCounter::Point& next) {
  if (next.highest > into.highest) {
    into.highest = next.highest;
    into.highest_at = next.highest_at;
  }
  into.last = next.last;
  into.last_at = next.last_at;
}

// Appends `next`, or merges it into the last one if both are in the same piece of `width` ns. At
// `most` of them, the width doubles until at most half of them are left.
template <class T>
void append(std::vector<T>& all, const T& next, std::size_t most, std::int64_t& width) {
  const auto is_same_piece = [&width](const T& a, const T& b) {
    return width > 0 && time_of(a) / width == time_of(b) / width;
  };
  if (!all.empty() && is_same_piece(all.back(), next)) return merge(all.back(), next);
  if (all.size() == most) {
    while (all.size() > most / 2) {
      width = std::max<std::int64_t>(1000, width * 2);
      std::size_t last = 0;
      for (std::size_t i = 1; i < all.size(); ++i) {
        if (is_same_piece(all[last], all[i])) {
          merge(all[last], all[i]);
        } else {
          all[++last] = all[i];
        }
      }
      all.resize(last + 1);
    }
  }
  all.push_back(next);
}

}  // namespace

void TimelineMarks::add(Nanoseconds start, Bytes bytes) {
  append(marks_, {start, start, 1, bytes}, kMostMarks, width_);
}

void TimelineCounter::set(Nanoseconds time, std::uint64_t value) {
  value_ = value;
  append(points_, {time, time, value, value}, kMostPoints, width_);
}

void Timeline::begin_trace(std::string_view trace, std::string_view device, Nanoseconds start) {
  processes_.emplace_back();
  processes_.back().name = fmt::format("{} on {}", trace, device);
  processes_.back().start = start;
}

void Timeline::name_stream(std::uint64_t id, std::string name) {
  stream(id).name = std::move(name);
}

void Timeline::begin_pass(unsigned pass, Nanoseconds time) {
  in_pass_ = true;
  processes_.back().passes.push_back({fmt::format("pass {}", pass), time, time});
}

void Timeline::begin_phase(std::string_view name, Nanoseconds time) {
  end_phase(time);
  std::vector<Slice>& phases = processes_.back().phases;
  if (phases.size() == kMostSlices) return;
  phases.push_back({std::string(name), time, time});
  in_phase_ = true;
}

void Timeline::end_phase(Nanoseconds time) {
  if (std::exchange(in_phase_, false)) processes_.back().phases.back().end = time;
}

void Timeline::end_pass(Nanoseconds time) {
  end_phase(time);
  processes_.back().passes.back().end = time;
  in_pass_ = false;
}

Timeline::StreamTrack& Timeline::stream(std::uint64_t id) {
  Process& process = processes_.back();
  const auto [found, added] = process.stream_index.try_emplace(id, process.streams.size());
  if (added) process.streams.push_back({"another stream", {}, 0, {}});
  return process.streams[found->second];
}

// By value: looking up another stream may move this one.
std::string Timeline::awaited(std::uint64_t id) {
  return Stream{.id = id}.is_all() ? "all streams" : stream(id).name;
}

void Timeline::use(std::uint64_t id, const TraceBlock& block, Nanoseconds start,
                   Nanoseconds duration) {
  StreamTrack& track = stream(id);
  if (track.uses.size() == kMostUses) {
    ++track.uses_left_out;
  } else {
    track.uses.push_back({block.id, block.bytes, start, duration});
  }
}

void Timeline::on_event(const Event& event) {
  if (!in_pass_) return;
  Process& process = processes_.back();
  switch (event.kind) {
    case EventKind::allocate:
      process.live.add(event.time, event.bytes.count);
      break;
    case EventKind::deallocate:
      process.live.subtract(event.time, event.bytes.count);
      break;
    case EventKind::create:
      process.reserved.add(event.time, event.bytes.count);
      break;
    case EventKind::release:
      process.reserved.subtract(event.time, event.bytes.count);
      break;
    default:
      break;
  }
  switch (event.kind) {
    case EventKind::stream_wait: {
      const std::string what = "waits for " + awaited(event.other);
      stream(event.stream).marks[what].add(event.time, 0_B);
      break;
    }
    case EventKind::host_wait:
      if (process.host_waits.size() < kMostSlices) {
        process.host_waits.push_back(
            {"host waits for " + awaited(event.other), event.time - event.duration, event.time});
      }
      break;
    case EventKind::create:
    case EventKind::map:
    case EventKind::unmap:
    case EventKind::release:
    case EventKind::lease:
      process.marks[event.kind].add(event.time, event.bytes);
      break;
    case EventKind::trim:
    case EventKind::out_of_memory:
      process.marks[event.kind].add(event.time, event.bytes + event.requested);
      break;
    default:
      break;
  }
}

}  // namespace weir
