// SPDX-License-Identifier: Apache-2.0
// Where files are written, and files that are replaced whole, or not at all.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "weir/result.h"

namespace weir {

// Errors: invalid_input: `path` is empty, or its folder does not exist. Names `what` is to be
// written there ("recording"), and what to do.
Status check_folder(std::string_view what, const std::string& path);

// Has `write` write a file beside `path`, which then takes its place: whatever fails, what was
// there is there still. A path that leads to something else than a plain file (a pipe, a device) is
// written to as it is. Errors: what `write` says; invalid_input (it can't take the place).
Status write_in_place_of(const std::string& path,
                         const std::function<Status(const std::string& path)>& write);

}  // namespace weir
