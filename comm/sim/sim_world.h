// SPDX-License-Identifier: Apache-2.0
// What the simulated ranks of a process share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weir/comm/sim_nccl.h"

namespace weir {

// A communicator, as all its ranks have it.
struct SimComm {
  std::uint64_t id = 0;
  int size = 0;
  int joined = 0;    // ranks that have it
  std::string name;  // as one of its ranks has it
  // What each has launched, graphs included: how many; and what those were that not all have.
  // Collectives: ""; by pair, "3>5", what 3 sends to 5 and what 5 receives.
  struct Launched {
    std::vector<std::uint64_t> by;
    std::map<std::uint64_t, std::string> what;
  };
  std::map<std::string, Launched> launched;
};

// Of SimWorld and of every SimNccl. Its members are guarded by `mutex`.
struct SimWorld::State {
  explicit State(SimWorldOptions of) : options(of), ranks(static_cast<std::size_t>(of.ranks)) {}

  // Waits until `count` parties with this key have come, and returns what each brought, by index.
  // A key is used once; if `is_id`, who comes with it later is told so. Errors: device (some did
  // not come in time, or one came twice).
  Result<std::vector<std::string>> rendezvous(const std::string& key, int index, int count,
                                              std::string brought,
                                              std::chrono::nanoseconds host_timeout,
                                              bool is_id = false);
  bool fails(int rank, NcclCall call);

  struct Rendezvous {
    std::vector<std::optional<std::string>> brought;
    std::size_t arrived = 0, left = 0;
    bool over = false;  // all came
  };
  struct Rank {
    std::map<NcclCall, std::vector<std::uint64_t>> failing;  // how many calls from now
    std::vector<std::uint64_t> hanging;
    std::string async_error;
    std::uint64_t operations = 0;
  };

  const SimWorldOptions options;
  mutable std::mutex mutex;
  std::condition_variable came;
  std::map<std::string, Rendezvous> all_rendezvous;
  // By what they were agreed under, until all ranks have joined.
  std::map<std::string, std::shared_ptr<SimComm>> comms;
  std::vector<Rank> ranks;
  std::vector<std::string> mismatches;
  std::uint64_t last_id = 0;
  std::uint64_t lazy_connections = 0, refused_in_captures = 0;
  std::uint64_t made_communicators = 0, live_communicators = 0, live_segments = 0,
                live_registrations = 0, live_streams = 0;
};

std::unique_ptr<Nccl> make_sim_nccl(std::shared_ptr<SimWorld::State> world, int rank,
                                    SimDevice& device);

}  // namespace weir
