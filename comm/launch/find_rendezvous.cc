#include <fmt/format.h>
#include <unistd.h>

#include "comm/digest.h"
#include "comm/launch/host_list.h"
#include "comm/launch/launchers.h"
#include "comm/numbers.h"

namespace weir {
namespace {

constexpr std::uint64_t kLastPort = 65535;

Error wrong(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

std::string with_port(const std::string& host, std::uint64_t port) {
  const bool bare_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return fmt::format("{}{}{}:{}", bare_v6 ? "[" : "", host, bare_v6 ? "]" : "", port);
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

// What names the run on every host of it; on one host there may be more (below).
std::optional<std::string> run_of(const Environment& environment, LauncherKind kind) {
  const auto or_empty = [&](const char* name) { return environment.get(name).value_or(""); };
  switch (kind) {
    case LauncherKind::weir:
    case LauncherKind::hydra:
      return {};
    case LauncherKind::torchrun:
      // The run's id is "none" unless somebody gave one; the port is the run's own while it lasts.
      if (or_empty("TORCHELASTIC_RUN_ID").empty() && or_empty("MASTER_PORT").empty()) return {};
      return fmt::format("torchrun {} {}:{} restart {}", or_empty("TORCHELASTIC_RUN_ID"),
                         or_empty("MASTER_ADDR"), or_empty("MASTER_PORT"),
                         or_empty("TORCHELASTIC_RESTART_COUNT"));
    case LauncherKind::open_mpi:
      for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
        if (const auto job = environment.get(name)) return "mpirun " + *job;
      }
      return {};
    case LauncherKind::srun:
      if (or_empty("SLURM_JOB_ID").empty()) return {};
      return fmt::format("srun {}.{} restart {}", or_empty("SLURM_JOB_ID"),
                         or_empty("SLURM_STEP_ID"), or_empty("SLURM_RESTART_COUNT"));
  }
  return {};
}

std::optional<std::string> run_on_this_host(const Environment& environment, LauncherKind kind) {
  if (kind != LauncherKind::hydra) return run_of(environment, kind);
  const auto proxy = environment.ancestor("hydra_pmi_proxy");
  if (!proxy) return {};
  return "mpiexec.hydra " + *proxy;
}

Result<Rendezvous> said_by_user(const std::string& value, std::optional<std::string> run) {
  constexpr std::string_view kFile = "file:";
  if (value.starts_with(kFile)) {
    std::string path = value.substr(kFile.size());
    if (path.starts_with('/') && !path.ends_with('/')) {
      return Rendezvous{RendezvousMethod::file, std::move(path), "WEIR_MEET",
                        std::move(run).value_or("")};
    }
  } else if (is_address(value)) {
    return Rendezvous{RendezvousMethod::address, value, "WEIR_MEET", ""};
  }
  return wrong(shown("WEIR_MEET", value) +
               ": allowed is host:port, with a port of rank 0's host that nobody else uses, or "
               "file:/path, of a file that every rank can reach");
}

Rendezvous default_file(const Environment& environment, std::string run) {
  const std::string folder = environment.get("TMPDIR").value_or("/tmp");
  return {RendezvousMethod::file,
          fmt::format("{}/weir-meet-{}-{:016x}", folder, ::geteuid(), digest(run)),
          "all ranks are on one host", std::move(run)};
}

// Below the ports that the system hands out by itself; neighbouring jobs and steps differ.
std::optional<std::uint64_t> port_of_job(const Environment& environment) {
  constexpr std::uint64_t kFirst = 20000;
  constexpr std::uint64_t kPorts = 12000;
  constexpr std::uint64_t kSteps = 16;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  const auto job = whole_number(environment.get("SLURM_JOB_ID").value_or(""), kMost);
  if (!job) return {};
  const auto step = whole_number(environment.get("SLURM_STEP_ID").value_or(""), kMost);
  return kFirst + (*job * kSteps + step.value_or(0)) % kPorts;
}

Result<Rendezvous> at_master(const Environment& environment, const std::string& host,
                             std::optional<std::uint64_t> port_of_job) {
  const auto text = environment.get("MASTER_PORT");
  if (!text && port_of_job) {
    return Rendezvous{RendezvousMethod::address, with_port(host, *port_of_job),
                      "MASTER_ADDR, a port by SLURM_JOB_ID", ""};
  }
  if (!text) {
    return wrong(shown("MASTER_ADDR", host) +
                 " is set, and MASTER_PORT is not: set WEIR_MEET to host:port of rank 0");
  }
  const auto port = whole_number(*text, kLastPort);
  if (!port || *port == 0) {
    return wrong(shown("MASTER_PORT", *text) + " is not a port: ports are 1 to 65535");
  }
  if (*port == kLastPort) {
    return wrong(
        "MASTER_PORT=65535 leaves no port after it, where ranks meet: choose another, or set "
        "WEIR_MEET to host:port of rank 0");
  }
  return Rendezvous{RendezvousMethod::address, with_port(host, *port + 1),
                    "MASTER_ADDR, MASTER_PORT + 1, as the store has the port itself", ""};
}

// Rank 0 runs on the first host of the step, which need not be the first of the job.
Result<Rendezvous> at_first_host(const Environment& environment, std::uint64_t port) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const auto list = environment.get(name);
    if (!list) continue;
    const auto hosts = expand_hosts(*list, 1);
    if (!hosts || hosts->empty()) {
      return wrong(shown(name, *list) +
                   " is not a list of hosts: set WEIR_MEET to host:port of rank 0");
    }
    return Rendezvous{RendezvousMethod::address, with_port(hosts->front(), port),
                      fmt::format("the first of {}, a port by SLURM_JOB_ID", name), ""};
  }
  return wrong("SLURM_STEP_NODELIST is not set: set WEIR_MEET to host:port of rank 0");
}

}  // namespace

Status check_nccls_address(const Environment& environment) {
  const auto address = environment.get("NCCL_COMM_ID");
  if (!address || is_address(*address)) return {};
  return wrong(shown("NCCL_COMM_ID", *address) +
               " is not host:port, of rank 0, and NCCL fails with it: correct or unset it");
}

Result<Rendezvous> find_rendezvous(const Environment& environment, const Launcher& launcher,
                                   const Launch& launch) {
  if (launch.ranks == 1) return Rendezvous{};
  // NCCL itself follows it, whatever else is said.
  if (const auto address = environment.get("NCCL_COMM_ID")) {
    return Rendezvous{RendezvousMethod::address, *address, "NCCL_COMM_ID", ""};
  }
  if (const auto place = environment.get("WEIR_MEET")) {
    return said_by_user(*place, run_of(environment, launcher.kind));
  }
  if (launch.local_ranks == launch.ranks) {
    if (auto run = run_on_this_host(environment, launcher.kind)) {
      return default_file(environment, *std::move(run));
    }
  }
  const auto port = launcher.kind == LauncherKind::srun ? port_of_job(environment) : std::nullopt;
  if (const auto host = environment.get("MASTER_ADDR")) {
    return at_master(environment, *host, port);
  }
  if (port) return at_first_host(environment, *port);
  return wrong(fmt::format(
      "WEIR_MEET is not set, and {} does not say where rank 0 is: set it, on every rank, to "
      "host:port of rank 0, or to file:/path in a folder that every rank can reach",
      launcher.name));
}

}  // namespace weir
