// SPDX-License-Identifier: Apache-2.0
// What the command knows of the terminal that it writes to.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace weir {

// COLUMNS, else what the terminal of the descriptor says; none: it is no terminal.
std::optional<std::size_t> columns_of(int descriptor);

// `text` in bold red where `descriptor` is a terminal that shows colours and NO_COLOR is not set
// (https://no-color.org), else as it is.
std::string as_trouble(const std::string& text, int descriptor);

}  // namespace weir
