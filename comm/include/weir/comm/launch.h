// How a process learns which rank it is, and finds rank 0: from what its launcher tells it. There
// is no store of Weir's own: ranks meet at an address, through NCCL itself, or at a file.
// docs/multi-node.md has the commands, and every variable that is read.
//
//   Result<Launch> launch = find_launch(process_environment());
//   // launch->describe(): one line
//   Result<UniqueId> id = meet(nccl, *launch, process_environment(), timeout);
//   ... nccl.init(*id, launch->ranks, launch->rank, ...) ...
//   finish_meeting(*launch);
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/comm/nccl.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// What a process is told by who started it. Variables that are set to nothing count as not set.
class Environment {
 public:
  Environment() = default;
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  virtual ~Environment() = default;

  virtual std::optional<std::string> get(const std::string& name) const = 0;
  virtual void set(const std::string& name, const std::string& value) = 0;
  virtual void unset(const std::string& name) = 0;
  // The nearest process above this one that runs `command`: a text that no other process of this
  // machine has. (Of a command's name the kernel keeps 15 characters.)
  virtual std::optional<std::string> ancestor(std::string_view command) const = 0;
};

// The process's own. Threads: set() or unset() beside any thread that reads the environment is a
// race.
Environment& process_environment();

enum class MeetBy {
  nobody,   // one rank alone
  address,  // NCCL connects to rank 0, who listens there
  file,     // rank 0 writes the communicator's id there, the others read it
};

// Where the ranks meet, and what said so.
struct MeetingPlace {
  MeetBy by = MeetBy::nobody;
  std::string at;      // "host:port", or the file's path
  std::string source;  // "MASTER_ADDR, MASTER_PORT + 1"
  // The run, as its launcher names it: a file of another run is not taken. Empty: not known.
  std::string run;
};

// Which rank this process is.
struct Launch {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;     // among the ranks of this host; which GPU to take
  int local_ranks = 1;    // 0: not known
  std::string launcher;   // "torchrun"; empty: none, and the process is alone
  std::string variables;  // the ones it was known by: "RANK, WORLD_SIZE, LOCAL_RANK"
  MeetingPlace meeting;
  std::vector<std::string> notes;  // what is set, and was not followed

  // One line: "rank 3 of 8, local rank 1 of 4, by torchrun (RANK, ...); meets rank 0 at
  // 10.0.0.1:29501 (MASTER_ADDR, MASTER_PORT + 1)".
  std::string describe() const;
};

// What the environment says. The first of these whose variables are set is followed: Weir's own
// (WEIR_RANK, WEIR_WORLD_SIZE, WEIR_LOCAL_RANK), torchrun, Open MPI, MPICH and its kin (Hydra),
// srun. With none of them the process is rank 0 of 1; what is set of Weir's own without the rest of
// it, WEIR_MEET without a rank too, is an error. Errors: invalid_argument (a variable that is
// malformed, missing, or contradicts another, or no way to meet; the message has its name, its
// value and the remedy).
Result<Launch> find_launch(const Environment& environment);

// The id of a communicator of all ranks of `launch`, the same on each.
// At an address it sets NCCL_COMM_ID, unless it is set already, and returns at once: it is
// Nccl::init() that waits, and that fails after a minute or so if rank 0 does not listen. Call it
// before the first use of NCCL; such an id is always the same, so make one communicator, and others
// by Nccl::split().
// At a file, rank 0 removes what an earlier run left, and writes; the others wait for it, at most
// `timeout`. Ranks of one run should come within `timeout` of each other.
// Errors: unavailable (rank 0 did not come in time); invalid_argument (the file is another user's,
// or can't be written; the message has its path); those of Nccl::unique_id().
Result<UniqueId> meet(Nccl& nccl, const Launch& launch, Environment& environment,
                      Nanoseconds timeout);

// Removes the file that this process wrote, if it is still its own: call it once Nccl::init() has
// returned, or failed. Does nothing for other ranks, and where ranks meet at an address.
void finish_meeting(const Launch& launch);

}  // namespace weir
