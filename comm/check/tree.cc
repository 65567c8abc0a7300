#include "comm/check/tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace weir::check {
namespace {

constexpr std::size_t kMostRead = 1 << 16;  // bytes of one file
constexpr std::size_t kMostListed = 4096;   // names of one folder

}  // namespace

std::optional<std::string> Tree::text(const std::string& path) {
  // A pipe in place of a file must not be waited for.
  const int file = ::open((root_ + path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  int error = file < 0 ? errno : 0;
  struct stat status {};
  if (error == 0 && ::fstat(file, &status) != 0) error = errno;
  if (error == 0 && !S_ISREG(status.st_mode)) error = S_ISDIR(status.st_mode) ? EISDIR : EBADF;
  std::string text;
  char piece[4096];
  while (error == 0 && text.size() < kMostRead) {
    const ssize_t got = ::read(file, piece, std::min(sizeof piece, kMostRead - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    text.append(piece, static_cast<std::size_t>(got));
  }
  if (file >= 0) ::close(file);
  if (error == 0) return std::string(trimmed(text));
  // Other errors are how the kernel says that a device has no such property now.
  constexpr int kReported[] = {EACCES, EPERM, EISDIR, EBADF, ELOOP, ENAMETOOLONG};
  if (std::find(std::begin(kReported), std::end(kReported), error) != std::end(kReported)) {
    unread_.push_back({path, error == EBADF ? "it is no regular file" : std::strerror(error)});
  }
  return std::nullopt;
}

std::vector<std::string> Tree::list(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(root_ + path, error);
  for (; !error && entry != std::filesystem::directory_iterator() && names.size() < kMostListed;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Tree::exists(const std::string& path) const {
  return ::access((root_ + path).c_str(), F_OK) == 0;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace(" \t\r\n\v\f\0", 7);
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace weir::check
