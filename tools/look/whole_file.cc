// SPDX-License-Identifier: Apache-2.0
#include "look/whole_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace weir {

Error unreadable(const std::string& path, std::string_view why) {
  return {ErrorCode::invalid_input, fmt::format("{}: can't be read: {}", path, why)};
}

Result<std::size_t> read_piece(gzFile file, const std::string& path, char* into, std::size_t most) {
  const int read = gzread(file, into, static_cast<unsigned>(most));
  int code = Z_OK;
  const char* why = gzerror(file, &code);
  if (read < 0)
    return unreadable(
        path, code == Z_ERRNO ? std::strerror(errno) : fmt::format("{}: copy it again", why));
  if (read == 0 && code == Z_BUF_ERROR)
    return unreadable(path, "its gzip is cut off: copy it again");
  return static_cast<std::size_t>(read);
}

Result<std::string> read_whole_file(const std::string& path) {
  errno = 0;
  const GzipFile file = open_gzip(path);
  if (file == nullptr) return unreadable(path, std::strerror(errno));
  gzbuffer(file.get(), 1 << 17);
  std::string bytes;
  constexpr std::size_t kPiece = 1 << 20, kMostFileBytes = std::size_t{4} << 30;
  for (std::size_t size = 0;;) {
    bytes.resize(size + kPiece);
    const Result<std::size_t> read = read_piece(file.get(), path, bytes.data() + size, kPiece);
    if (!read) return read.error();
    size += *read;
    if (size > kMostFileBytes) return unreadable(path, "it is larger than 4 GiB");
    if (*read > 0) continue;
    bytes.resize(size);
    return bytes;
  }
}

}  // namespace weir
