// The launchers whose variables are known.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "weir/comm/launch.h"
#include "weir/result.h"

namespace weir {

enum class LauncherKind { weir, torchrun, open_mpi, hydra, srun };

// The names of the variables that say the same by each launcher. The first three must all be set.
struct Launcher {
  LauncherKind kind;
  std::string_view name;
  std::string_view rank;
  std::string_view ranks;
  std::string_view local_rank;
  std::string_view local_ranks;  // may be unset; empty: the launcher has none
  std::string_view start;        // how to have them set: a remedy
};

// In the order in which they are looked for. srun's count of ranks is the step's: a job's batch
// script has a rank and SLURM_NTASKS too, though it runs once.
inline constexpr std::array<Launcher, 5> kLaunchers{{
    {LauncherKind::weir, "Weir's variables", "WEIR_RANK", "WEIR_WORLD_SIZE", "WEIR_LOCAL_RANK",
     "WEIR_LOCAL_WORLD_SIZE", "set all three"},
    {LauncherKind::torchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "start with torchrun --no-python, which sets all three"},
    {LauncherKind::open_mpi, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "start with mpirun, which sets all three"},
    {LauncherKind::hydra, "Hydra (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS", "start with mpiexec.hydra, which sets all three"},
    {LauncherKind::srun, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "",
     "start with srun, which sets all three"},
}};

// "NAME=\"value\"", as messages have it.
std::string shown(std::string_view name, std::string_view value);

// NCCL follows NCCL_COMM_ID whatever else is said, and fails where it is no address. Errors:
// invalid_argument.
Status check_nccls_address(const Environment& environment);

// Where the ranks of `launch`, which `launcher` started, are to meet. Errors: invalid_argument.
Result<Rendezvous> find_rendezvous(const Environment& environment, const Launcher& launcher,
                                   const Launch& launch);

}  // namespace weir
