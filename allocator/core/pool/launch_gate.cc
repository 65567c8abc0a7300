// SPDX-License-Identifier: Apache-2.0
#include "core/pool/launch_gate.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <mutex>

namespace weir {
namespace {

std::atomic<std::uint8_t> the_closed{0};

struct Gate {
  std::mutex mutex;
  std::deque<std::atomic<std::uint8_t>> threads;  // guarded by mutex
  bool is_empty = false;  // likewise: it is closed, and nobody launches who did not tell
};
// (Not destroyed: threads may launch until the process ends.)
Gate& gate() {
  static Gate& gate = *new Gate;
  return gate;
}

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

const std::atomic<std::uint8_t>* LaunchGate::closed() {
  static const bool works = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return works ? &the_closed : nullptr;
}

std::atomic<std::uint8_t>* LaunchGate::add() {
  const std::lock_guard lock(gate().mutex);
  return &gate().threads.emplace_back(0);
}

bool LaunchGate::close() {
  Gate& all = gate();
  const std::lock_guard lock(all.mutex);
  if (all.is_empty) return true;
  the_closed.store(1);
  if (!all.threads.empty() && !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return false;
  all.is_empty = std::none_of(all.threads.begin(), all.threads.end(),
                              [](const auto& launching) { return launching.load() != 0; });
  return all.is_empty;
}

}  // namespace weir
