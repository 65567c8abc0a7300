// SPDX-License-Identifier: Apache-2.0
#include "look/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <utility>

#include "look/any_trace.h"
#include "look/file_kind.h"
#include "look/input_file.h"
#include "look/replayed.h"
#include "look/snapshot_reader.h"
#include "replay/failed_mark.h"

namespace weir {
namespace {

Result<Loaded> with_no_origin(Result<Recording> recording) {
  if (!recording) return std::move(recording).error();
  return Loaded{*std::move(recording), {}};
}

// The blocks of a recording are compressed already, and a reader must be able to go to each.
bool is_gzip(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file.get() == 0x1f && file.get() == 0x8b;
}

// The number of events once blocks had begun or ended `changes` times.
std::size_t events_after(std::size_t changes, const Recording& recording) {
  std::size_t seen = 0, at = 0;
  for (const Event& event : recording.events) {
    if (seen == changes) break;
    seen += event.kind == EventKind::allocate || event.kind == EventKind::deallocate;
    ++at;
  }
  return at;
}

// The last request that failed, as events or markers tell of it. `free`: on the device then.
std::optional<FailedRequest> failure_of(const Recording& recording,
                                        std::optional<Bytes> free = {}) {
  std::optional<FailedRequest> failure;
  std::uint64_t count = 0;
  std::size_t at = 0;
  for (const Event& event : recording.events) {
    if (event.kind == EventKind::out_of_memory) {
      failure = {.wanted = event.requested,
                 .time = event.time - recording.begin(),
                 .events = at,
                 .count = ++count,
                 .stack = event.stack,
                 .free = free};
    }
    ++at;
  }
  if (failure) return failure;
  for (const RecordedMark& mark : recording.marks) {
    const std::optional<FailedMark> failed = failed_mark(mark.text);
    if (!failed) continue;
    failure = {.wanted = Bytes{failed->bytes},
               .time = mark.time - recording.begin(),
               .events = recording.events.count_before(mark.time + Nanoseconds{1}),
               .count = ++count};
  }
  return failure;
}

Result<Loaded> load_trace(const InputFile& file, FileKind kind, const LoadOptions& options) {
  // To read a snapshot takes about as long as to replay it.
  const std::uint64_t parts = kind == FileKind::pickle ? 2 : 1;
  const auto part = [&](std::uint64_t nth) -> decltype(options.progress) {
    if (!options.progress) return {};
    return [&options, nth, parts](std::uint64_t done, std::uint64_t all) {
      options.progress(nth * all + done, parts * all);
    };
  };
  Result<RecordedTrace> trace = read_trace_of(file, kind, options.device, part(0));
  if (!trace) return std::move(trace).error();
  PytorchTrace& snapshot = trace->snapshot;
  const bool has_times = snapshot.stacks.has_times;
  // Time begins with the trace, which the first block does.
  const Nanoseconds start{trace->start_us * 1000};
  for (TraceStacks::Failure& failure : snapshot.stacks.failures)
    failure.time = failure.time - start;
  // What would help is found by replays of its own, beside this one.
  std::future<std::optional<Help>> help;
  if (options.help) help = std::async(std::launch::async, options.help, std::cref(*trace));
  Result<Recording> recording = replayed(*trace, snapshot.stacks, part(parts - 1));
  if (!recording) return std::move(recording).error();
  std::optional<Help> found;
  if (help.valid()) found = help.get();
  recording->frames = std::move(snapshot.stacks.frames);
  recording->stacks = std::move(snapshot.stacks.stacks);
  Loaded loaded{*std::move(recording), {}};
  loaded.other_reserved = std::move(snapshot.reserved);
  loaded.damage = std::move(snapshot.damage);
  for (RecordedReserved& point : loaded.other_reserved) {
    point.time = std::max(point.time - start, Nanoseconds{});
    loaded.other_peak_reserved = std::max(loaded.other_peak_reserved, point.bytes);
  }
  loaded.origin = {.has_times = has_times,
                   .device = snapshot.device,
                   .held = std::move(snapshot.held),
                   .lacks_segments = snapshot.lacks_segments,
                   .expandable_segments = snapshot.expandable_segments,
                   .help = std::move(found),
                   .addresses = std::move(snapshot.addresses)};
  if (snapshot.devices.size() > 1) loaded.origin.devices = std::move(snapshot.devices);
  if (std::optional<Held>& held = loaded.origin.held) {
    held->events = events_after(held->events, loaded);
  }
  loaded.origin.failure = failure_of(loaded, snapshot.failed_with);
  return loaded;
}

Result<Loaded> load_file(const InputFile& file, FileKind kind, const LoadOptions& options) {
  const std::string& path = file.path();
  switch (kind) {
    case FileKind::trace:
    case FileKind::pickle:
    case FileKind::rmm_log:
      return load_trace(file, kind, options);
    case FileKind::json:
      return with_no_origin(read_snapshot(path));
    case FileKind::recording:
    case FileKind::other:
      break;
  }
  if (kind == FileKind::other) return unknown_kind(path);
  if (is_gzip(path)) {
    return Error(ErrorCode::invalid_input,
                 path +
                     ": a recording is not read through gzip: unpack it first (it is compressed "
                     "already, so that gzip gains little)");
  }
  return with_no_origin(read_recording(path));
}

}  // namespace

Result<Loaded> load(const std::string& path, const LoadOptions& options) {
  const Result<InputFile> input = InputFile::open(path);
  if (!input) return input.error();
  const Result<FileKind> kind = kind_of(*input, options.device);
  if (!kind) return kind.error();
  Result<Loaded> recording = load_file(*input, *kind, options);
  if (!recording) return input->named(recording.error());
  recording->source = input->name();
  if (recording->events.empty() && !recording->damage.empty()) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: no event can be read: {}; record again",
                                                       input->name(), recording->damage));
  }
  if (!recording->origin.failure) recording->origin.failure = failure_of(*recording);
  return recording;
}

Status damage_status(const std::string& source, const std::string& damage) {
  if (damage.empty()) return {};
  return Error(
      ErrorCode::invalid_input,
      fmt::format("{}: {}; the rest was read: record again for all of it", source, damage));
}

}  // namespace weir
