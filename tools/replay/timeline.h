// SPDX-License-Identifier: Apache-2.0
// What a replay did over time, as a file that Perfetto and chrome://tracing open.
//
// However long the replay, the file stays small: where more happened than can be shown, neighbours
// in time are merged (counters keep every peak, instants say how many they stand for). The same
// calls give the same bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "replay/trace.h"
#include "weir/event.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// Something in time: from `start` to `end`, which are equal for an instant.
struct TimelineMark {
  Nanoseconds start, end;
  std::uint64_t count = 1;  // how many are merged here
  Bytes bytes;              // of all of them
};

// Marks in order of time, the number of which is bounded by merging neighbours.
class TimelineMarks {
 public:
  void add(Nanoseconds start, Bytes bytes);
  const std::vector<TimelineMark>& marks() const { return marks_; }

 private:
  std::vector<TimelineMark> marks_;
  std::int64_t width_ = 0;  // marks that begin in the same piece of this many ns are one
};

// A quantity over time, the number of whose points is bounded.
class TimelineCounter {
 public:
  // Of one piece of time: the highest value and the last one.
  struct Point {
    Nanoseconds highest_at, last_at;
    std::uint64_t highest = 0, last = 0;
  };
  void set(Nanoseconds time, std::uint64_t value);
  void add(Nanoseconds time, std::uint64_t bytes) { set(time, value_ + bytes); }
  void subtract(Nanoseconds time, std::uint64_t bytes) { set(time, value_ - bytes); }
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
  std::uint64_t value_ = 0;
  std::int64_t width_ = 1000;
};

// Collects. Not thread-safe: a replay is one thread. Events that come outside a pass are ignored.
class Timeline final : public EventSink {
 public:
  // What follows belongs to this trace, until the next call. `start`: now, on the device's clock.
  void begin_trace(std::string_view trace, std::string_view device, Nanoseconds start);
  void name_stream(std::uint64_t id, std::string name);
  void begin_pass(unsigned pass, Nanoseconds time);
  void begin_phase(std::string_view name, Nanoseconds time);
  void end_pass(Nanoseconds time);
  // The stream works on a block that was allocated for another.
  void use(std::uint64_t stream, const TraceBlock& block, Nanoseconds start, Nanoseconds duration);
  void on_event(const Event& event) override;

  // The whole as Chrome's trace event JSON.
  std::string json() const;

 private:
  struct Slice {
    std::string name;
    Nanoseconds start, end;
  };
  struct Use {
    std::uint64_t block;
    Bytes bytes;
    Nanoseconds start, duration;
  };
  struct StreamTrack {
    std::string name;
    std::vector<Use> uses;
    std::uint64_t uses_left_out = 0;
    std::map<std::string, TimelineMarks, std::less<>> marks;  // by what they are
  };
  struct Process {  // one trace
    std::string name;
    Nanoseconds start;
    TimelineCounter live, reserved;
    std::vector<Slice> passes, phases, host_waits;
    std::map<EventKind, TimelineMarks> marks;  // of the driver
    std::vector<StreamTrack> streams;
    std::map<std::uint64_t, std::size_t> stream_index;  // Stream::id -> place in `streams`
  };

  StreamTrack& stream(std::uint64_t id);
  std::string awaited(std::uint64_t id);
  void end_phase(Nanoseconds time);
  static void write(std::string& out, std::size_t pid, const Process& process);

  std::vector<Process> processes_;
  bool in_pass_ = false, in_phase_ = false;
};

}  // namespace weir
