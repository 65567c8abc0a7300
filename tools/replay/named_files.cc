// SPDX-License-Identifier: Apache-2.0
#include "replay/named_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace weir {
namespace {

constexpr int kMostLinks = 40;  // that Linux follows

// What two names of one regular file have in common: the file itself, or, as long as it does not
// exist, its folder and its name there.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  std::string name;  // in the folder `inode`; empty: the file exists

  friend bool operator==(const Identity&, const Identity&) = default;
};

std::optional<Identity> identity_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) return std::nullopt;
    return Identity{status.st_dev, status.st_ino, {}};
  }
  const std::filesystem::path real = behind_dangling_links(path);
  const std::filesystem::path folder = real.has_parent_path() ? real.parent_path() : ".";
  if (::stat(folder.c_str(), &status) == 0) {
    return Identity{status.st_dev, status.st_ino, real.filename().string()};
  }
  std::error_code unknown;
  return Identity{0, 0, std::filesystem::absolute(real, unknown).lexically_normal().string()};
}

Error refused(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

Status check_input(const NamedFile& output, const NamedFile& input) {
  if (!is_same_file(output.path, input.path)) return {};
  return refused(
      fmt::format("{} '{}' and {} '{}' are the same file: the command would overwrite its input; "
                  "give {} another file name",
                  output.option, output.path, input.option, input.path, output.option));
}

Status check_pair(const NamedFile& a, const NamedFile& b) {
  if (descriptor_named(a.path) && descriptor_named(b.path)) return {};
  if (!is_same_file(a.path, b.path)) return {};
  return refused(
      fmt::format("{} '{}' and {} '{}' are the same file: one output would overwrite the other; "
                  "give {} another file name",
                  a.option, a.path, b.option, b.path, b.option));
}

}  // namespace

std::filesystem::path behind_dangling_links(std::filesystem::path path) {
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;  // which is `target` where that is absolute
  }
  return path;
}

bool is_same_file(const std::string& a, const std::string& b) {
  const std::optional<Identity> identity = identity_of(a);
  return identity && identity == identity_of(b);
}

std::optional<int> descriptor_named(const std::string& path) {
  if (path == "-" || path == "/dev/stdout") return 1;
  if (path == "/dev/stderr") return 2;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int number = 0;
    const char* const end = path.data() + path.size();
    const auto [rest, error] = std::from_chars(path.data() + folder.size(), end, number);
    if (error == std::errc{} && rest == end && number >= 0) return number;
  }
  return std::nullopt;
}

Status check_files(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs) {
  const NamedFile standard_output{"standard output", "/dev/stdout"};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].path.empty()) {
      return refused(outputs[i].option + ": the name of the file to write is empty; give one");
    }
    for (const NamedFile& input : inputs) {
      if (Status allowed = check_input(outputs[i], input); !allowed) return allowed;
    }
    if (Status allowed = check_pair(standard_output, outputs[i]); !allowed) return allowed;
    for (std::size_t earlier = 0; earlier < i; ++earlier) {
      if (Status allowed = check_pair(outputs[earlier], outputs[i]); !allowed) return allowed;
    }
  }
  for (const NamedFile& input : inputs) {
    if (!is_same_file(standard_output.path, input.path)) continue;
    return refused(
        fmt::format("standard output and {} '{}' are the same file: the command would write into "
                    "its input; redirect standard output to another file",
                    input.option, input.path));
  }
  return {};
}

}  // namespace weir
