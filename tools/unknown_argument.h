// SPDX-License-Identifier: Apache-2.0
// What the command line says of a command or an option that does not exist.
#pragma once

#include <string>

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace weir {

// The argument that `app` (with the sub-commands that it parsed) does not know, in words, with the
// nearest one that it does; or that a sub-command is missing, with those that exist. Empty:
// neither.
std::string unknown_argument(const CLI::App& app);

// For CLI::App::failure_message(): what is wrong, the usage line, and where to find the rest.
std::string failure_text(const CLI::App* app, const CLI::Error& error);

}  // namespace weir
