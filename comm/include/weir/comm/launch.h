// SPDX-License-Identifier: Apache-2.0
// How a process learns its rank, and how the ranks find each other: from the variables that the
// launcher sets. Weir runs no store of its own: ranks meet at an address, through NCCL itself. A
// program that has MPI or a store of its own needs none of this: it sends rank 0's
// Nccl::unique_id() to the other ranks. docs/comm.md has the commands, and every variable that is
// read.
//
//   Result<Launch> launch = find_launch(process_environment());
//   // launch->describe(): one line
//   Result<UniqueId> id = rendezvous(nccl, *launch);
//   ... nccl.init(*id, launch->ranks, launch->rank, ...) ...
//   finish_rendezvous(*launch);
//
// Threads: rendezvous() and finish_rendezvous() race with any thread that reads the environment.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "weir/comm/nccl.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// The variables of an environment, by name.
using Environment = std::map<std::string, std::string, std::less<>>;
// Returns a copy of this process's environment.
Environment process_environment();
// Returns the value of a variable, or null if the variable is unset or empty.
const std::string* value_of(const Environment& environment, std::string_view name);

// Which rank this process is.
struct Launch {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;     // among the ranks of this host: the GPU to use
  std::string launcher;   // such as "torchrun"; empty: none, so one rank
  std::string variables;  // that were read, such as "RANK, WORLD_SIZE, LOCAL_RANK"
  std::string address;    // "host:port", where rank 0 listens; empty for a single rank
  std::string source;     // the variables that gave the address, such as "WEIR_MEET"

  // Returns one line, such as "rank 3 of 8, local rank 1, by torchrun (RANK, ...); meets rank 0
  // at 10.0.0.1:29501 (WEIR_MEET)".
  std::string describe() const;
};

// Reads the launch from the environment. The first launcher whose three variables are set decides:
// Weir's own variables (WEIR_RANK, WEIR_WORLD_SIZE, WEIR_LOCAL_RANK), torchrun, Open MPI, MPICH and
// other users of Hydra, srun. Without any of them it is rank 0 of 1. It is an error if only some of
// Weir's own are set, or only some of another launcher's (srun's count in a job step only) while no
// launcher's are complete, or WEIR_MEET without any launcher's. Errors: invalid_argument (a
// variable is malformed, missing, or contradicts another, or nothing says where rank 0 is; the
// message has the variable's name, its value and the remedy).
Result<Launch> find_launch(const Environment& environment);

// Returns, without waiting for other ranks, the id of a communicator of all ranks of `launch`;
// every rank gets the same id. Sets NCCL_COMM_ID in the process's environment, unless the user has
// set it. Nccl::init() then waits, and fails after about a minute if rank 0 does not listen. Call
// rendezvous() before the first use of NCCL. An address always gives the same id: make one
// communicator with it, and others by Nccl::split(). Errors: those of Nccl::unique_id().
Result<UniqueId> rendezvous(Nccl& nccl, const Launch& launch);

// Unsets what rendezvous() has set: otherwise every id that the process makes later would be that
// address. Call it once Nccl::init() has returned, successful or not.
void finish_rendezvous(const Launch& launch);

}  // namespace weir
