// SPDX-License-Identifier: Apache-2.0
#include "observe/replaced_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace weir {

namespace fs = std::filesystem;

Status check_folder(std::string_view what, const std::string& path) {
  if (path.empty()) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: the path is empty: name a file", what));
  }
  const std::string folder = fs::path(path).parent_path();
  std::error_code unknown;
  if (folder.empty() || fs::exists(folder, unknown) || unknown) return {};
  return Error(
      ErrorCode::invalid_input,
      fmt::format("{} {}: there is no folder {}: make it, or name a file in one that there "
                  "is",
                  what, path, folder));
}

Status write_in_place_of(const std::string& path,
                         const std::function<Status(const std::string& path)>& write) {
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  const bool is_plain = fs::is_regular_file(there) || fs::is_directory(there);
  // (A link that leads nowhere yet makes what it leads to.)
  if (!is_plain && fs::exists(fs::symlink_status(path, error))) return write(path);
  // Where it leads to, if it is a link: the link stays.
  const fs::path target = fs::exists(there) ? fs::canonical(path, error) : fs::path(path);
  const std::string unfinished = target.string() + ".unfinished";
  Status written = write(unfinished);
  if (written) {
    fs::rename(unfinished, target, error);
    if (error) {
      written = Error(ErrorCode::invalid_input, path + ": cannot be replaced: " + error.message());
    }
  }
  if (!written) fs::remove(unfinished, error);
  return written;
}

}  // namespace weir
