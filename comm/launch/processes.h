// The machine's processes, as /proc has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weir {

struct RunningProcess {
  int id = 0;
  int parent = 0;             // 0: none that is seen from here
  std::uint64_t started = 0;  // ticks since boot: with the id, never the same again until reboot
  std::string command;        // at most 15 characters
};

// Nothing: there is no such process, or it has ended and is not yet waited for.
std::optional<RunningProcess> running_process(int id);

// Where process ids mean the same: this boot of this machine, this namespace of process ids. Empty:
// the system does not tell.
std::string process_domain();

}  // namespace weir
