#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/launch/host_list.h"
#include "comm/launch/launchers.h"
#include "comm/numbers.h"

namespace weir {
namespace {

constexpr int kMostRanks = 1 << 24;

Error wrong(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

Result<int> read_number(const Environment& environment, std::string_view name) {
  const std::string value = environment.get(std::string(name)).value_or("");
  const auto number = whole_number(value, kMostRanks);
  if (number) return static_cast<int>(*number);
  const bool negative = value.size() > 1 && value.starts_with('-');
  const bool digits = value.find_first_not_of("0123456789", negative ? 1 : 0) == std::string::npos;
  return wrong(shown(name, value) + (digits ? " is out of range" : " is not a whole number") +
               ": it must be one from 0 to " + std::to_string(kMostRanks));
}

std::vector<std::string_view> names_of(const Environment& environment, const Launcher& launcher,
                                       bool set) {
  std::vector<std::string_view> names;
  for (const std::string_view name : {launcher.rank, launcher.ranks, launcher.local_rank}) {
    if (environment.get(std::string(name)).has_value() == set) names.push_back(name);
  }
  return names;
}

bool is_set(const Environment& environment, const Launcher& launcher) {
  return names_of(environment, launcher, false).empty();
}

// Of Weir's own variables, which nobody else sets, the count of this host's ranks is one too.
std::vector<std::string_view> all_set(const Environment& environment, const Launcher& launcher) {
  std::vector<std::string_view> names = names_of(environment, launcher, true);
  const bool is_weirs = launcher.kind == LauncherKind::weir;
  if (is_weirs && environment.get(std::string(launcher.local_ranks))) {
    names.push_back(launcher.local_ranks);
  }
  return names;
}

// What else Slurm sets outside a step says nothing of ranks.
bool is_half_set(const Environment& environment, const Launcher& launcher) {
  if (launcher.kind == LauncherKind::srun && !environment.get(std::string(launcher.ranks))) {
    return false;
  }
  return !is_set(environment, launcher) && !all_set(environment, launcher).empty();
}

Error half_set(const Environment& environment, const Launcher& launcher) {
  const std::vector<std::string_view> names = all_set(environment, launcher);
  std::vector<std::string> set;
  set.reserve(names.size());
  for (const std::string_view name : names) {
    set.push_back(shown(name, *environment.get(std::string(name))));
  }
  return wrong(fmt::format("{} of {} set, and {} not: {}, or unset {}", fmt::join(set, ", "),
                           launcher.name, fmt::join(names_of(environment, launcher, false), ", "),
                           launcher.start, fmt::join(names, ", ")));
}

// Weir's own are meant for it, so half of them is a mistake. Half of another's may be left over
// from a script, and only matters if nothing else says which rank this is.
Result<const Launcher*> choose(const Environment& environment) {
  if (is_half_set(environment, kLaunchers[0])) return half_set(environment, kLaunchers[0]);
  for (const Launcher& launcher : kLaunchers) {
    if (is_set(environment, launcher)) return &launcher;
  }
  for (const Launcher& launcher : kLaunchers) {
    if (is_half_set(environment, launcher)) return half_set(environment, launcher);
  }
  return nullptr;
}

Status read_slurms_tasks(const Environment& environment, Launch& launch) {
  constexpr const char* kList = "SLURM_STEP_TASKS_PER_NODE";
  constexpr const char* kNode = "SLURM_NODEID";
  const auto list = environment.get(kList);
  if (!list || !environment.get(kNode)) return {};
  const Result<int> node = read_number(environment, kNode);
  if (!node) return node.error();
  const auto tasks = tasks_on_node(*list, *node);
  if (!tasks) {
    return wrong(
        shown(kList, *list) +
        fmt::format(" does not say how many tasks node {} ({}) has, as 2(x3),1 does: start "
                    "with srun, which sets both, or unset it",
                    *node, kNode));
  }
  launch.local_ranks = *tasks;
  launch.variables += fmt::format(", {}", kList);
  return {};
}

Status read_local_ranks(const Environment& environment, const Launcher& launcher, Launch& launch) {
  launch.local_ranks = 0;
  if (launcher.kind == LauncherKind::srun) return read_slurms_tasks(environment, launch);
  if (!environment.get(std::string(launcher.local_ranks))) return {};
  const Result<int> local_ranks = read_number(environment, launcher.local_ranks);
  if (!local_ranks) return local_ranks.error();
  launch.local_ranks = *local_ranks;
  launch.variables += fmt::format(", {}", launcher.local_ranks);
  if (*local_ranks >= 1) return {};
  return wrong(fmt::format("{}=0: the process itself is one", launcher.local_ranks));
}

Status check(const Launcher& launcher, const Launch& launch) {
  if (launch.ranks < 1) return wrong(fmt::format("{}=0: there is at least one", launcher.ranks));
  if (launch.rank >= launch.ranks) {
    return wrong(fmt::format("{}={} of {}={}: ranks count from 0, so {} is the highest",
                             launcher.rank, launch.rank, launcher.ranks, launch.ranks,
                             launch.ranks - 1));
  }
  const bool known = launch.local_ranks != 0;
  const std::string_view what = known ? launcher.local_ranks : launcher.ranks;
  const int most = known ? launch.local_ranks : launch.ranks;
  if (launch.local_rank >= most) {
    return wrong(fmt::format("{}={} of {}={}: local ranks count from 0, so {} is the highest",
                             launcher.local_rank, launch.local_rank,
                             what.empty() ? "SLURM_STEP_TASKS_PER_NODE" : what, most, most - 1));
  }
  if (launch.local_ranks > launch.ranks) {
    return wrong(fmt::format(
        "{}={} is more than {}={}: a host can't have more ranks than there are",
        launcher.local_ranks.empty() ? "SLURM_STEP_TASKS_PER_NODE" : launcher.local_ranks,
        launch.local_ranks, launcher.ranks, launch.ranks));
  }
  return {};
}

// The others' variables that say something else than `launch`.
void note_others(const Environment& environment, const Launcher& chosen, Launch& launch) {
  for (const Launcher& other : kLaunchers) {
    if (other.kind == chosen.kind) continue;
    if (!is_set(environment, other) && !is_half_set(environment, other)) continue;
    std::vector<std::string> differ;
    const auto compare = [&](std::string_view name, int value) {
      const auto text = environment.get(std::string(name));
      if (text && whole_number(*text, kMostRanks) != static_cast<std::uint64_t>(value)) {
        differ.push_back(fmt::format("{}={}", name, *text));
      }
    };
    compare(other.rank, launch.rank);
    compare(other.ranks, launch.ranks);
    compare(other.local_rank, launch.local_rank);
    if (differ.empty()) continue;
    launch.notes.push_back(
        fmt::format("{} of {} not followed", fmt::join(differ, ", "), other.name));
  }
}

Result<Launch> alone(const Environment& environment) {
  if (const auto place = environment.get("WEIR_MEET")) {
    return wrong(shown("WEIR_MEET", *place) +
                 " is set, and nothing says which rank this is: start with a launcher, or set "
                 "WEIR_RANK, WEIR_WORLD_SIZE and WEIR_LOCAL_RANK too, or unset it");
  }
  Launch launch;
  for (const Launcher& launcher : kLaunchers) {
    const std::string count(launcher.local_ranks);
    if (count.empty() || !environment.get(count)) continue;
    launch.notes.push_back(fmt::format("{}={} alone of {} not followed", count,
                                       *environment.get(count), launcher.name));
  }
  if (const auto job = environment.get("SLURM_JOB_ID")) {
    launch.notes.push_back(fmt::format("in Slurm's job {}, but not started by srun", *job));
  }
  return launch;
}

}  // namespace

std::string shown(std::string_view name, std::string_view value) {
  return fmt::format("{}=\"{}\"", name, value);
}

Result<Launch> find_launch(const Environment& environment) {
  if (Status good = check_nccls_address(environment); !good) return good.error();
  const Result<const Launcher*> chosen = choose(environment);
  if (!chosen) return chosen.error();
  if (*chosen == nullptr) return alone(environment);

  const Launcher& launcher = **chosen;
  Launch launch;
  launch.launcher = launcher.name;
  launch.variables = fmt::format("{}, {}, {}", launcher.rank, launcher.ranks, launcher.local_rank);
  const std::pair<std::string_view, int*> numbers[] = {{launcher.rank, &launch.rank},
                                                       {launcher.ranks, &launch.ranks},
                                                       {launcher.local_rank, &launch.local_rank}};
  for (const auto& [name, field] : numbers) {
    const Result<int> number = read_number(environment, name);
    if (!number) return number.error();
    *field = *number;
  }
  if (Status status = read_local_ranks(environment, launcher, launch); !status) {
    return status.error();
  }
  if (Status status = check(launcher, launch); !status) return status.error();
  if (launch.ranks == 1) launch.local_ranks = 1;

  Result<Rendezvous> found = find_rendezvous(environment, launcher, launch);
  if (!found) return std::move(found).error();
  launch.rendezvous = *std::move(found);
  note_others(environment, launcher, launch);
  return launch;
}

std::string Launch::describe() const {
  std::string text = fmt::format("rank {} of {}", rank, ranks);
  if (launcher.empty()) {
    text += ": no launcher's variables are set";
  } else {
    text += fmt::format(", local rank {}", local_rank);
    if (local_ranks != 0) text += fmt::format(" of {}", local_ranks);
    text += fmt::format(", by {} ({})", launcher, variables);
  }
  if (rendezvous.method != RendezvousMethod::none) {
    text += fmt::format("; meets rank 0 at {}{} ({})",
                        rendezvous.method == RendezvousMethod::file ? "the file " : "",
                        rendezvous.endpoint, rendezvous.source);
  }
  for (const std::string& note : notes) text += "; " + note;
  return text;
}

}  // namespace weir
