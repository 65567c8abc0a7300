// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <limits>
#include <vector>

#include "comm/digest.h"
#include "comm/launch/launchers.h"
#include "comm/numbers.h"

namespace weir {
namespace {

constexpr int kMostRanks = 1 << 24;
constexpr std::uint64_t kLastPort = 65535;

Error wrong(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

std::string shown(std::string_view name, std::string_view value) {
  return fmt::format("{}=\"{}\"", name, value);
}

std::optional<std::string> get(const Environment& environment, std::string_view name) {
  return name.empty() ? std::nullopt : environment.get(std::string(name));
}

Result<int> read_number(const Environment& environment, std::string_view name) {
  const std::string value = get(environment, name).value_or("");
  const auto number = whole_number(value, kMostRanks);
  if (number) return static_cast<int>(*number);
  return wrong(
      fmt::format("{} is not a whole number from 0 to {}", shown(name, value), kMostRanks));
}

// "host:port", "[v6 address]:port".
bool is_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  if (host.find_first_of(":[]") != std::string_view::npos && !bracketed) return false;
  return whole_number(text.substr(colon + 1), kLastPort).value_or(0) > 0;
}

Rendezvous at_address(const std::string& host, std::uint64_t port, std::string source) {
  const bool bare_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return {RendezvousMethod::address,
          fmt::format("{}{}{}:{}", bare_v6 ? "[" : "", host, bare_v6 ? "]" : "", port),
          std::move(source), ""};
}

// Weir's own are meant for it, so half of them is a mistake. Half of another's may be left over
// from a script, and only matters if nothing else says which rank this is; and what Slurm sets
// outside a step says nothing of ranks. Null: no launcher's variables are set.
Result<const Launcher*> choose(const Environment& environment) {
  const Launcher* chosen = nullptr;
  std::optional<Error> half_set;
  for (const Launcher& launcher : kLaunchers) {
    const bool is_weirs = &launcher == &kLaunchers.front();
    std::vector<std::string> set, missing;
    for (const std::string_view name : {launcher.rank, launcher.ranks, launcher.local_rank}) {
      const auto value = get(environment, name);
      (value ? set : missing).push_back(value ? shown(name, *value) : std::string(name));
    }
    if (missing.empty() && chosen == nullptr) chosen = &launcher;
    const auto local_ranks = get(environment, launcher.local_ranks);
    if (is_weirs && local_ranks) set.push_back(shown(launcher.local_ranks, *local_ranks));
    const bool is_step = launcher.name != "srun" || get(environment, launcher.ranks);
    if (missing.empty() || set.empty() || !is_step || half_set) continue;
    half_set = wrong(fmt::format("{} of {} set, and {} not: {}, or unset what is set",
                                 fmt::join(set, ", "), launcher.name, fmt::join(missing, ", "),
                                 launcher.start));
    if (is_weirs) return *half_set;
  }
  if (chosen == nullptr && half_set) return *half_set;
  return chosen;
}

Status below(std::string_view name, int value, std::string_view count_name, int count) {
  if (value < count) return {};
  if (count < 1) return wrong(fmt::format("{}={}: there is at least one", count_name, count));
  return wrong(fmt::format("{}={} of {}={}: they count from 0, so {} is the highest", name, value,
                           count_name, count, count - 1));
}

// What names the run; nothing: the launcher does not.
std::optional<std::string> run_of(const Environment& environment, const Launcher& launcher) {
  std::string run(launcher.name);
  bool named = false;
  for (const std::string_view name : launcher.run) {
    const auto value = get(environment, name);
    named |= value.has_value();
    run += ' ' + value.value_or("");
  }
  return named ? std::optional(run) : std::nullopt;
}

Result<Rendezvous> said_by_user(const std::string& value, std::string run) {
  constexpr std::string_view kFile = "file:";
  if (value.starts_with(kFile)) {
    std::string path = value.substr(kFile.size());
    if (path.starts_with('/') && !path.ends_with('/')) {
      return Rendezvous{RendezvousMethod::file, std::move(path), "WEIR_MEET", std::move(run)};
    }
  } else if (is_address(value)) {
    return Rendezvous{RendezvousMethod::address, value, "WEIR_MEET", ""};
  }
  return wrong(shown("WEIR_MEET", value) +
               ": allowed is host:port, with a port of rank 0's host that nobody else uses, or "
               "file:/path, of a file that every rank can reach");
}

// Below the ports that the system hands out by itself; neighbouring jobs and steps differ. Zero:
// there is no job.
std::uint64_t port_of_job(const Environment& environment) {
  constexpr std::uint64_t kFirst = 20000, kPorts = 12000, kSteps = 16;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();  // as Slurm's are
  const auto job = whole_number(environment.get("SLURM_JOB_ID").value_or(""), kMost);
  if (!job) return 0;
  const auto step = whole_number(environment.get("SLURM_STEP_ID").value_or(""), kMost);
  return kFirst + (*job * kSteps + step.value_or(0)) % kPorts;
}

Result<Rendezvous> at_master(const Environment& environment, const std::string& host) {
  const std::string port = environment.get("MASTER_PORT").value_or("");
  const std::uint64_t number = whole_number(port, kLastPort - 1).value_or(0);
  if (number > 0) {
    return at_address(host, number + 1,
                      "MASTER_ADDR, MASTER_PORT + 1, as the store has the port itself");
  }
  return wrong(shown("MASTER_PORT", port) +
               " is not a port from 1 to 65534, before the one where ranks meet: correct it, or "
               "set WEIR_MEET to host:port of rank 0");
}

// Rank 0 runs on the first host of the step, which need not be the first of the job.
Result<Rendezvous> at_first_host(const Environment& environment, std::uint64_t port) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const auto list = environment.get(name);
    if (!list) continue;
    if (const auto host = first_host(*list)) {
      return at_address(*host, port, fmt::format("the first of {}, a port by SLURM_JOB_ID", name));
    }
    return wrong(shown(name, *list) +
                 " is not a list of hosts: set WEIR_MEET to host:port of rank 0");
  }
  return wrong("SLURM_STEP_NODELIST is not set: set WEIR_MEET to host:port of rank 0");
}

Result<Rendezvous> find_rendezvous(const Environment& environment, const Launcher& launcher,
                                   const Launch& launch) {
  if (launch.ranks == 1) return Rendezvous{};
  // NCCL itself follows it, whatever else is said.
  if (const auto address = environment.get("NCCL_COMM_ID")) {
    return Rendezvous{RendezvousMethod::address, *address, "NCCL_COMM_ID", ""};
  }
  std::optional<std::string> run = run_of(environment, launcher);
  if (const auto place = environment.get("WEIR_MEET")) {
    return said_by_user(*place, std::move(run).value_or(""));
  }
  if (run && launch.local_ranks == launch.ranks) {
    const std::string folder = environment.get("TMPDIR").value_or("/tmp");
    std::string path = fmt::format("{}/weir-meet-{}-{:016x}", folder, ::geteuid(), digest(*run));
    return Rendezvous{RendezvousMethod::file, std::move(path), "all ranks are on one host", *run};
  }
  const auto job_port = launcher.name == "srun" ? port_of_job(environment) : 0;
  if (const auto host = environment.get("MASTER_ADDR")) {
    if (job_port == 0 || environment.get("MASTER_PORT")) return at_master(environment, *host);
    return at_address(*host, job_port, "MASTER_ADDR, a port by SLURM_JOB_ID");
  }
  if (job_port != 0) return at_first_host(environment, job_port);
  return wrong(fmt::format(
      "WEIR_MEET is not set, and {} does not say where rank 0 is: set it, on every rank, to "
      "host:port of rank 0, or to file:/path in a folder that every rank can reach",
      launcher.name));
}

}  // namespace

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    const std::size_t open = list.find_first_of("[],");
    host += list.substr(0, open);
    if (open == std::string_view::npos) break;
    list.remove_prefix(open);
    if (list.front() == ',') break;
    const std::size_t close = list.find(']');
    if (list.front() == ']' || close == std::string_view::npos) return {};
    const std::string_view number = list.substr(1, list.find_first_of("-,]") - 1);
    if (!whole_number(number, ~std::uint64_t{0})) return {};
    host += number;
    list.remove_prefix(close + 1);
  }
  return host.empty() ? std::nullopt : std::optional(host);
}

Result<Launch> find_launch(const Environment& environment) {
  if (const auto address = environment.get("NCCL_COMM_ID"); address && !is_address(*address)) {
    return wrong(shown("NCCL_COMM_ID", *address) +
                 " is not host:port, of rank 0, and NCCL fails with it: correct or unset it");
  }
  const Result<const Launcher*> chosen = choose(environment);
  if (!chosen) return chosen.error();
  if (*chosen == nullptr) {
    const auto place = environment.get("WEIR_MEET");
    if (!place) return Launch{};
    return wrong(shown("WEIR_MEET", *place) +
                 " is set, and nothing says which rank this is: start with a launcher, or set "
                 "WEIR_RANK, WEIR_WORLD_SIZE and WEIR_LOCAL_RANK too, or unset it");
  }

  const Launcher& launcher = **chosen;
  Launch launch;
  launch.launcher = launcher.name;
  launch.local_ranks = 0;
  const std::pair<std::string_view, int*> numbers[] = {{launcher.rank, &launch.rank},
                                                       {launcher.ranks, &launch.ranks},
                                                       {launcher.local_rank, &launch.local_rank},
                                                       {launcher.local_ranks, &launch.local_ranks}};
  for (const auto& [name, field] : numbers) {
    if (!get(environment, name)) continue;  // the last alone may be missing
    const Result<int> number = read_number(environment, name);
    if (!number) return number.error();
    *field = *number;
    launch.variables += fmt::format("{}{}", launch.variables.empty() ? "" : ", ", name);
  }
  const bool counted = get(environment, launcher.local_ranks).has_value();
  Status good = below(launcher.rank, launch.rank, launcher.ranks, launch.ranks);
  if (good) {
    good = below(launcher.local_rank, launch.local_rank,
                 counted ? launcher.local_ranks : launcher.ranks,
                 counted ? launch.local_ranks : launch.ranks);
  }
  if (good && launch.local_ranks > launch.ranks) {
    good =
        wrong(fmt::format("{}={} is more than {}={}: a host can't have more ranks than there are",
                          launcher.local_ranks, launch.local_ranks, launcher.ranks, launch.ranks));
  }
  if (!good) return std::move(good).error();
  if (launch.ranks == 1) launch.local_ranks = 1;

  Result<Rendezvous> found = find_rendezvous(environment, launcher, launch);
  if (!found) return std::move(found).error();
  launch.rendezvous = *std::move(found);
  return launch;
}

std::string Launch::describe() const {
  std::string text = fmt::format("rank {} of {}", rank, ranks);
  if (launcher.empty()) return text + ": no launcher's variables are set";
  text += fmt::format(", local rank {}", local_rank);
  if (local_ranks != 0) text += fmt::format(" of {}", local_ranks);
  text += fmt::format(", by {} ({})", launcher, variables);
  if (rendezvous.method == RendezvousMethod::none) return text;
  return text + fmt::format("; meets rank 0 at {}{} ({})",
                            rendezvous.method == RendezvousMethod::file ? "the file " : "",
                            rendezvous.endpoint, rendezvous.source);
}

}  // namespace weir
