#include "look/load.h"

#include <fmt/format.h>

#include <utility>

#include "look/file_kind.h"
#include "look/pytorch_trace.h"
#include "look/replayed.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

// --- ON MERGING THE RECORDER these two go: load() calls read_recording(path), and what reads a
// snapshot. ---------------------------------------------------------------------------------------
Result<Recording> read_recording_file(const std::string& path) {
  return Error(ErrorCode::invalid_input,
               fmt::format("{}: neither a trace nor a snapshot that PyTorch pickled (recordings "
                           "can't be read by this build)",
                           path));
}
Result<Recording> read_snapshot_file(const std::string& path) { return read_recording_file(path); }
// -------------------------------------------------------------------------------------------------

Result<Recording> load_trace(const std::string& path) {
  const Result<Trace> trace = read_trace(path);
  if (!trace.ok()) return trace.error();
  return replayed(*trace);
}

Result<Recording> load_pickle(const std::string& path) {
  Result<PytorchTrace> snapshot = read_pytorch_trace(path, std::nullopt);
  if (!snapshot.ok()) return std::move(snapshot).error();
  const Result<Trace> trace = parse_trace(snapshot->text, path);
  if (!trace.ok()) return trace.error();
  return replayed(*trace, std::move(snapshot->stacks));
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
      return read_snapshot_file(path);
    case FileKind::other:
      break;
  }
  return read_recording_file(path);
}

}  // namespace weir
