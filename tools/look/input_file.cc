// SPDX-License-Identifier: Apache-2.0
#include "look/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace weir {
namespace {

constexpr std::size_t kPiece = 1 << 20;

Error unreadable(const std::string& name, const std::string& why) {
  return {ErrorCode::invalid_input, fmt::format("{}: can't be read: {}", name, why)};
}

// Names a folder for temporary files as other programs do.
std::string temporary_folder() {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

Result<int> new_copy(const std::string& name) {
  std::string path = temporary_folder() + "/weir-input-XXXXXX";
  const int copy = ::mkostemp(path.data(), O_CLOEXEC);
  if (copy < 0) {
    return unreadable(name, fmt::format("a pipe is copied to {} first: {}; set TMPDIR to a folder "
                                        "with room for it",
                                        temporary_folder(), std::strerror(errno)));
  }
  ::unlink(path.c_str());
  return copy;
}

Status copy_all(const std::string& name, int from, int to) {
  std::vector<char> piece(kPiece);
  for (;;) {
    const ssize_t size = ::read(from, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return unreadable(name, std::strerror(errno));
    if (size == 0) return {};
    for (ssize_t done = 0; done < size;) {
      const ssize_t written =
          ::write(to, piece.data() + done, static_cast<std::size_t>(size - done));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        return unreadable(name, fmt::format("its copy in {}: {}; set TMPDIR to a folder with room "
                                            "for it",
                                            temporary_folder(), std::strerror(errno)));
      }
      done += written;
    }
  }
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  const bool is_standard = path == "-" || path == "/dev/stdin";
  const std::string name = is_standard ? "standard input" : path;
  if (path.empty()) {
    return Error(ErrorCode::invalid_argument, "the name of the file to read is empty: give one");
  }
  const int file = is_standard ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                               : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return unreadable(name, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  if (known && S_ISREG(status.st_mode)) {
    ::close(file);
    return InputFile(is_standard ? "/dev/stdin" : path, name, -1);
  }
  if (known && S_ISDIR(status.st_mode)) {
    ::close(file);
    return unreadable(name, "it is a folder; name a file in it");
  }
  const Result<int> copy = new_copy(name);
  const Status copied = copy ? copy_all(name, file, *copy) : Status(copy.error());
  ::close(file);
  if (!copied) {
    if (copy) ::close(*copy);
    return copied.error();
  }
  return InputFile(fmt::format("/proc/self/fd/{}", *copy), name, *copy);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      name_(std::move(other.name_)),
      copy_(std::exchange(other.copy_, -1)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(name_, other.name_);
  std::swap(copy_, other.copy_);
  return *this;
}

InputFile::~InputFile() {
  if (copy_ >= 0) ::close(copy_);
}

Error InputFile::named(const Error& error) const {
  const std::string& message = error.message();
  if (path_ == name_ || !message.starts_with(path_)) return error;
  return {error.code(), name_ + message.substr(path_.size())};
}

}  // namespace weir
