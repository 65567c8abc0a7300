// SPDX-License-Identifier: Apache-2.0
// Collectives of two simulated ranks: one has the heap that all workers share, the other has a
// device, a heap and a thread of its own. Batches of operations, eager and captured, whose buffers
// go at once; communicators that are split, closed and aborted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/soak/worker.h"
#include "weir/comm/communicator.h"
#include "weir/comm/sim_nccl.h"

namespace weir::soak {

// On the simulated device.
class RankWorker final : public Worker {
 public:
  RankWorker(World& world, std::string name, std::uint64_t seed);
  ~RankWorker() override;

  // A batch, on both ranks.
  void step() override;
  void drop_all() override;
  void list(std::vector<const Block*>&) const override {}  // between batches there are none

 private:
  enum class Kind { eager, captured, split, anew, abort };
  struct Job {
    Kind kind = Kind::anew;
    std::uint64_t seed = 0;
    UniqueId id;  // of the communicator that is made anew
  };
  class Rank;

  void run_on_both(const Job& job);
  void serve_peer();

  Machine peer_machine_;
  World peer_world_;
  SimWorld ranks_;
  std::unique_ptr<Rank> mine_, peer_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Job> job_;  // guarded by mutex_; of the peer
  bool ends_ = false;       // guarded by mutex_
  std::thread thread_;
};

}  // namespace weir::soak
