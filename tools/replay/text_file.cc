#include "replay/text_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weir {

Status write_text_file(const std::string& path, std::string_view text) {
  const auto failed = [&path] {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{}: can't be written: {}", path, std::strerror(errno)));
  };
  errno = 0;
  // "T": as it is, not compressed.
  const gzFile file = gzopen(path.c_str(), path.ends_with(".gz") ? "wb6" : "wbT");
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
