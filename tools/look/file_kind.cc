// SPDX-License-Identifier: Apache-2.0
#include "look/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "look/whole_file.h"
#include "observe/recording_format.h"
#include "replay/gzip_file.h"
#include "replay/rmm_log.h"

namespace weir {
namespace {

constexpr std::size_t kPeek = kRmmLogColumns.size();
constexpr std::string_view kPytorchsSnapshot = "\"device_traces\"";

// Of a trace each line is a letter and a space, or a comment.
bool begins_trace(std::string_view text) {
  if (text.front() == '#') return true;
  return text.size() > 1 && text[1] == ' ' &&
         std::string_view("arfuwm").find(text.front()) != std::string_view::npos;
}

// One that was cut off within its magic is one too.
bool begins_recording(std::string_view text) {
  return recording_format::kMagic.starts_with(
      text.substr(0, std::min(text.size(), recording_format::kMagic.size())));
}

// Whether `wanted` stands in the file, of which `read` was read already.
bool has_text(gzFile file, std::string_view read, std::string_view wanted) {
  std::string window(read);
  std::array<char, 1 << 16> piece;
  while (window.find(wanted) == std::string::npos) {
    const int count = gzread(file, piece.data(), piece.size());
    if (count <= 0) return false;
    window.erase(0, window.size() - std::min(window.size(), wanted.size()));
    window.append(piece.data(), static_cast<std::size_t>(count));
  }
  return true;
}

// What else it may be.
std::string_view likely_kind(const std::string& path) {
  const GzipFile file = open_gzip(path);
  std::array<char, 256> bytes{};
  const int read = file == nullptr ? 0 : gzread(file.get(), bytes.data(), bytes.size());
  const std::string_view text(bytes.data(), static_cast<std::size_t>(std::max(read, 0)));
  if (text.starts_with("PK\x03\x04")) {
    return "a zip archive, such as the checkpoints that torch.save() writes, which say nothing of "
           "memory's use";
  }
  // Its header stands behind the header's length, of 8 bytes.
  if (text.size() > 10 && text[7] == '\0' && text.substr(8).starts_with("{\"")) {
    return "a safetensors file, whose weights say nothing of memory's use";
  }
  const auto is_text = [](unsigned char c) {
    return (c >= ' ' && c != 0x7f) || (c >= '\b' && c <= '\r') || c == '\x1b';  // colours, too
  };
  if (!text.empty() && std::ranges::all_of(text, is_text)) {
    return "text, such as a program prints, of no kind that Weir reads";
  }
  return "a file of no known kind";
}

}  // namespace

Result<FileKind> kind_of_file(const std::string& path) {
  errno = 0;
  const GzipFile file = open_gzip(path);
  std::array<char, kPeek> bytes{};
  const int read = file == nullptr ? -1 : gzread(file.get(), bytes.data(), kPeek);
  if (read < 0) {
    return unreadable(
        path, errno != 0 ? std::strerror(errno) : "its compressed data is damaged: copy it again");
  }
  const std::string_view text(bytes.data(), static_cast<std::size_t>(read));
  int code = Z_OK;
  (void)gzerror(file.get(), &code);
  if (text.empty()) {
    return Error(ErrorCode::invalid_input,
                 path + (code == Z_BUF_ERROR
                             ? ": can't be read: its compressed data was cut off: copy it again"
                             : ": the file is empty; name a recording, a trace or a snapshot"));
  }
  if (text == kRmmLogColumns) return FileKind::rmm_log;
  if (begins_trace(text)) return FileKind::trace;
  if (text.size() > 1 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5) return FileKind::pickle;
  if (text[text.find_first_not_of(" \t\r\n") % text.size()] == '{') {
    return has_text(file.get(), text, kPytorchsSnapshot) ? FileKind::pickle : FileKind::json;
  }
  if (text[0] == '[' && has_text(file.get(), text, "RMM LOG BEGIN")) {
    return Error(ErrorCode::invalid_input,
                 path + ": RMM's debug log: Weir reads the CSV that RMM_LOG_FILE names");
  }
  return begins_recording(text) ? FileKind::recording : FileKind::other;
}

Error unknown_kind(const std::string& path) {
  return {
      ErrorCode::invalid_input,
      fmt::format("{}: {}; name a recording (WEIR_RECORD=FILE), a trace, a "
                  "snapshot of Weir's or PyTorch's (torch.cuda.memory._dump_snapshot() writes one "
                  "that can be read), or what RMM_LOG_FILE made RMM log",
                  path, likely_kind(path))};
}

}  // namespace weir
