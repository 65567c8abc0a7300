// SPDX-License-Identifier: Apache-2.0
// Files that are replaced whole, or not at all.
#pragma once

#include <functional>
#include <string>

#include "weir/result.h"

namespace weir {

// Has `write` write a file beside `path`, which then takes its place: whatever fails, what was
// there is there still. A path that leads to something else than a plain file (a pipe, a device) is
// written to as it is. Errors: what `write` says; invalid_input (it can't take the place).
Status write_in_place_of(const std::string& path,
                         const std::function<Status(const std::string& path)>& write);

}  // namespace weir
