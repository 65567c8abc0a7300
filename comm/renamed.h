// Public names that have changed. The old names still work, and warn.
#pragma once

#include <string_view>

namespace weir {

// Logs a warning that `old_name` is now called `new_name`, once a process for each `old_name`.
// Self-synchronised.
void warn_renamed(std::string_view old_name, std::string_view new_name);

}  // namespace weir
