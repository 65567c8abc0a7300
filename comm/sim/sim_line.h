// SPDX-License-Identifier: Apache-2.0
// What one rank launches of a communicator, in a line; and whether others have come as far.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/sim/sim_world.h"

namespace weir {

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

}  // namespace weir
