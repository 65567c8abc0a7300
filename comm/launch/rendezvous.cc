// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>

#include "comm/digest.h"
#include "comm/launch/id_file.h"
#include "weir/comm/launch.h"

namespace weir {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

class ProcessEnvironment final : public Environment {
 public:
  std::optional<std::string> get(const std::string& name) const override {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return {};
    return value;
  }
  void set(const std::string& name, const std::string& value) override {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  void unset(const std::string& name) override { ::unsetenv(name.c_str()); }
};

Error trouble(const std::string& path, const std::string& what) {
  return {ErrorCode::invalid_argument,
          fmt::format("{}: {}: set WEIR_MEET to file:/path of another file, or to host:port of "
                      "rank 0",
                      path, what)};
}

Error failed(const std::string& path, std::string_view what) {
  return trouble(path, fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

// What is at `path`, to be read; -1: nothing is. Errors: invalid_argument (it can't be opened, is a
// link or no plain file, or is another user's).
Result<int> open_own(const std::string& path) {
  // Not blocking: a pipe that somebody puts there would hold us up for ever.
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return -1;
  if (file < 0 && errno == ELOOP) return trouble(path, "is a link, and links are not followed");
  if (file < 0) return failed(path, "can't be opened");
  struct stat status {};
  std::string fault;
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    fault = "is there, and is no plain file";
  } else if (status.st_uid != ::geteuid()) {
    fault = fmt::format("belongs to user {}, and this process is user {}'s", status.st_uid,
                        ::geteuid());
  }
  if (fault.empty()) return file;
  ::close(file);
  return trouble(path, fault);
}

// Errors: as of open_own(), or it can't be removed.
Status remove_own(const std::string& path) {
  const Result<int> file = open_own(path);
  if (!file) return file.error();
  if (*file < 0) return {};
  ::close(*file);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return failed(path, "can't be removed");
}

// What rank 0 left at `path`, or why that is none; nothing: no file is there.
Result<std::optional<IdFile>> read_own(const std::string& path, std::string& fault) {
  const Result<int> file = open_own(path);
  if (!file) return file.error();
  fault = "is not there";
  if (*file < 0) return std::optional<IdFile>();
  char text[4096];
  const ssize_t got = ::read(*file, text, sizeof text);
  const bool is_stale = got < 0 && errno == ESTALE;  // replaced on a shared file system: read anew
  Status done = got < 0 && !is_stale ? Status(failed(path, "can't be read")) : Status();
  ::close(*file);
  if (!done) return std::move(done).error();
  if (is_stale) return std::optional<IdFile>();
  fault = "is cut off, or of another version";
  return decode({text, static_cast<std::size_t>(got)});
}

// Has `path` hold `text`, all at once, for this user alone.
Status write_own(const std::string& path, const std::string& text) {
  static std::atomic<int> count{0};
  // A process of the same id, here or on another host, may have left a file of that name.
  constexpr int kMostNames = 1000;
  std::string temporary;
  int file = -1;
  for (int tries = 0; tries < kMostNames && file < 0; ++tries) {
    temporary = fmt::format("{}.{}-{}", path, ::getpid(), ++count);
    file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                  S_IRUSR | S_IWUSR);
    if (file < 0 && errno != EEXIST) break;
  }
  if (file < 0) return failed(temporary, "can't be created");
  // Hosts that share the file see what has left this one only.
  const bool whole =
      ::write(file, text.data(), text.size()) == std::ssize(text) && ::fsync(file) == 0;
  Status done = whole ? Status() : Status(failed(temporary, "can't be written"));
  ::close(file);
  if (done) done = remove_own(path);
  if (done && ::rename(temporary.c_str(), path.c_str()) != 0) {
    done = failed(path, "can't be written");
  }
  if (!done) ::unlink(temporary.c_str());
  return done;
}

// What this process would write, less the id.
IdFile own_file(const Launch& launch) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.run = digest(launch.rendezvous.run),
          .host = process_host(),
          .written = nanoseconds(now).count(),
          .ranks = launch.ranks,
          .process = ::getpid(),
          .id = {}};
}

Result<UniqueId> leave_id(Nccl& nccl, const Launch& launch) {
  const std::string& path = launch.rendezvous.endpoint;
  // Before anything that takes time: what an earlier run left should not be there to be taken.
  if (Status removed = remove_own(path); !removed) return std::move(removed).error();
  Result<UniqueId> id = nccl.unique_id();
  if (!id) return id;
  IdFile file = own_file(launch);
  file.id = *id;
  if (Status written = write_own(path, encode(file)); !written) {
    return std::move(written).error();
  }
  return id;
}

// Not one that has ended and that nobody has waited for, either.
bool is_alive(pid_t process) {
  if (::kill(process, 0) != 0) return errno != ESRCH;
  std::ifstream status(fmt::format("/proc/{}/stat", process));
  const std::string text((std::istreambuf_iterator<char>(status)), {});
  const std::size_t name_end = text.rfind(')');  // the state is behind it
  return name_end == std::string::npos || text.substr(name_end, 3) != ") Z";
}

// Why `file` is not what rank 0 of this run wrote; empty: it is. `oldest` is the time before which
// no rank 0 of this run can have come.
std::string fault_of(const IdFile& file, const IdFile& own, std::int64_t oldest) {
  if (file.run != own.run) return "is of another run";
  if (file.ranks != own.ranks) return fmt::format("is of a run of {} ranks", file.ranks);
  if (file.host != 0 && file.host == own.host) {
    if (is_alive(file.process)) return "";
    return fmt::format("was left by process {}, which has ended", file.process);
  }
  return file.written < oldest ? "was left by an earlier run" : "";
}

Result<UniqueId> await_id(const Launch& launch, Nanoseconds timeout) {
  constexpr nanoseconds kFirstPause = std::chrono::milliseconds(2);
  constexpr nanoseconds kLongestPause = std::chrono::milliseconds(100);
  const IdFile own = own_file(launch);
  const auto begin = steady_clock::now();
  for (nanoseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    std::string seen;
    const Result<std::optional<IdFile>> file = read_own(launch.rendezvous.endpoint, seen);
    if (!file) return file.error();
    if (*file) {
      seen = fault_of(**file, own, own.written - timeout.count);
      if (seen.empty()) return (*file)->id;
    }
    const nanoseconds left = nanoseconds(timeout.count) - (steady_clock::now() - begin);
    if (left > nanoseconds::zero()) {
      std::this_thread::sleep_for(std::min(pause, left));
      continue;
    }
    return Error(ErrorCode::unavailable,
                 fmt::format("rank {} of {} waited {:.3g} s for rank 0 at {} ({}), which {}: is "
                             "rank 0 running, and does it see the same file? docs/multi-node.md "
                             "has other ways to meet",
                             launch.rank, launch.ranks, static_cast<double>(timeout.count) / 1e9,
                             launch.rendezvous.endpoint, launch.rendezvous.source, seen));
  }
}

}  // namespace

std::uint64_t process_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = {};
  const ssize_t length = ::readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return boot.empty() || length <= 0 ? 0 : digest(boot + "/" + space);
}

std::string encode(const IdFile& file) {
  static_assert(sizeof(IdFile) == 4 * 8 + 2 * 4 + sizeof(UniqueId), "no byte is left out");
  std::string text(reinterpret_cast<const char*>(&file), sizeof file);
  return text + fmt::format("{:016x}", digest(text));
}

std::optional<IdFile> decode(std::string_view text) {
  IdFile file;
  if (text.size() < sizeof file) return {};
  std::memcpy(static_cast<void*>(&file), text.data(), sizeof file);
  return file.version == IdFile{}.version && text == encode(file) ? std::optional(file)
                                                                  : std::nullopt;
}

Environment& process_environment() {
  static ProcessEnvironment environment;
  return environment;
}

Result<UniqueId> rendezvous(Nccl& nccl, const Launch& launch, Environment& environment,
                            Nanoseconds timeout) {
  constexpr const char* kAddress = "NCCL_COMM_ID";
  if (launch.rendezvous.method == RendezvousMethod::file) {
    return launch.rank == 0 ? leave_id(nccl, launch) : await_id(launch, timeout);
  }
  const bool at_address = launch.rendezvous.method == RendezvousMethod::address;
  if (at_address && !environment.get(kAddress)) {
    environment.set(kAddress, launch.rendezvous.endpoint);
  }
  return nccl.unique_id();
}

void finish_rendezvous(const Launch& launch) {
  if (launch.rendezvous.method != RendezvousMethod::file || launch.rank != 0) return;
  std::string fault;
  const Result<std::optional<IdFile>> file = read_own(launch.rendezvous.endpoint, fault);
  if (!file || !*file) return;
  if ((*file)->host != process_host() || (*file)->process != ::getpid()) return;
  // What can't be removed is left to the next run, which does not take it.
  static_cast<void>(remove_own(launch.rendezvous.endpoint));
}

}  // namespace weir
