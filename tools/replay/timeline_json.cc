// SPDX-License-Identifier: Apache-2.0
// Source of the format: "Trace Event Format", the Chromium project.
#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "replay/timeline.h"

namespace weir {
namespace {

// The format's threads are tracks: these of each process, then one for each stream.
enum Track { kProgram = 1, kPhases, kHost, kDriver, kFirstStream = 10 };

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Writes the events of one process. Times are microseconds since its start.
class EventWriter {
 public:
  EventWriter(std::string& out, std::size_t pid, Nanoseconds start)
      : out_(out), pid_(pid), start_(start) {}

  void name_process(std::string_view name) {
    begin("M");
    format(",\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}", json_string(name));
  }

  void name_track(std::size_t track, std::string_view name) {
    begin("M");
    format(",\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}", track,
           json_string(name));
    begin("M");
    format(",\"tid\":{0},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{0}}}}}", track);
  }

  void counter(std::string_view name, const TimelineCounter& counter) {
    for (const TimelineCounter::Point& point : counter.points()) {
      if (point.highest_at < point.last_at) value(name, point.highest_at, point.highest);
      value(name, point.last_at, point.last);
    }
  }

  // `arguments`: JSON members, each after a comma.
  void slice(std::size_t track, std::string_view name, Nanoseconds start, Nanoseconds duration,
             std::string_view arguments = {}) {
    begin("X");
    format(",\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{},\"args\":{{{}}}}}", track, time(start),
           microseconds(duration), json_string(name), arguments);
  }

  void marks(std::size_t track, std::string_view name, const TimelineMarks& marks) {
    const std::string quoted_name = json_string(name);
    for (const TimelineMark& mark : marks.marks()) {
      begin("i");
      format(",\"s\":\"t\",\"tid\":{},\"ts\":{},\"name\":{},\"args\":{{\"count\":{},\"bytes\":{}",
             track, time(mark.start), quoted_name, mark.count, mark.bytes.count);
      if (mark.count > 1) format(",\"last_after_us\":{}", microseconds(mark.end - mark.start));
      out_ += "}}";
    }
  }

 private:
  template <class... Args>
  void format(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
  }

  void begin(std::string_view phase) {
    if (!out_.ends_with('[')) out_ += ",\n";
    format("{{\"ph\":\"{}\",\"pid\":{}", phase, pid_);
  }

  void value(std::string_view name, Nanoseconds at, std::uint64_t value) {
    begin("C");
    format(",\"ts\":{},\"name\":\"{}\",\"args\":{{\"bytes\":{}}}}}", time(at), name, value);
  }

  static std::string microseconds(Nanoseconds length) {
    return fmt::format("{}.{:03}", length.count / 1000, length.count % 1000);
  }
  std::string time(Nanoseconds at) const { return microseconds(at - start_); }

  std::string& out_;
  const std::size_t pid_;
  const Nanoseconds start_;
};

}  // namespace

std::string Timeline::json() const {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (std::size_t i = 0; i < processes_.size(); ++i) write(out, i + 1, processes_[i]);
  return out += "]}\n";
}

void Timeline::write(std::string& out, std::size_t pid, const Process& process) {
  EventWriter writer(out, pid, process.start);
  writer.name_process(process.name);
  writer.name_track(kProgram, "passes");
  for (const Slice& pass : process.passes) {
    writer.slice(kProgram, pass.name, pass.start, pass.end - pass.start);
  }
  if (!process.phases.empty()) writer.name_track(kPhases, "phases");
  for (const Slice& phase : process.phases) {
    writer.slice(kPhases, phase.name, phase.start, phase.end - phase.start);
  }
  if (!process.host_waits.empty()) writer.name_track(kHost, "host waits");
  for (const Slice& wait : process.host_waits) {
    writer.slice(kHost, wait.name, wait.start, wait.end - wait.start);
  }
  writer.name_track(kDriver, "pages");
  for (const auto& [kind, marks] : process.marks) writer.marks(kDriver, name_of(kind), marks);
  writer.counter("live", process.live);
  writer.counter("reserved", process.reserved);
  for (std::size_t i = 0; i < process.streams.size(); ++i) {
    const StreamTrack& stream = process.streams[i];
    const std::size_t track = kFirstStream + i;
    writer.name_track(track, stream.uses_left_out == 0
                                 ? stream.name
                                 : fmt::format("{} ({} more uses are not shown)", stream.name,
                                               stream.uses_left_out));
    for (const Use& use : stream.uses) {
      writer.slice(track, fmt::format("uses block {}", use.block), use.start, use.duration,
                   fmt::format("\"bytes\":{}", use.bytes.count));
    }
    for (const auto& [name, marks] : stream.marks) writer.marks(track, name, marks);
  }
}

}  // namespace weir
