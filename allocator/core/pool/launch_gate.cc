// SPDX-License-Identifier: Apache-2.0
#include "core/pool/launch_gate.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace weir {
namespace {

std::atomic<std::uint8_t> the_closed{0};
std::mutex the_mutex;
std::set<const std::atomic<std::uint8_t>*> the_threads;  // guarded by the_mutex
bool the_gate_is_empty = false;  // likewise: it is closed, and nobody launches who did not tell

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

const std::atomic<std::uint8_t>* LaunchGate::closed() {
  static const bool works = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return works ? &the_closed : nullptr;
}

void LaunchGate::add(const std::atomic<std::uint8_t>* launching) {
  const std::lock_guard lock(the_mutex);
  the_threads.insert(launching);
}

bool LaunchGate::close() {
  const std::lock_guard lock(the_mutex);
  if (the_gate_is_empty) return true;
  the_closed.store(1);
  if (!the_threads.empty() && !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return false;
  the_gate_is_empty = std::none_of(the_threads.begin(), the_threads.end(),
                                   [](const auto* launching) { return launching->load() != 0; });
  return the_gate_is_empty;
}

}  // namespace weir
