#include "comm/launch/rendezvous_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <system_error>

#include "comm/digest.h"
#include "comm/numbers.h"

namespace weir {
namespace {

constexpr std::string_view kHead = "weir-meeting 1";  // the magic and the version

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

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
  if (!S_ISREG(status.st_mode)) return trouble(path, "is there, and is no plain file");
  if (status.st_uid == ::geteuid()) return {};
  return trouble(path, fmt::format("belongs to user {}, and this process is user {}'s",
                                   status.st_uid, ::geteuid()));
}

std::string hex_of(const UniqueId& id) {
  std::string text;
  for (const char byte : id.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

bool read_hex(std::string_view text, UniqueId& id) {
  if (text.size() != 2 * id.bytes.size()) return false;
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (std::size_t i = 0; i < id.bytes.size(); ++i) {
    const std::size_t high = kDigits.find(text[2 * i]);
    const std::size_t low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    id.bytes[i] = static_cast<char>(high << 4 | low);
  }
  return true;
}

// Takes the lines of a text one by one; each has a name and a value.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  std::optional<std::string_view> value(std::string_view name) {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) return {};
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    if (!line.starts_with(name) || line.substr(name.size(), 1) != " ") return {};
    return line.substr(name.size() + 1);
  }

  template <class Integer>
  bool read(std::string_view name, Integer& to) {
    const auto text = value(name);
    if (!text) return false;
    const auto number =
        whole_number(*text, static_cast<std::uint64_t>(std::numeric_limits<Integer>::max()));
    if (number) to = static_cast<Integer>(*number);
    return number.has_value();
  }

 private:
  std::string_view rest_;
};

Status write_all(int descriptor, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed(path, "can't be written", errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  // Hosts that share the file see what has left this one only.
  if (::fsync(descriptor) != 0) return failed(path, "can't be written", errno);
  return {};
}

}  // namespace

std::string on_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, '?');
  return text;
}

std::string encode(const RendezvousFile& file) {
  std::string text =
      fmt::format("{}\nrun {}\nranks {}\ndomain {}\nprocess {}\nstarted {}\nwritten {}\nid {}\n",
                  kHead, on_one_line(file.run), file.ranks, on_one_line(file.domain), file.process,
                  file.process_started, file.written, hex_of(file.id));
  return text + fmt::format("sum {:016x}\n", digest(text));
}

std::optional<RendezvousFile> decode(std::string_view text) {
  const std::size_t sum = text.rfind("sum ");
  if (sum == std::string_view::npos ||
      text.substr(sum) != fmt::format("sum {:016x}\n", digest(text.substr(0, sum)))) {
    return {};
  }
  Lines lines(text);
  if (lines.value("weir-meeting") != kHead.substr(kHead.find(' ') + 1)) return {};

  RendezvousFile file;
  const auto run = lines.value("run");
  if (!run || !lines.read("ranks", file.ranks)) return {};
  const auto domain = lines.value("domain");
  if (!domain || !lines.read("process", file.process) ||
      !lines.read("started", file.process_started) || !lines.read("written", file.written)) {
    return {};
  }
  const auto id = lines.value("id");
  if (!id || !read_hex(*id, file.id)) return {};
  file.run = *run;
  file.domain = *domain;
  return file;
}

Result<std::optional<std::string>> read_own_file(const std::string& path) {
  // Not blocking: a pipe that somebody put there would hold us up for ever.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno == ENOENT) return std::optional<std::string>();
    if (errno == ELOOP) return trouble(path, "is a link, and links are not followed");
    return failed(path, "can't be read", errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return failed(path, "can't be read", errno);
  if (Status own = check_own(path, status); !own) return own.error();

  constexpr std::size_t kMost = 1 << 16;
  std::string text(kMost, '\0');
  std::size_t length = 0;
  while (length < kMost) {
    const ssize_t got = ::read(file.get(), text.data() + length, kMost - length);
    if (got < 0 && errno == EINTR) continue;
    // On a shared file system a file that was replaced meanwhile is gone: it is read anew later.
    if (got < 0 && errno == ESTALE) return std::optional<std::string>();
    if (got < 0) return failed(path, "can't be read", errno);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  text.resize(length);
  return std::optional<std::string>(std::move(text));
}

Status write_own_file(const std::string& path, const std::string& text) {
  static std::atomic<int> count{0};
  const std::string temporary = fmt::format("{}.{}-{}", path, ::getpid(), ++count);
  {
    constexpr int kHow = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const Descriptor file(::open(temporary.c_str(), kHow, S_IRUSR | S_IWUSR));
    if (file.get() < 0) return failed(temporary, "can't be created", errno);
    if (Status written = write_all(file.get(), temporary, text); !written) {
      ::unlink(temporary.c_str());
      return written;
    }
  }
  Status free = remove_own_file(path);
  if (free.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    free = failed(path, "can't be written", errno);
  }
  if (!free) ::unlink(temporary.c_str());
  return free;
}

Status remove_own_file(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? Status() : Status(failed(path, "can't be looked at", errno));
  }
  if (S_ISLNK(status.st_mode)) return trouble(path, "is a link, and links are not followed");
  if (Status own = check_own(path, status); !own) return own;
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return failed(path, "can't be removed", errno);
}

}  // namespace weir
