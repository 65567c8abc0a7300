#include "comm/launch/id_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include "comm/digest.h"

namespace weir {
namespace {

constexpr std::string_view kHead = "weir-meeting 2";  // the magic and the version
constexpr std::size_t kSum = 16;                      // digits of the checksum at the end

Error trouble(const std::string& path, std::string_view what) {
  return {ErrorCode::invalid_argument,
          fmt::format("{}: {}: set WEIR_MEET to file:/path of another file, or to host:port of "
                      "rank 0",
                      path, what)};
}

Error failed(const std::string& path, std::string_view what, int error) {
  return trouble(path, fmt::format("{}: {}", what, std::generic_category().message(error)));
}

Status check_own(const std::string& path, const struct stat& status) {
  if (S_ISLNK(status.st_mode)) return trouble(path, "is a link, and links are not followed");
  if (!S_ISREG(status.st_mode)) return trouble(path, "is there, and is no plain file");
  if (status.st_uid == ::geteuid()) return {};
  return trouble(path, fmt::format("belongs to user {}, and this process is user {}'s",
                                   status.st_uid, ::geteuid()));
}

// `text` with no line ends, so that it stands in a line.
std::string on_one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  return text;
}

}  // namespace

std::string process_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = {};
  const ssize_t length = ::readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return boot.empty() || length <= 0 ? "" : boot + "/" + space;
}

std::string encode(const IdFile& file) {
  std::string text = fmt::format("{}\n{}\n{}\n{} {} {}\n", kHead, on_one_line(file.run), file.host,
                                 file.ranks, file.process, file.written);
  text.append(file.id.bytes.data(), file.id.bytes.size());
  return text + fmt::format("{:016x}", digest(text));
}

std::optional<IdFile> decode(std::string_view text) {
  if (text.size() < kSum) return {};
  const std::string body(text.substr(0, text.size() - kSum));
  if (text.substr(body.size()) != fmt::format("{:016x}", digest(body))) return {};
  IdFile file;
  std::istringstream in(body);
  std::string head;
  std::getline(in, head);
  std::getline(in, file.run);
  std::getline(in, file.host);
  in >> file.ranks >> file.process >> file.written;
  in.get();
  in.read(file.id.bytes.data(), static_cast<std::streamsize>(file.id.bytes.size()));
  return in && head == kHead ? std::optional(file) : std::nullopt;
}

Result<std::optional<std::string>> read_own_file(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::optional<std::string>();
    return failed(path, "can't be read", errno);
  }
  if (Status own = check_own(path, status); !own) return std::move(own).error();
  // Not blocking: a pipe that somebody puts there meanwhile would hold us up for ever.
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) {
    if (errno == ENOENT) return std::optional<std::string>();
    return failed(path, "can't be read", errno);
  }
  std::string text(4096, '\0');
  const ssize_t got = ::read(file, text.data(), text.size());
  const int error = errno;
  struct stat opened {};
  const bool same = ::fstat(file, &opened) == 0 && opened.st_ino == status.st_ino;
  ::close(file);
  // What was replaced meanwhile is gone, on a shared file system too: it is read anew later.
  if (!same || (got < 0 && error == ESTALE)) return std::optional<std::string>();
  if (got < 0) return failed(path, "can't be read", error);
  text.resize(static_cast<std::size_t>(got));
  return std::optional(std::move(text));
}

Status write_own_file(const std::string& path, const std::string& text) {
  static std::atomic<int> count{0};
  const std::string temporary = fmt::format("{}.{}-{}", path, ::getpid(), ++count);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                          S_IRUSR | S_IWUSR);
  if (file < 0) return failed(temporary, "can't be created", errno);
  const ssize_t written = ::write(file, text.data(), text.size());
  // Hosts that share the file see what has left this one only.
  const bool whole = written == static_cast<ssize_t>(text.size()) && ::fsync(file) == 0;
  Status done = whole ? Status() : Status(failed(temporary, "can't be written", errno));
  ::close(file);
  if (done) done = remove_own_file(path);
  if (done && ::rename(temporary.c_str(), path.c_str()) != 0) {
    done = failed(path, "can't be written", errno);
  }
  if (!done) ::unlink(temporary.c_str());
  return done;
}

Status remove_own_file(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? Status() : Status(failed(path, "can't be looked at", errno));
  }
  if (Status own = check_own(path, status); !own) return own;
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return failed(path, "can't be removed", errno);
}

}  // namespace weir
