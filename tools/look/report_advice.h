// SPDX-License-Identifier: Apache-2.0
// What a report advises.
#pragma once

#include <vector>

#include "look/report.h"

namespace weir {

// From the rest of `report`, whose lists are whole. None: there is nothing to say.
std::vector<Advice> advice_on(const Report& report);

}  // namespace weir
