// SPDX-License-Identifier: Apache-2.0
// The launchers whose variables are known.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "weir/comm/launch.h"
#include "weir/result.h"

namespace weir {

// The names of the variables that say the same by each launcher. The first three must all be set.
struct Launcher {
  std::string_view name;
  std::string_view rank;
  std::string_view ranks;
  std::string_view local_rank;
  std::string_view local_ranks;  // may be unset; empty: the launcher has none
  std::string_view start;        // how to have them set: a remedy
  // Together they name the run, the same on each rank and another for each run: the file of ranks
  // on one host is named after them. One at least must be set.
  std::array<std::string_view, 4> run{};
};

// In the order in which they are looked for. srun's count of ranks is the step's: a job's batch
// script has a rank and SLURM_NTASKS too, though it runs once.
inline constexpr std::array<Launcher, 5> kLaunchers{{
    {"Weir's variables", "WEIR_RANK", "WEIR_WORLD_SIZE", "WEIR_LOCAL_RANK", "WEIR_LOCAL_WORLD_SIZE",
     "set all three"},
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     "start with torchrun --no-python, which sets all three",
     {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     "start with mpirun, which sets all three",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"Hydra (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     "start with mpiexec.hydra, which sets all three"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "",
     "start with srun, which sets all three"},
}};

// The first host of a list of Slurm's: gpu003 of "gpu[003-005,12]". Nothing: it is malformed.
std::optional<std::string> first_host(std::string_view list);

}  // namespace weir
