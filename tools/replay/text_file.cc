// SPDX-License-Identifier: Apache-2.0
#include "replay/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "replay/named_files.h"

namespace weir {
namespace {

gzFile open_file(const std::string& path) {
  // "T": as it is, not compressed.
  const char* const mode = path.ends_with(".gz") ? "wb6" : "wbT";
  const std::optional<int> number = descriptor_named(path);
  if (!number) return gzopen(path.c_str(), mode);
  std::fflush(stdout);  // what was printed before comes before
  const int descriptor = ::fcntl(*number, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) return nullptr;
  const gzFile file = gzdopen(descriptor, mode);
  if (file == nullptr) ::close(descriptor);
  return file;
}

}  // namespace

Status write_text_file(const std::string& path, std::string_view text) {
  const auto failed = [&path] {
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: can't be written: {}", path, std::strerror(errno)));
  };
  errno = 0;
  const gzFile file = open_file(path);
  if (file == nullptr) return failed();
  constexpr std::size_t kMost = 1 << 20;
  bool written = true;
  for (; written && !text.empty(); text.remove_prefix(std::min(kMost, text.size()))) {
    written = gzwrite(file, text.data(), static_cast<unsigned>(std::min(kMost, text.size()))) > 0;
  }
  if (gzclose(file) != Z_OK || !written) return failed();
  return {};
}

}  // namespace weir
