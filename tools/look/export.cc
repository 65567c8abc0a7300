// SPDX-License-Identifier: Apache-2.0
#include "look/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "look/any_trace.h"
#include "look/exporters.h"
#include "look/load.h"
#include "observe/recorded_state.h"
#include "replay/rmm_log.h"
#include "replay/units.h"

namespace weir {
namespace {

bool is_pickle_name(std::string_view path) {
  return path.ends_with(".pickle") || path.ends_with(".pkl") || path.ends_with(".pickle.gz");
}

void write_memory_viz(const Recording& recording, const Origin& origin,
                      const BlockLifetimes& lifetimes, const std::string& path, OutputFile& file) {
  if (is_pickle_name(path)) {
    PickleWriter writer(file.text());
    return write_memory_viz(recording, origin, lifetimes, writer, file);
  }
  JsonWriter writer(file.text());
  write_memory_viz(recording, origin, lifetimes, writer, file);
}

std::string stacks_left_out(const std::vector<std::vector<std::uint32_t>>& stacks) {
  return stacks.size() > 1 ? "stacks (weir report reads the file itself)" : "";
}

Error not_a_moment(std::string_view text) {
  return Error(ErrorCode::invalid_argument,
               fmt::format("'{}' is no moment: give begin, end, peak-live, peak-reserved, or the "
                           "time since the beginning, such as 1.5s, 20ms or 300us",
                           text));
}

std::optional<double> parse_nanoseconds(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value) || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  for (const auto& [unit, factor] :
       {std::pair<std::string_view, double>{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}) {
    if (text == unit) return value * factor;
  }
  return std::nullopt;
}

}  // namespace

Recording moment_of(const Recording& recording, std::size_t events) {
  events = std::clamp(events, recording.initial, recording.events.size());
  RecordedState state;
  std::map<std::uint64_t, std::vector<Event>> fences;  // of live blocks, by address
  Nanoseconds time = recording.begin();
  for (auto each = recording.events.begin(); each.index() < events; ++each) {
    state.accept(*each, [&fences](const Event& event) {
      if (event.kind == EventKind::deallocate) fences.erase(event.address.value);
      if (event.kind == EventKind::fence) fences[event.address.value].push_back(event);
    });
    time = each->time;
  }
  Recording moment;
  moment.source = recording.source;
  moment.program = recording.program;
  moment.device = recording.device;
  moment.device_bytes = recording.device_bytes;
  moment.events = EventLog(state.as_events(time));
  for (const auto& [address, taken] : fences) {
    for (Event fence : taken) {
      fence.time = time;
      moment.events.push_back(fence);
    }
  }
  moment.initial = moment.events.size();
  moment.frames = recording.frames;
  moment.stacks = recording.stacks;
  moment.damage = recording.damage;
  return moment;
}

Status export_timeline(const Recording& recording, LookFormat format, const std::string& path,
                       Paths paths, const Origin& origin) {
  Result<OutputFile> file = OutputFile::open(path);
  if (!file.ok()) return std::move(file).error();
  const BlockLifetimes lifetimes = lifetimes_of(recording);
  switch (format) {
    case LookFormat::memory_viz:
      write_memory_viz(recording, origin, lifetimes, path, *file);
      break;
    case LookFormat::perfetto:
      write_perfetto(recording, lifetimes, *file);
      break;
    case LookFormat::csv:
      write_csv(recording, lifetimes, paths, *file);
      break;
  }
  return file->commit();
}

Result<std::size_t> parse_moment(std::string_view text, const Recording& recording) {
  if (text == "begin") return recording.initial;
  if (text == "end") return recording.events.size();
  if (text == "peak-live" || text == "peak-reserved") {
    const BlockLifetimes lifetimes = lifetimes_of(recording);
    const MemoryPoint& peak = text == "peak-live" ? lifetimes.peak_live : lifetimes.peak_reserved;
    return events_at(peak, recording);
  }
  const std::optional<double> since = parse_nanoseconds(text);
  if (!since) return not_a_moment(text);
  const Nanoseconds length = recording.end() - recording.begin();
  if (*since > static_cast<double>(length.count)) {
    return Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is after the end: the recording lasts {}", text, in_words(length)));
  }
  return events_until(recording,
                      recording.begin() + Nanoseconds{static_cast<std::int64_t>(*since)});
}

Result<std::string> convert_to_trace(const std::string& input, const std::string& output,
                                     const LoadOptions& options) {
  const Result<InputFile> whole = InputFile::open(input);
  if (!whole) return whole.error();
  const Result<FileKind> kind = kind_of(*whole, options.device);
  if (!kind) return kind.error();
  std::string text, left_out, damage;
  std::optional<Loaded> recording;  // is written piece by piece
  if (*kind == FileKind::pickle) {
    Result<PytorchTrace> trace = read_pytorch_trace(whole->path(), options.device);
    if (!trace.ok()) return whole->named(trace.error());
    left_out = stacks_left_out(trace->stacks.stacks);
    for (std::size_t i = 0; i < trace->devices.size(); ++i) {
      if (std::cmp_equal(i, trace->device) || !trace->devices[i].is_used()) continue;
      left_out += fmt::format("{}device {}", left_out.empty() ? "" : ", ", i);
    }
    text = std::move(trace->text);
    damage = trace->damage;
  } else if (*kind == FileKind::rmm_log) {
    Result<std::string> trace = trace_of_rmm_log(whole->path());
    if (!trace) return whole->named(trace.error());
    text = *std::move(trace);
  } else {
    Result<Loaded> loaded = load(whole->path(), options);
    if (!loaded.ok()) return whole->named(loaded.error());
    left_out = stacks_left_out(loaded->stacks);
    damage = loaded->damage;
    recording = *std::move(loaded);
  }
  Result<OutputFile> file = OutputFile::open(output);
  if (!file.ok()) return std::move(file).error();
  file->text() = std::move(text);
  if (recording) write_trace(*recording, *file);
  if (Status written = file->commit(); !written) return std::move(written).error();
  if (Status whole_read = damage_status(whole->name(), damage); !whole_read) {
    return std::move(whole_read).error();
  }
  return left_out;
}

}  // namespace weir
