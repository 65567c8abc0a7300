// SPDX-License-Identifier: Apache-2.0
#include "replay/named_files.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace weir {
namespace {

constexpr int kMostLinks = 40;  // that Linux follows

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

// Of files that do not exist yet, where their folders are the same.
bool is_same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool exists = fs::exists(a, error);
  if (exists != fs::exists(b, error)) return false;
  if (exists) return fs::is_regular_file(a, error) && fs::equivalent(a, b, error);
  const fs::path first = fs::absolute(behind_dangling_links(a), error);
  const fs::path second = fs::absolute(behind_dangling_links(b), error);
  const bool share = fs::equivalent(first.parent_path(), second.parent_path(), error);
  return error ? first.lexically_normal() == second.lexically_normal()
               : share && first.filename() == second.filename();
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
