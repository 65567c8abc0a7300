// SPDX-License-Identifier: Apache-2.0
#include "look/load.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "look/file_kind.h"
#include "look/input_file.h"
#include "look/pytorch_trace.h"
#include "look/replayed.h"
#include "look/snapshot_reader.h"
#include "replay/rmm_log.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

Result<Recording> load_trace(const InputFile& file, const LoadOptions& options) {
  Result<Trace> trace = read_trace(file.path());
  if (!trace.ok()) return trace.error();
  trace->name = file.name();  // without a header the program is named after it
  return replayed(*trace, {}, options.progress);
}

Result<Recording> load_rmm_log(const InputFile& file, const LoadOptions& options) {
  Result<Trace> trace = read_rmm_log(file.path());
  if (!trace) return trace.error();
  trace->name = file.name();
  return replayed(*trace, {}, options.progress);
}

// The blocks of a recording are compressed already, and a reader must be able to go to each.
bool is_gzip(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file.get() == 0x1f && file.get() == 0x8b;
}

Result<Recording> load_pickle(const InputFile& file, const LoadOptions& options) {
  Result<PytorchTrace> snapshot = read_pytorch_trace(file.path(), std::nullopt);
  if (!snapshot.ok()) return std::move(snapshot).error();
  const Result<Trace> trace = parse_trace(snapshot->text, file.name());
  if (!trace.ok()) return trace.error();
  Result<Recording> recording = replayed(*trace, std::move(snapshot->stacks), options.progress);
  if (!recording.ok()) return recording;
  recording->other_reserved = std::move(snapshot->reserved);
  for (RecordedReserved& point : recording->other_reserved) {
    point.time = std::max(point.time - Nanoseconds{trace->start_us * 1000}, Nanoseconds{});
    recording->other_peak_reserved = std::max(recording->other_peak_reserved, point.bytes);
  }
  return recording;
}

Result<Recording> load_file(const InputFile& file, FileKind kind, const LoadOptions& options) {
  const std::string& path = file.path();
  switch (kind) {
    case FileKind::trace:
      return load_trace(file, options);
    case FileKind::pickle:
      return load_pickle(file, options);
    case FileKind::rmm_log:
      return load_rmm_log(file, options);
    case FileKind::json:
      return read_snapshot(path);
    case FileKind::recording:
    case FileKind::other:
      break;
  }
  if (is_gzip(path)) {
    return Error(ErrorCode::invalid_input,
                 path +
                     ": a recording is not read through gzip: unpack it first (it is compressed "
                     "already, so that gzip gains little); nor is it another file that is known");
  }
  if (kind == FileKind::other) return unknown_kind(path);
  return read_recording(path);
}

}  // namespace

Result<Recording> load(const std::string& path, const LoadOptions& options) {
  const Result<InputFile> input = InputFile::open(path);
  if (!input) return input.error();
  const Result<FileKind> kind = options.kind ? *options.kind : kind_of_file(input->path());
  if (!kind) return input->named(kind.error());
  Result<Recording> recording = load_file(*input, *kind, options);
  if (!recording) return input->named(recording.error());
  recording->source = input->name();
  return recording;
}

}  // namespace weir
