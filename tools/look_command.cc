#include "look_command.h"

#include <fmt/format.h>

#include <cstdio>

namespace weir {

ExitCode exit_code_of(const Status& status) {
  if (status.ok()) return ExitCode::ok;
  fmt::print(stderr, "weir: {}\n", status.error().message());
  return status.error().code() == ErrorCode::unavailable ? ExitCode::failed : ExitCode::bad_input;
}

void warn_of_damage(const std::string& file, const std::string& damage) {
  if (!damage.empty()) fmt::print(stderr, "weir: {}: {}\n", file, damage);
}

}  // namespace weir
