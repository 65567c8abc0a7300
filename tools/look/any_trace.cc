// SPDX-License-Identifier: Apache-2.0
#include "look/any_trace.h"

#include <fmt/format.h>

#include <utility>

#include "look/exporters.h"
#include "look/load.h"
#include "replay/rmm_log.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

Result<Trace> trace_of_recording(const std::string& path) {
  const Result<Loaded> recording = load(path);
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

}  // namespace

Result<RecordedTrace> read_trace_of(const InputFile& input, FileKind kind,
                                    std::optional<int> device, const Pickle::Progress& progress) {
  Result<PytorchTrace> snapshot = PytorchTrace{};
  if (kind == FileKind::pickle) snapshot = read_pytorch_trace(input.path(), device, progress);
  if (!snapshot) return snapshot.error();
  Result<Trace> trace = kind == FileKind::trace     ? read_trace(input.path())
                        : kind == FileKind::rmm_log ? read_rmm_log(input.path())
                        : kind == FileKind::pickle
                            ? parse_trace(std::exchange(snapshot->text, {}), input.path())
                            : trace_of_recording(input.path());
  if (!trace) return trace.error();
  trace->name = input.name();
  trace->is_of_file = kind == FileKind::trace;
  return RecordedTrace{*std::move(trace), *std::move(snapshot)};
}

Result<FileKind> kind_of(const InputFile& input, std::optional<int> device) {
  Result<FileKind> kind = kind_of_file(input.path());
  if (!kind) return input.named(kind.error());
  if (!device || *kind == FileKind::pickle) return kind;
  return Error(
      ErrorCode::invalid_argument,
      input.name() + ": only PyTorch's snapshots have several devices: leave --device out");
}

Result<RecordedTrace> read_any_trace(const std::string& path, std::optional<int> device,
                                     const Pickle::Progress& progress) {
  const Result<InputFile> input = InputFile::open(path);
  if (!input) return input.error();
  const Result<FileKind> kind = kind_of(*input, device);
  if (!kind) return kind.error();
  if (*kind == FileKind::other) return input->named(unknown_kind(input->path()));
  if (*kind == FileKind::json) {
    return Error(ErrorCode::invalid_input,
                 input->name() +
                     ": JSON, as a snapshot of Weir's is: a snapshot holds one moment, and nothing "
                     "to replay");
  }
  Result<RecordedTrace> trace = read_trace_of(*input, *kind, device, progress);
  if (!trace) return input->named(trace.error());
  if (Status whole = damage_status(input->name(), trace->snapshot.damage); !whole) {
    return std::move(whole).error();
  }
  return trace;
}

}  // namespace weir
