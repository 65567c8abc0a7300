// SPDX-License-Identifier: Apache-2.0
// What a replay found, for people and for programs.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "replay/exit_code.h"
#include "replay/replay.h"
#include "weir/result.h"

namespace weir {

// One trace of the command: a report, or why there is none.
struct ReplayOutcome {
  std::string trace;
  std::optional<ReplayReport> report;
  std::optional<Error> error;  // set when `report` is not

  ExitCode exit_code() const;
  // What went wrong, with file and line, and what held the memory; empty: nothing.
  std::string complaint() const;
};

// An aligned table with one row for each pass, and a verdict. Ends with a line end.
std::string report_text(const ReplayReport& report);

// One outcome: an object; several: a list of them. docs/replay.md defines the members. Nothing in
// it depends on the machine or the hour: the same replay on the simulated device gives the same
// bytes.
std::string report_json(std::span<const ReplayOutcome> outcomes);

}  // namespace weir
