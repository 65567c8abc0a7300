// SPDX-License-Identifier: Apache-2.0
#include "look/any_trace.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "look/exporters.h"
#include "look/file_kind.h"
#include "look/input_file.h"
#include "look/load.h"
#include "look/pytorch_trace.h"
#include "replay/rmm_log.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

// A file in memory, without a name.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("trace", MFD_CLOEXEC)) {}
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  bool is_open() const { return descriptor_ >= 0; }
  std::string path() const { return fmt::format("/dev/fd/{}", descriptor_); }

 private:
  const int descriptor_;
};

Result<Trace> trace_of_recording(const std::string& path) {
  const Result<Loaded> recording = load(path, {.kind = FileKind::recording});
  if (!recording) return recording.error();
  if (!recording->damage.empty()) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: {}; record again, or make a trace of the rest: weir convert",
                             path, recording->damage));
  }
  const MemoryFile copy;
  if (!copy.is_open()) {
    return Error(ErrorCode::unavailable, path + ": no memory for a trace of it");
  }
  Result<OutputFile> file = OutputFile::open(copy.path(), "");
  if (!file) return std::move(file).error();
  write_trace(*recording, *file);
  if (const Status written = file->commit(); !written) return written.error();
  Result<Trace> trace = read_trace(copy.path());
  if (trace) return trace;
  return Error(ErrorCode::invalid_input, path + ": no block begins or ends in this recording");
}

Result<Trace> read(const InputFile& input, FileKind kind, std::optional<int> device,
                   const Pickle::Progress& progress) {
  switch (kind) {
    case FileKind::trace:
      return read_trace(input.path());
    case FileKind::rmm_log:
      return read_rmm_log(input.path());
    case FileKind::pickle: {
      const Result<PytorchTrace> trace = read_pytorch_trace(input.path(), device, progress);
      return trace ? parse_trace(trace->text, input.path()) : Result<Trace>(trace.error());
    }
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

Result<Trace> read_any_trace(const std::string& path, std::optional<int> device,
                             const Pickle::Progress& progress) {
  const Result<InputFile> input = InputFile::open(path);
  if (!input) return input.error();
  const Result<FileKind> kind = kind_of_file(input->path());
  if (!kind) return input->named(kind.error());
  Result<Trace> trace = read(*input, *kind, device, progress);
  if (!trace) return input->named(trace.error());
  trace->name = input->name();
  return trace;
}

}  // namespace weir
