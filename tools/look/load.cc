#include "look/load.h"

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
      return read_snapshot(path);
    case FileKind::other:
      break;
  }
  return read_recording(path);
}

}  // namespace weir
