// What the commands that look at a file have in common.
#pragma once

#include <cstddef>
#include <string>

#include "replay/report.h"
#include "weir/result.h"

namespace CLI {
class App;
}

namespace weir {

// Says on standard error what went wrong, if anything; what the command returns to its caller.
ExitCode exit_code_of(const Status& status);

// Says on standard error what the recording lacks, if anything.
void warn_of_damage(const std::string& file, const std::string& damage);

// The options `-o,--output`, which must be given, and `--top`.
void add_output_option(CLI::App& command, std::string& output, const std::string& help);
void add_top_option(CLI::App& command, std::size_t& top);

}  // namespace weir
