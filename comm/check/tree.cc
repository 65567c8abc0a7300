#include "comm/check/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "comm/numbers.h"

namespace weir::check {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

}  // namespace

std::optional<std::string> Tree::read(const std::string& path) {
  // A pipe in place of a file must not be waited for.
  const int file = ::open(at(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return note(path, errno), std::nullopt;
  struct stat status {};
  int error = ::fstat(file, &status) != 0 ? errno : 0;
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
  ::close(file);
  if (error == 0) return text;
  note(path, error);
  return std::nullopt;
}

std::optional<std::string> Tree::text(const std::string& path) {
  const std::optional<std::string> all = read(path);
  if (!all) return std::nullopt;
  return std::string(trimmed(*all));
}

std::optional<int> Tree::number(const std::string& path) {
  const std::optional<std::string> all = text(path);
  return all ? number_in<int>(*all) : std::nullopt;
}

std::vector<std::string> Tree::list(const std::string& path) {
  const std::unique_ptr<DIR, CloseFolder> folder(::opendir(at(path).c_str()));
  std::vector<std::string> names;
  if (folder == nullptr) return note(path, errno), names;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() == kMostListed) {
      unread_.push_back({path, "it has more than 4096 entries; the others were left out"});
      break;
    }
    names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Tree::exists(const std::string& path) const { return ::access(at(path).c_str(), F_OK) == 0; }

bool Tree::is_folder(const std::string& path) const {
  std::error_code error;
  return std::filesystem::is_directory(at(path), error);
}

std::string Tree::target_name(const std::string& path) const {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(at(path), error);
  return error ? std::string() : target.filename().string();
}

// Other errors are how the kernel says that a device has no such property now.
void Tree::note(const std::string& path, int error) {
  constexpr int kReported[] = {EACCES, EPERM, EISDIR, EBADF, ELOOP, ENAMETOOLONG};
  if (std::find(std::begin(kReported), std::end(kReported), error) == std::end(kReported)) return;
  unread_.push_back({path, error == EBADF ? "it is no regular file" : std::strerror(error)});
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
