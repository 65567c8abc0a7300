// SPDX-License-Identifier: Apache-2.0
// The first call that differs, in words and as JSON; docs/report.md has its members.
#pragma once

#include <string>

#include "look/call_difference.h"
#include "replay/json.h"

namespace weir {

// "allocation of 2,048 bytes on stream 3, at 0x7f0000000000 (row 0 + 0x0)".
std::string call_text(const RecordedCall& call);
// Lines of at most report_width() columns, with a line end each.
std::string difference_text(const CallDifference& difference);
Json difference_json(const CallDifference& difference);

}  // namespace weir
