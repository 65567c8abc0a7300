// SPDX-License-Identifier: Apache-2.0
// How a process learns its rank, and how the ranks find each other: from the variables that the
// launcher sets. Weir runs no store of its own: the rendezvous of the ranks is at an address,
// through NCCL itself, or at a file. A program that has MPI or a store of its own needs none of
// this: it sends rank 0's Nccl::unique_id() to the other ranks. docs/multi-node.md has the
// commands, and every variable that is read.
//
//   Result<Launch> launch = find_launch(process_environment());
//   // launch->describe(): one line
//   Result<UniqueId> id = rendezvous(nccl, *launch, process_environment(), timeout);
//   ... nccl.init(*id, launch->ranks, launch->rank, ...) ...
//   finish_rendezvous(*launch);
#pragma once

#include <optional>
#include <string>

#include "weir/comm/nccl.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// The environment of a process. A variable with an empty value counts as not set.
class Environment {
 public:
  Environment() = default;
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  virtual ~Environment() = default;

  virtual std::optional<std::string> get(const std::string& name) const = 0;
  virtual void set(const std::string& name, const std::string& value) = 0;
  virtual void unset(const std::string& name) = 0;
};

// The environment of this process. Threads: set() and unset() race with any thread that reads the
// environment.
Environment& process_environment();

enum class RendezvousMethod {
  none,     // a single rank
  address,  // NCCL connects to rank 0, which listens there
  file,     // rank 0 writes the communicator's id to the file, and the other ranks read it
};

// Where the ranks find each other, and which variables say so.
struct Rendezvous {
  RendezvousMethod method = RendezvousMethod::none;
  std::string endpoint;  // "host:port", or the file's path
  std::string source;    // "MASTER_ADDR, MASTER_PORT + 1"
  // The launcher's name of the run: ranks ignore a file of another run. Empty: not known.
  std::string run;
};

// Which rank this process is.
struct Launch {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;     // among the ranks of this host: the GPU to use
  int local_ranks = 1;    // 0: not known
  std::string launcher;   // "torchrun"; empty: no launcher, a single rank
  std::string variables;  // those that were read: "RANK, WORLD_SIZE, LOCAL_RANK"
  Rendezvous rendezvous;

  // One line: "rank 3 of 8, local rank 1 of 4, by torchrun (RANK, ...); meets rank 0 at
  // 10.0.0.1:29501 (MASTER_ADDR, MASTER_PORT + 1)".
  std::string describe() const;
};

// Reads the launch from the environment. The first launcher whose variables are set decides: Weir's
// own variables (WEIR_RANK, WEIR_WORLD_SIZE, WEIR_LOCAL_RANK), torchrun, Open MPI, MPICH and other
// users of Hydra, srun (comm/launch/launchers.h). Without any of them it is rank 0 of 1. If only
// some of Weir's own variables are set, or WEIR_MEET without a rank, that is an error. Errors:
// invalid_argument (a variable is malformed, missing, or contradicts another, or nothing says where
// rank 0 is; the message has the variable's name, its value and the remedy).
Result<Launch> find_launch(const Environment& environment);

// Returns the id of a communicator of all ranks of `launch`, the same on each rank.
// At an address it sets NCCL_COMM_ID, unless NCCL_COMM_ID is already set, and returns at once.
// Nccl::init() then waits, and fails after about a minute if rank 0 does not listen. Call
// rendezvous() before the first use of NCCL. An address always gives the same id: make one
// communicator with it, and others by Nccl::split().
// At a file, rank 0 removes the file of an earlier run and writes a new one; the other ranks wait
// for the file, at most `timeout`. The ranks of one run should call within `timeout` of each other.
// Errors: unavailable (rank 0 did not write in time); invalid_argument (the file belongs to another
// user, or can't be written; the message has its path); those of Nccl::unique_id().
Result<UniqueId> rendezvous(Nccl& nccl, const Launch& launch, Environment& environment,
                            Nanoseconds timeout);

// Removes the file that this process wrote, if the file is still this process's own. Call it once
// Nccl::init() has returned or failed. Does nothing on other ranks, and for a rendezvous at an
// address.
void finish_rendezvous(const Launch& launch);

}  // namespace weir
