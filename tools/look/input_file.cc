// SPDX-License-Identifier: Apache-2.0
#include "look/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "api/edit_distance.h"
#include "look/whole_file.h"

namespace weir {
namespace {

constexpr std::size_t kPiece = 1 << 20;

using Descriptor = std::shared_ptr<const int>;
Descriptor owned(int file) {
  return {new int(file), [](const int* descriptor) {
            ::close(*descriptor);
            delete descriptor;
          }};
}

Result<Descriptor> new_copy(const std::string& name) {
  std::string path = temporary_folder() + "/weir-input-XXXXXX";
  const int copy = ::mkostemp(path.data(), O_CLOEXEC);
  if (copy < 0) {
    return unreadable(name, fmt::format("a pipe is copied to {} first: {}; set TMPDIR to a folder "
                                        "with room for it",
                                        temporary_folder(), std::strerror(errno)));
  }
  ::unlink(path.c_str());
  return owned(copy);
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
        return unreadable(name, fmt::format("its copy in {}: {}; set TMPDIR to another folder",
                                            temporary_folder(), std::strerror(errno)));
      }
      done += written;
    }
  }
}

constexpr std::size_t kLeastToGuess = 3;  // letters

// "; did you mean 'run.weir'?": a file in the same folder with a name much like this one.
std::string guess(const std::filesystem::path& missing) {
  std::vector<std::string> names;
  std::error_code error, unknown;
  const std::string wanted = missing.filename().string();
  const std::filesystem::path folder = missing.has_parent_path() ? missing.parent_path() : ".";
  for (std::filesystem::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    if (each->is_directory(unknown) || each->path().filename() == wanted) continue;
    names.push_back(each->path().filename().string());
  }
  std::ranges::sort(names);
  const std::string_view nearest =
      wanted.size() < kLeastToGuess ? std::string_view() : nearest_name(wanted, names);
  if (nearest.empty()) {
    return wanted.ends_with(".weir") ? "; a recording begins as its program first uses memory" : "";
  }
  return fmt::format("; did you mean '{}'?", (missing.parent_path() / nearest).string());
}

}  // namespace

std::string temporary_folder() {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

Result<InputFile> InputFile::open(const std::string& path) {
  const bool is_standard = path == "-" || path == "/dev/stdin";
  const std::string name = is_standard ? "standard input" : path;
  if (path.empty()) {
    return Error(ErrorCode::invalid_argument, "the name of the file to read is empty: give one");
  }
  const int file = is_standard ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                               : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    const int code = errno;
    return unreadable(name, std::strerror(code) + (code == ENOENT ? guess(path) : ""));
  }
  const Descriptor original = owned(file);
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  if (known && S_ISREG(status.st_mode)) {
    return InputFile(is_standard ? "/dev/stdin" : path, name);
  }
  if (known && S_ISDIR(status.st_mode)) {
    return unreadable(name, "it is a folder; name a file in it");
  }
  const Result<Descriptor> copy = new_copy(name);
  if (!copy) return copy.error();
  if (const Status copied = copy_all(name, file, **copy); !copied) return copied.error();
  return InputFile(fmt::format("/proc/self/fd/{}", **copy), name, *copy);
}

Error InputFile::named(const Error& error) const {
  const std::string& message = error.message();
  if (path_ == name_ || !message.starts_with(path_)) return error;
  return {error.code(), name_ + message.substr(path_.size())};
}

}  // namespace weir
