#include "look_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "option_checks.h"

namespace weir {

ExitCode exit_code_of(const Status& status) {
  if (status.ok()) return ExitCode::ok;
  fmt::print(stderr, "weir: {}\n", status.error().message());
  return status.error().code() == ErrorCode::unavailable ? ExitCode::failed : ExitCode::bad_input;
}

void warn_of_damage(const std::string& file, const std::string& damage) {
  if (!damage.empty()) fmt::print(stderr, "weir: {}: {}\n", file, damage);
}

void add_output_option(CLI::App& command, std::string& output, const std::string& help) {
  command.add_option("-o,--output", output, help)->type_name("OUT")->required();
}

void add_top_option(CLI::App& command, std::size_t& top) {
  command.add_option("--top", top, "Most rows of a list")
      ->transform(whole_number(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
}

}  // namespace weir
