#include "look/load.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "look/replayed.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

// --- ON MERGING THE RECORDER: this function goes, and load() calls read_recording(path). ---------
Result<Recording> read_recording_file(const std::string& path) {
  return Error(ErrorCode::invalid_input,
               fmt::format("{}: neither a trace nor a snapshot that PyTorch pickled (recordings "
                           "can't be read by this build)",
                           path));
}
// -------------------------------------------------------------------------------------------------

struct CloseGzip {
  void operator()(gzFile file) const { gzclose_r(file); }
};

constexpr std::size_t kPeek = 16;

// The first bytes of a file, or of what is compressed in it.
Result<std::string> peek(const std::string& path) {
  errno = 0;
  const std::unique_ptr<std::remove_pointer_t<gzFile>, CloseGzip> file(gzopen(path.c_str(), "rb"));
  std::array<char, kPeek> bytes{};
  const int read = file == nullptr ? -1 : gzread(file.get(), bytes.data(), kPeek);
  if (read < 0) {
    const char* why = errno != 0 ? std::strerror(errno) : "its compressed data is damaged";
    return Error(ErrorCode::invalid_input, fmt::format("{}: can't be read: {}", path, why));
  }
  if (read == 0) {
    return Error(
        ErrorCode::invalid_input,
        fmt::format("{}: the file is empty; name a recording, a trace or a snapshot", path));
  }
  return std::string(bytes.data(), static_cast<std::size_t>(read));
}

// Of a trace each line is a letter and a space, or a comment.
bool begins_trace(std::string_view text) {
  if (text.front() == '#') return true;
  return text.size() > 1 && text[1] == ' ' &&
         std::string_view("arfuwm").find(text.front()) != std::string_view::npos;
}

Result<Recording> load_trace(const std::string& path) {
  const Result<Trace> trace = read_trace(path);
  if (!trace.ok()) return trace.error();
  return replayed(*trace);
}

}  // namespace

Result<Recording> load(const std::string& path) {
  const Result<std::string> beginning = peek(path);
  if (!beginning.ok()) return beginning.error();
  if (begins_trace(*beginning)) return load_trace(path);
  return read_recording_file(path);
}

}  // namespace weir
