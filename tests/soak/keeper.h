// SPDX-License-Identifier: Apache-2.0
// Looks at the memory while others use it, and changes what they may have: statistics, snapshots,
// recordings, limits, trims.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/soak/worker.h"

namespace weir::soak {

class Keeper final : public Worker {
 public:
  // Files are written to `folder`.
  Keeper(World& world, std::string name, std::uint64_t seed, std::string folder);
  ~Keeper() override { drop_all(); }

  void step() override;
  // All memory sleeps and wakes, while nobody else is at work.
  void sleep_all();
  // Ends a recording.
  void drop_all() override;
  void list(std::vector<const Block*>&) const override {}

 private:
  void change_limit();
  void look_at_snapshot();
  void change_recording();
  void trim();

  const std::string folder_;
  bool records_ = false;
};

}  // namespace weir::soak
