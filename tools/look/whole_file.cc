// SPDX-License-Identifier: Apache-2.0
#include "look/whole_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "replay/gzip_file.h"

namespace weir {
namespace {

constexpr std::uint64_t kMostFileBytes = std::uint64_t{4} << 30;

}  // namespace

Result<std::vector<char>> read_whole_file(const std::string& path) {
  const auto failed = [&path](std::string_view why) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: can't be read: {}", path, why));
  };
  errno = 0;
  const GzipFile file = open_gzip(path);
  if (file == nullptr) return failed(std::strerror(errno));
  gzbuffer(file.get(), 1 << 17);
  std::vector<char> bytes;
  constexpr std::size_t kPiece = 1 << 20;
  for (std::size_t size = 0;;) {
    bytes.resize(size + kPiece);
    const int read = gzread(file.get(), bytes.data() + size, kPiece);
    int code = Z_OK;
    const char* why = gzerror(file.get(), &code);
    if (read < 0) return failed(code == Z_ERRNO ? std::strerror(errno) : why);
    if (read == 0 && code == Z_BUF_ERROR) return failed("its compressed data was cut off");
    size += static_cast<std::size_t>(read);
    if (size > kMostFileBytes) return failed("it is larger than 4 GiB");
    if (read > 0) continue;
    bytes.resize(size);
    return bytes;
  }
}

}  // namespace weir
