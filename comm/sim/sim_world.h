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
#include <utility>
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

// Of SimWorld and of every SimNccl. Its members are guarded by `mutex`, which nobody holds in a
// call to the device.
struct SimWorld::State {
  explicit State(SimWorldOptions of) : options(of), ranks(static_cast<std::size_t>(of.ranks)) {}

  // Waits until `count` parties with this key have come, and returns what each brought, by index.
  // Errors: device (some did not come in time, or one came twice).
  Result<std::vector<std::string>> rendezvous(const std::string& key, int index, int count,
                                              std::string brought,
                                              std::chrono::nanoseconds host_timeout);

  struct Rendezvous {
    std::vector<std::optional<std::string>> brought;
    std::size_t arrived = 0, left = 0;
  };
  struct Rank {
    std::map<NcclCall, std::vector<std::uint64_t>> failing;  // how many calls from now
    std::vector<std::uint64_t> hanging;                      // how many operations from now
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
  SimCounts counts;
};

// Counts down what is to happen some calls from now. Returns whether one happens now.
bool happens(std::vector<std::uint64_t>& calls_left);

// One rank's part of a communicator.
struct SimPart {
  std::shared_ptr<SimComm> comm;
  int rank = 0;
  bool ended = false;  // revoked, aborted or destroyed; under the world's mutex
};

// Who one rank is among those that launch the same things in the same order: all ranks of a
// communicator its collectives; a sender (0) and a receiver (1) what the one sends to the other.
struct SimParty {
  std::string list;  // of SimComm::launched: "", "3>5"
  std::size_t number = 0;
  std::vector<int> ranks;  // by number

  static SimParty of(const Operation& operation, const SimPart& part);
};

// What one party launches, and whether the others have come as far.
class SimLine final : public SimPeers {
 public:
  // Under the world's mutex.
  SimLine(std::shared_ptr<SimWorld::State> world, std::shared_ptr<SimPart> part, SimParty party);

  std::uint64_t arrive(const std::string& what) override;
  Status await(std::uint64_t number) override;
  bool are_there(std::uint64_t number) const override;
  // For all that was launched so far.
  Status await_all();
  bool has_ended() const;

 private:
  bool came(std::uint64_t number) const;
  Error missing() const;

  const std::shared_ptr<SimWorld::State> world_;
  const std::shared_ptr<SimPart> part_;
  const SimParty party_;
  SimComm::Launched& launched_;  // this and what follows under the world's mutex
  bool given_up_ = false;        // somebody waited in vain: nobody waits again
};

// An operation of a line that was made to hang: it ends with the communicator.
class SimHanging final : public SimPeers {
 public:
  SimHanging(std::shared_ptr<SimLine> line, std::string what)
      : line_(std::move(line)), what_(std::move(what)) {}
  std::uint64_t arrive(const std::string& what) override { return line_->arrive(what); }
  Status await(std::uint64_t) override {
    if (line_->has_ended()) return {};
    return Error(ErrorCode::device, what_ + ", has not ended: it was made to hang");
  }
  bool are_there(std::uint64_t) const override { return line_->has_ended(); }

 private:
  const std::shared_ptr<SimLine> line_;
  const std::string what_;
};

std::unique_ptr<Nccl> make_sim_nccl(std::shared_ptr<SimWorld::State> world, int rank,
                                    SimDevice& device);

}  // namespace weir
