// What `weir comm bench` and `weir comm scenario` have in common.
#pragma once

#include <optional>
#include <string>

#include "comm/ranks.h"
#include "command.h"

namespace weir {

struct RanksCommand {
  std::string device = "auto";
  std::optional<int> ranks;
};
void add_ranks_options(CLI::App& command, RanksCommand& ranks);
// Errors: invalid_argument; those of cuda_ranks().
Result<OpenRanks> open_as(const RanksCommand& command);

// Prints the text, or the JSON where `json` is "-"; else writes that to the file it names, if any.
ExitCode tell(const std::string& text, const std::string& json_text, const std::string& json,
              const std::string& command);
// To standard error.
ExitCode complain(const std::string& command, const Error& error);

}  // namespace weir
