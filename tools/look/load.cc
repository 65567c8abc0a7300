#include "look/load.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "look/file_kind.h"
#include "look/pytorch_trace.h"
#include "look/replayed.h"
#include "look/snapshot_reader.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

Result<Recording> load_trace(const std::string& path) {
  const Result<Trace> trace = read_trace(path);
  if (!trace.ok()) return trace.error();
  return replayed(*trace);
}

// The blocks of a recording are compressed already, and a reader must be able to go to each.
bool is_gzip(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file.get() == 0x1f && file.get() == 0x8b;
}

Result<Recording> load_pickle(const std::string& path) {
  Result<PytorchTrace> snapshot = read_pytorch_trace(path, std::nullopt);
  if (!snapshot.ok()) return std::move(snapshot).error();
  const Result<Trace> trace = parse_trace(snapshot->text, path);
  if (!trace.ok()) return trace.error();
  Result<Recording> recording = replayed(*trace, std::move(snapshot->stacks));
  if (!recording.ok()) return recording;
  recording->other_reserved = std::move(snapshot->reserved);
  for (RecordedReserved& point : recording->other_reserved) {
    point.time = std::max(point.time - Nanoseconds{trace->start_us * 1000}, Nanoseconds{});
    recording->other_peak_reserved = std::max(recording->other_peak_reserved, point.bytes);
  }
  return recording;
}

}  // namespace

Result<Recording> load(const std::string& path) {
  const Result<FileKind> kind = kind_of_file(path);
  if (!kind.ok()) return kind.error();
  switch (*kind) {
    case FileKind::trace:
      return load_trace(path);
    case FileKind::pickle:
      return load_pickle(path);
    case FileKind::json:
      return read_snapshot(path);
    case FileKind::other:
      break;
  }
  if (is_gzip(path)) {
    return Error(ErrorCode::invalid_input,
                 path +
                     ": a recording is not read through gzip: unpack it first (it is compressed "
                     "already, so that gzip gains little); nor is it another file that is known");
  }
  return read_recording(path);
}

}  // namespace weir
