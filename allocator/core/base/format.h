// SPDX-License-Identifier: Apache-2.0
// Sizes and addresses as people read them.
#pragma once

#include <string>

#include "weir/types.h"

namespace weir {

// "512 B", "1.50 MiB", "12.25 GiB".
std::string format(Bytes bytes);
// "0x7f0012340000".
std::string format(Address address);

}  // namespace weir
