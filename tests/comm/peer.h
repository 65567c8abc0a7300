// SPDX-License-Identifier: Apache-2.0
// One rank of a launch: what comm_peer does (peer.cc).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "weir/comm/launch.h"

namespace weir::peer {

constexpr int kWrongOptions = 2;  // exit code

struct Options {
  std::string work = "once";  // or eager, replay, hang, absent, mismatch
  std::uint64_t steps = 100;  // 0: until something fails
  std::uint64_t sound_steps = 16;
  int bad_rank = 1;
  double timeout = 10, host_timeout = 30, limit = 90;  // seconds
  bool captured = false, expect_error = false, probe = false;
};

// Prints one line, in one write, so that lines of ranks that share a pipe stay whole.
void say(const nlohmann::json& what);

// Does it, and says what came of it. Returns the exit code.
int run(const Options& options);

}  // namespace weir::peer
