#include "comm/launch/processes.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

namespace weir {

std::optional<RunningProcess> running_process(int id) {
  if (id <= 0) return {};
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::stringstream text;
  text << file.rdbuf();
  const std::string line = text.str();
  // "ID (COMMAND) STATE PARENT ...": the command may hold anything, brackets too.
  const std::size_t open = line.find('(');
  const std::size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};

  RunningProcess process{.id = id, .command = line.substr(open + 1, close - open - 1)};
  std::istringstream fields(line.substr(close + 1));
  std::string state;
  std::string skipped;
  fields >> state >> process.parent;
  constexpr int kStart = 22;  // the field's number in proc(5), from 1; the parent is the 4th
  for (int field = 5; field < kStart; ++field) fields >> skipped;
  fields >> process.started;
  if (!fields || state == "Z" || state == "X") return {};
  return process;
}

std::string process_domain() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  if (boot.empty() || length <= 0) return {};
  return boot + "/" + std::string(space.data(), static_cast<std::size_t>(length));
}

}  // namespace weir
