// SPDX-License-Identifier: Apache-2.0
#include "look/any_trace.h"

#include <fmt/format.h>

#include <utility>

#include "look/exporters.h"
#include "look/file_kind.h"
#include "look/input_file.h"
#include "look/load.h"
#include "replay/rmm_log.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

Result<Trace> trace_of_recording(const std::string& path) {
  const Result<Loaded> recording = load(path, {.kind = FileKind::recording});
  if (!recording) return recording.error();
  if (!recording->damage.empty()) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: {}; record again, or make a trace of the rest: weir convert",
                             path, recording->damage));
  }
  Result<Trace> trace = parse_trace(trace_text(*recording), path);
  if (trace) return trace;
  return Error(ErrorCode::invalid_input, path + ": no block begins or ends in this recording");
}

Result<RecordedTrace> read_pytorch(const InputFile& input, std::optional<int> device,
                                   const Pickle::Progress& progress) {
  Result<PytorchTrace> snapshot = read_pytorch_trace(input.path(), device, progress);
  if (!snapshot) return snapshot.error();
  Result<Trace> trace = parse_trace(std::exchange(snapshot->text, {}), input.path());
  if (!trace) return trace.error();
  return RecordedTrace{*std::move(trace), *std::move(snapshot)};
}

Result<Trace> read(const InputFile& input, FileKind kind) {
  switch (kind) {
    case FileKind::trace:
      return read_trace(input.path());
    case FileKind::rmm_log:
      return read_rmm_log(input.path());
    case FileKind::pickle:  // read_pytorch() does it
    case FileKind::recording:
      return trace_of_recording(input.path());
    case FileKind::json:
      return Error(ErrorCode::invalid_input,
                   input.path() +
                       ": JSON, as a snapshot of Weir's is: a snapshot holds one moment, and "
                       "nothing to replay");
    case FileKind::other:
      break;
  }
  return unknown_kind(input.path());
}

}  // namespace

Result<RecordedTrace> read_any_trace(const std::string& path, std::optional<int> device,
                                     const Pickle::Progress& progress) {
  const Result<InputFile> input = InputFile::open(path);
  if (!input) return input.error();
  const Result<FileKind> kind = kind_of_file(input->path());
  if (!kind) return input->named(kind.error());
  const auto read_plain = [&]() -> Result<RecordedTrace> {
    Result<Trace> trace = read(*input, *kind);
    return trace ? RecordedTrace{*std::move(trace), {}} : Result<RecordedTrace>(trace.error());
  };
  Result<RecordedTrace> trace =
      *kind == FileKind::pickle ? read_pytorch(*input, device, progress) : read_plain();
  if (!trace) return input->named(trace.error());
  trace->name = input->name();
  return trace;
}

}  // namespace weir
