// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_reader.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "replay/gzip_file.h"
#include "replay/trace_parser.h"

namespace weir {
namespace {

constexpr std::size_t kChunk = 1 << 20;  // also the longest line
constexpr std::string_view kCutOff =
    "the file ends within this line: it was cut off (if it is whole, end the line)";

// Why reading failed, or ended before the end of the compressed data.
Status gzip_state(gzFile file, const TraceParser& parser) {
  int code = Z_OK;
  const char* message = gzerror(file, &code);
  if (code == Z_OK || code == Z_STREAM_END) return {};
  if (code == Z_BUF_ERROR)
    return parser.error_here("the compressed file was cut off here: copy it again");
  if (code == Z_ERRNO) return parser.error_here(std::strerror(errno));
  return parser.error_here(
      fmt::format("the compressed data is damaged: {}; copy it again", message));
}

}  // namespace

Result<Trace> parse_trace(std::string_view text, std::string name) {
  TraceParser parser(std::move(name));
  const std::size_t whole = text.rfind('\n') + 1;  // 0: no line is whole
  if (Status status = parser.lines(text.substr(0, whole)); !status.ok()) return status.error();
  if (whole != text.size()) return parser.error_here(kCutOff);
  return std::move(parser).finish();
}

Result<Trace> read_trace(const std::string& path) {
  TraceParser parser(path);
  const GzipFile file = open_gzip(path);
  if (file == nullptr) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  gzbuffer(file.get(), 1 << 17);
  std::vector<char> buffer(kChunk);
  std::size_t partial = 0;  // of a line whose end was not read yet, at the buffer's start
  for (;;) {
    const int read =
        gzread(file.get(), buffer.data() + partial, static_cast<unsigned>(buffer.size() - partial));
    const std::string_view text(buffer.data(), partial + (read > 0 ? read : 0));
    const std::size_t whole = text.rfind('\n') + 1;
    if (Status status = parser.lines(text.substr(0, whole)); !status.ok()) return status.error();
    partial = text.size() - whole;
    if (read <= 0) break;
    if (partial == buffer.size()) return parser.error_here("no line is this long");
    std::memmove(buffer.data(), buffer.data() + whole, partial);
  }
  if (Status status = gzip_state(file.get(), parser); !status.ok()) return status.error();
  if (partial != 0) return parser.error_here(kCutOff);
  return std::move(parser).finish();
}

}  // namespace weir
