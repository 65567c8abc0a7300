#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

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

// What this process would write, less the id.
IdFile own_file(const Launch& launch) {
  return {.run = launch.rendezvous.run,
          .ranks = launch.ranks,
          .host = process_host(),
          .process = ::getpid(),
          .written = nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count(),
          .id = {}};
}

Result<UniqueId> leave_id(Nccl& nccl, const Launch& launch) {
  const std::string& path = launch.rendezvous.endpoint;
  // Before anything that takes time: what an earlier run left should not be there to be taken.
  if (Status removed = remove_own_file(path); !removed) return std::move(removed).error();
  Result<UniqueId> id = nccl.unique_id();
  if (!id) return id;
  IdFile file = own_file(launch);
  file.id = *id;
  if (Status written = write_own_file(path, encode(file)); !written) {
    return std::move(written).error();
  }
  return id;
}

// Why `file` is not what rank 0 of this run wrote; empty: it is. `oldest` is the time before which
// no rank 0 of this run can have come.
std::string fault_of(const IdFile& file, const IdFile& own, std::int64_t oldest) {
  if (file.run != decode(encode(own))->run) return fmt::format("is of another run ({})", file.run);
  if (file.ranks != own.ranks) return fmt::format("is of a run of {} ranks", file.ranks);
  if (!file.host.empty() && file.host == own.host) {
    if (::kill(file.process, 0) == 0 || errno != ESRCH) return "";
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
    const Result<std::optional<std::string>> text = read_own_file(launch.rendezvous.endpoint);
    if (!text) return text.error();
    std::string seen = "is not there";
    if (*text) {
      const std::optional<IdFile> file = decode(**text);
      seen = file ? fault_of(*file, own, own.written - timeout.count)
                  : "is cut off, or of another version";
      if (seen.empty()) return file->id;
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
  const Result<std::optional<std::string>> text = read_own_file(launch.rendezvous.endpoint);
  if (!text || !*text) return;
  const std::optional<IdFile> file = decode(**text);
  if (!file || file->host != process_host() || file->process != ::getpid()) return;
  // What can't be removed is left to the next run, which does not take it.
  static_cast<void>(remove_own_file(launch.rendezvous.endpoint));
}

}  // namespace weir
