#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/launch/processes.h"
#include "comm/launch/rendezvous_file.h"
#include "weir/comm/launch.h"

namespace weir {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

std::int64_t time_of_day() {
  return std::chrono::duration_cast<nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What this process would write, less the id.
RendezvousFile own_file(const Launch& launch) {
  const std::optional<RunningProcess> self = running_process(::getpid());
  return {.run = on_one_line(launch.rendezvous.run),
          .ranks = launch.ranks,
          .domain = self ? process_domain() : "",
          .process = ::getpid(),
          .process_started = self ? self->started : 0,
          .written = time_of_day(),
          .id = {}};
}

bool is_by_same_process(const RendezvousFile& a, const RendezvousFile& b) {
  return a.domain == b.domain && a.process == b.process && a.process_started == b.process_started;
}

Result<UniqueId> rendezvous_at_address(Nccl& nccl, const Launch& launch, Environment& environment) {
  constexpr const char* kAddress = "NCCL_COMM_ID";
  if (!environment.get(kAddress)) environment.set(kAddress, launch.rendezvous.endpoint);
  return nccl.unique_id();
}

Result<UniqueId> leave_id(Nccl& nccl, const Launch& launch) {
  // Before anything that takes time: what an earlier run left should not be there to be taken.
  if (Status removed = remove_own_file(launch.rendezvous.endpoint); !removed)
    return removed.error();
  Result<UniqueId> id = nccl.unique_id();
  if (!id) return id;
  RendezvousFile file = own_file(launch);
  file.id = *id;
  if (Status written = write_own_file(launch.rendezvous.endpoint, encode(file)); !written) {
    return written.error();
  }
  return id;
}

// Why `file` is not what rank 0 of this run wrote; empty: it is. `oldest` is the time before which
// no rank 0 of this run can have come.
std::string fault_of(const RendezvousFile& file, const RendezvousFile& own, std::int64_t oldest) {
  if (file.run != own.run) return fmt::format("is of another run ({})", file.run);
  if (file.ranks != own.ranks) return fmt::format("is of a run of {} ranks", file.ranks);
  if (!file.domain.empty() && file.domain == own.domain) {
    const std::optional<RunningProcess> writer = running_process(file.process);
    if (writer && writer->started == file.process_started) return "";
    return fmt::format("was left by process {}, which has ended", file.process);
  }
  return file.written < oldest ? "was left by an earlier run" : "";
}

Error missing(const Launch& launch, Nanoseconds timeout, const std::string& seen) {
  constexpr double kSecond = 1e9;
  return {ErrorCode::unavailable,
          fmt::format("rank {} of {} waited {:.3g} s for rank 0 at {} ({}), which {}: is rank 0 "
                      "running, and does it see the same file? docs/multi-node.md has other ways "
                      "to meet",
                      launch.rank, launch.ranks, static_cast<double>(timeout.count) / kSecond,
                      launch.rendezvous.endpoint, launch.rendezvous.source, seen)};
}

Result<UniqueId> await_id(const Launch& launch, Nanoseconds timeout) {
  constexpr nanoseconds kFirstPause = std::chrono::milliseconds(2);
  constexpr nanoseconds kLongestPause = std::chrono::milliseconds(100);
  const RendezvousFile own = own_file(launch);
  const auto begin = steady_clock::now();
  for (nanoseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const Result<std::optional<std::string>> text = read_own_file(launch.rendezvous.endpoint);
    if (!text) return text.error();
    std::string seen = "is not there";
    if (*text) {
      const std::optional<RendezvousFile> file = decode(**text);
      seen = file ? fault_of(*file, own, own.written - timeout.count)
                  : "is cut off, or of another version";
      if (seen.empty()) return file->id;
    }
    const nanoseconds left = nanoseconds(timeout.count) - (steady_clock::now() - begin);
    if (left <= nanoseconds::zero()) return missing(launch, timeout, seen);
    std::this_thread::sleep_for(std::min(pause, left));
  }
}

}  // namespace

Result<UniqueId> rendezvous(Nccl& nccl, const Launch& launch, Environment& environment,
                            Nanoseconds timeout) {
  switch (launch.rendezvous.method) {
    case RendezvousMethod::none:
      return nccl.unique_id();
    case RendezvousMethod::address:
      return rendezvous_at_address(nccl, launch, environment);
    case RendezvousMethod::file:
      return launch.rank == 0 ? leave_id(nccl, launch) : await_id(launch, timeout);
  }
  return Error(ErrorCode::invalid_argument, "the launch has no such rendezvous method");
}

void finish_rendezvous(const Launch& launch) {
  if (launch.rendezvous.method != RendezvousMethod::file || launch.rank != 0) return;
  const Result<std::optional<std::string>> text = read_own_file(launch.rendezvous.endpoint);
  if (!text || !*text) return;
  const std::optional<RendezvousFile> file = decode(**text);
  if (!file || !is_by_same_process(*file, own_file(launch))) return;
  // What can't be removed is left to the next run, which does not take it.
  static_cast<void>(remove_own_file(launch.rendezvous.endpoint));
}

}  // namespace weir
