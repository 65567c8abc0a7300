// SPDX-License-Identifier: Apache-2.0
// Allocators that come and go: each visit opens a device, has an allocator with settings of its own
// on it, runs programs, and leaves nothing behind. On the simulated device some visits run random
// programs of PyTorch's rules (tests/torch/contract) instead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/soak/worker.h"

namespace weir::soak {

using OpenGpu = std::function<Result<std::unique_ptr<test::Gpu>>()>;

class Visitor final : public Worker {
 public:
  // It complains to `world`, and uses nothing else of it. Files are written to `folder`.
  Visitor(World& world, std::string name, std::uint64_t seed, OpenGpu open, std::string folder)
      : Worker(world, std::move(name), seed), open_(std::move(open)), folder_(std::move(folder)) {}

  void step() override;
  void drop_all() override {}
  void list(std::vector<const Block*>&) const override {}

 private:
  Config random_config();
  void visit();
  static void let_frees_through(World& world);
  void run_contract_programs();

  const OpenGpu open_;
  const std::string folder_;
};

}  // namespace weir::soak
