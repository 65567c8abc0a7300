// SPDX-License-Identifier: Apache-2.0
// Memory of graphs: pools that come and go, captures of random programs over two streams in every
// mode, some of which break or are thrown away, launches, and tags of pools that sleep.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/soak/worker.h"
#include "weir/graph_pool.h"

namespace weir::soak {

class GraphWorker final : public Worker {
 public:
  GraphWorker(World& world, std::string name, std::uint64_t seed);
  ~GraphWorker() override;

  void step() override;
  void drop_all() override;
  void list(std::vector<const Block*>& blocks) const override;

 private:
  struct Captured {
    Graph graph;
    std::optional<Block> output;  // that each launch writes
  };
  struct Pool {
    std::unique_ptr<GraphPool> pool;
    std::string tag;
    std::vector<Captured> graphs;  // in the order of their captures
  };
  enum class End { whole, broken, abandoned };

  void add_pool();
  void drop_pool(std::size_t index);
  void warm_up(Pool& pool);
  void capture(Pool& pool, End end);
  // Captured, or in a warm-up. Returns the output, if there was memory for one.
  std::optional<Block> program(bool captured);
  std::optional<Block> allocate_in_program(Stream home);
  void free_in_program(Block block);
  void launch_all(Pool& pool);
  // What was lent of the pool's scratch may be in use still.
  template <class Outcome>
  bool lacks_what_is_lent(const Outcome& outcome) const {
    return world_.heap().options().graph_scratch == GraphScratch::lend && !outcome.ok() &&
           outcome.error().code() == ErrorCode::out_of_memory;
  }
  void sleep(Pool& pool);
  void change_launcher();

  static constexpr std::size_t kMostPools = 3, kMostGraphs = 4;
  std::vector<Stream> streams_;  // main, side, launcher
  std::vector<Pool> pools_;
};

}  // namespace weir::soak
