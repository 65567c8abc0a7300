// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "comm/numbers.h"

namespace weir {
namespace {

constexpr int kMostRanks = 1 << 24;
constexpr std::uint64_t kLastPort = 65535;
constexpr const char* kNcclAddress = "NCCL_COMM_ID";

// The names of the variables that say the same by each launcher, in the order in which launchers
// are looked for; and how to have all three set. srun's count of ranks is the step's: a job's batch
// script has a rank and SLURM_NTASKS too, though it runs once.
struct Launcher {
  std::string_view name;
  std::array<std::string_view, 3> variables;  // rank, ranks, local rank
  std::string_view remedy;
};
constexpr std::array<Launcher, 5> kLaunchers{{
    {"Weir's variables", {"WEIR_RANK", "WEIR_WORLD_SIZE", "WEIR_LOCAL_RANK"}, "set all three"},
    {"torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK"}, "start with torchrun --no-python"},
    {"Open MPI",
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
     "start with mpirun"},
    {"Hydra (MPICH)", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, "start with mpiexec.hydra"},
    {"srun", {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}, "start with srun"},
}};

Error wrong(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

std::string shown(std::string_view name, std::string_view value) {
  return fmt::format("{}=\"{}\"", name, value);
}

// "host:port", "[v6 address]:port".
bool is_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  const std::string_view inner = bracketed ? host.substr(1, host.size() - 2) : host;
  if (inner.find_first_of(" \t\r\n/,;=@$()*[]") != std::string_view::npos) return false;
  const auto colons = std::count(inner.begin(), inner.end(), ':');
  if (bracketed ? colons < 2 : colons > 0) return false;
  return whole_number(text.substr(colon + 1), kLastPort).value_or(0) > 0;
}

// Weir's own are meant for it, so half of them is a mistake. Half of another's may be left over
// from a script, and only matters if nothing else says which rank this is; and what Slurm sets
// outside a step says nothing of ranks. Null: no launcher's variables are set.
Result<const Launcher*> choose(const Environment& environment) {
  const auto is_set = [&](std::string_view name) { return value_of(environment, name) != nullptr; };
  const Launcher *whole = nullptr, *half = nullptr;
  for (const Launcher& launcher : kLaunchers) {
    const auto& names = launcher.variables;
    const auto set = std::count_if(names.begin(), names.end(), is_set);
    const bool says_nothing = set == 0 || (launcher.name == "srun" && !is_set(names[1]));
    const Launcher*& first = set == std::ssize(names) ? whole : half;
    if (first == nullptr && !says_nothing) first = &launcher;
  }
  if (half == nullptr || (whole != nullptr && half != &kLaunchers.front())) return whole;
  return wrong(fmt::format("only some of {} are set, which are those of {}: {}, or unset them",
                           fmt::join(half->variables, ", "), half->name, half->remedy));
}

// Where rank 0 listens, and which variables say so.
Status find_address(const Environment& environment, Launch& launch) {
  const auto set = [&](std::string address, std::string source) {
    launch.address = std::move(address);
    launch.source = std::move(source);
    return Status();
  };
  // NCCL itself follows it, whatever else is said.
  if (const auto* address = value_of(environment, kNcclAddress)) return set(*address, kNcclAddress);
  if (const auto* meet = value_of(environment, "WEIR_MEET")) {
    if (is_address(*meet)) return set(*meet, "WEIR_MEET");
    return wrong(shown("WEIR_MEET", *meet) +
                 " is not host:port, with a port of rank 0's host that nobody else uses");
  }
  const std::string* const host = value_of(environment, "MASTER_ADDR");
  if (host == nullptr) {
    return wrong(
        fmt::format("WEIR_MEET is not set, and {} does not say where rank 0 is: set it, "
                    "on every rank, to host:port of rank 0",
                    launch.launcher));
  }
  const std::string* const set_port = value_of(environment, "MASTER_PORT");
  const std::string port = set_port != nullptr ? *set_port : "";
  const std::uint64_t number = whole_number(port, kLastPort - 1).value_or(0);
  const bool bare_v6 = host->find(':') != std::string::npos && !host->starts_with('[');
  const std::string address =
      fmt::format("{}{}{}:{}", bare_v6 ? "[" : "", *host, bare_v6 ? "]" : "", number + 1);
  if (number > 0 && is_address(address)) {
    return set(address, "MASTER_ADDR, MASTER_PORT + 1, as the store has the port itself");
  }
  return wrong(
      fmt::format("{}, {}: not a host, and a port from 1 to 65534, before the one where "
                  "ranks meet: correct them, or set WEIR_MEET to host:port of rank 0",
                  shown("MASTER_ADDR", *host), shown("MASTER_PORT", port)));
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (const char* const* entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != text.npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

const std::string* value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? nullptr : &found->second;
}

Result<Launch> find_launch(const Environment& environment) {
  const Result<const Launcher*> chosen = choose(environment);
  if (!chosen) return chosen.error();
  if (*chosen == nullptr) {
    const std::string* const meet = value_of(environment, "WEIR_MEET");
    if (meet == nullptr) return Launch{};
    return wrong(shown("WEIR_MEET", *meet) +
                 " is set, and nothing says which rank this is: start with a launcher, or set "
                 "WEIR_RANK, WEIR_WORLD_SIZE and WEIR_LOCAL_RANK too, or unset it");
  }
  const auto& [name, variables, remedy] = **chosen;
  Launch launch;
  launch.launcher = name;
  launch.variables = fmt::format("{}", fmt::join(variables, ", "));
  int* const fields[] = {&launch.rank, &launch.ranks, &launch.local_rank};
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const std::string& value = *value_of(environment, variables[i]);  // choose() found it
    const auto number = whole_number(value, kMostRanks);
    if (!number) {
      return wrong(fmt::format("{} is not a whole number from 0 to {}", shown(variables[i], value),
                               kMostRanks));
    }
    *fields[i] = static_cast<int>(*number);
  }
  for (const std::size_t i : {0, 2}) {
    if (*fields[i] < launch.ranks) continue;
    return wrong(fmt::format("{}={} of {}={}: they count from 0", variables[i], *fields[i],
                             variables[1], launch.ranks));
  }
  if (launch.ranks == 1) return launch;
  Status found = find_address(environment, launch);
  return found ? Result<Launch>(std::move(launch)) : std::move(found).error();
}

std::string Launch::describe() const {
  std::string text = fmt::format("rank {} of {}", rank, ranks);
  if (launcher.empty()) return text + ": no launcher's variables are set";
  text += fmt::format(", local rank {}, by {} ({})", local_rank, launcher, variables);
  return address.empty() ? text : text + fmt::format("; meets rank 0 at {} ({})", address, source);
}

Result<UniqueId> rendezvous(Nccl& nccl, const Launch& launch) {
  const bool sets = !launch.address.empty() && launch.source != kNcclAddress;
  if (sets) ::setenv(kNcclAddress, launch.address.c_str(), 1);
  return nccl.unique_id();
}

void finish_rendezvous(const Launch& launch) {
  const bool sets = !launch.address.empty() && launch.source != kNcclAddress;
  if (sets) ::unsetenv(kNcclAddress);
}

}  // namespace weir
