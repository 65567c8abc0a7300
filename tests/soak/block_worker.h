// SPDX-License-Identifier: Apache-2.0
// Eager memory: blocks of all sizes on streams that come and go, used on other streams, handed to
// other workers, in tags that sleep.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/soak/worker.h"

namespace weir::soak {

class BlockWorker final : public Worker {
 public:
  BlockWorker(World& world, std::string name, std::uint64_t seed);
  ~BlockWorker() override;

  void step() override;
  void drop_all() override;
  void list(std::vector<const Block*>& blocks) const override;
  void woke() override;

 private:
  static constexpr Bytes kMost = 160_MiB;  // live, but for one block
  static constexpr std::size_t kMostBlocks = 64;

  Stream any_stream();
  Block take();
  void add();
  void use_elsewhere();
  void use_at_home();
  void fence_several();
  void hand_over();
  void take_over();
  void misuse();
  void change_stream();
  void sleep();
  void drop_half();

  const std::string tag_;
  std::vector<Stream> own_;
  std::vector<Block> blocks_;
  Bytes live_;
};

}  // namespace weir::soak
