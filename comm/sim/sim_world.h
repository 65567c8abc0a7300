// SPDX-License-Identifier: Apache-2.0
// What the simulated ranks of a process share, and what each launches of a communicator.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
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
  std::uint64_t live_communicators = 0, live_segments = 0, live_registrations = 0, live_streams = 0;
};

// One rank's part of a communicator.
struct SimPart {
  std::shared_ptr<SimComm> comm;
  int rank = 0;
  bool ended = false;  // revoked, aborted or destroyed; under the world's mutex

  bool has_ended(SimWorld::State& world) const;
  // What waits for others waits no more.
  void end(SimWorld::State& world);
};

// Who one rank is among those that launch the same things in the same order: all ranks of a
// communicator its collectives; a sender (0) and a receiver (1) what the one sends to the other.
struct SimParty {
  std::string list;  // of SimComm::launched: "", "3>5"
  std::size_t number = 0, all = 0;

  static SimParty of(const Operation& operation, int rank, int ranks);
  // What all parties of an operation have to ask for.
  static std::string describe(const Operation& operation, int ranks);
  std::string rank_of(std::size_t party) const;
};

// What one party launches, and whether the others have come as far.
class SimLine final : public SimPeers {
 public:
  SimLine(std::shared_ptr<SimWorld::State> world, std::shared_ptr<SimPart> part, SimParty party);

  std::uint64_t arrive(const std::string& what) override { return arrive(what, false); }
  // `hangs`: it never ends, nor does what comes after it.
  std::uint64_t arrive(const std::string& what, bool hangs);
  Status await(std::uint64_t number) override;
  bool are_there(std::uint64_t number) const override;
  // For all that was launched so far.
  Status await_all();

 private:
  bool came(std::uint64_t number) const;
  Error missing() const;

  const std::shared_ptr<SimWorld::State> world_;
  const std::shared_ptr<SimPart> part_;
  const SimParty party_;
  // Under the world's mutex.
  SimComm::Launched& launched_;
  std::uint64_t hangs_from_ = ~std::uint64_t{0};
  std::string hanging_;    // what that is
  bool given_up_ = false;  // somebody waited in vain: nobody waits again
};

// An operation of a line that was made to hang.
class SimHanging final : public SimPeers {
 public:
  explicit SimHanging(std::shared_ptr<SimLine> line) : line_(std::move(line)) {}
  std::uint64_t arrive(const std::string& what) override { return line_->arrive(what, true); }
  Status await(std::uint64_t number) override { return line_->await(number); }
  bool are_there(std::uint64_t number) const override { return line_->are_there(number); }

 private:
  const std::shared_ptr<SimLine> line_;
};

std::unique_ptr<Nccl> make_sim_nccl(std::shared_ptr<SimWorld::State> world, int rank,
                                    SimDevice& device);

}  // namespace weir
