// SPDX-License-Identifier: Apache-2.0
// What changed between two recordings.
//
// Streams and pools are numbered anew by each run, so the n-th of one is compared with the n-th of
// the other, in order of first use. Stacks are the same where their functions and files are,
// whatever the lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "look/call_difference.h"
#include "look/report.h"

namespace weir {

enum class Unit : std::uint8_t { bytes, count, time };

// One number of both; none where only the other recording has such a thing.
struct Change {
  std::string name;
  Unit unit = Unit::count;
  std::optional<std::uint64_t> before, after;

  // Unsigned: how far apart the two are.
  std::uint64_t size() const;
  bool changed() const { return before.value_or(0) != after.value_or(0); }
};

struct ChangeGroup {
  std::string name;             // as in JSON: "by_stream"
  std::string title;            // as in text
  std::vector<Change> changes;  // but for the first group's, the largest first
};

struct Diff {
  std::string before, after;            // the two files
  std::vector<ChangeGroup> groups;      // empty: only calls are compared
  std::optional<CallDifference> calls;  // none: they are not compared
  bool changed() const;                 // of the groups
};

// Of reports that were made with lists of any length (`ReportOptions::top`).
Diff diff_of(const Report& before, const Report& after);

// Tables of at most report_width() columns, with `top` rows a group; what did not change is left
// out, except for the peaks. Ends with a line end.
std::string diff_text(const Diff& diff, std::size_t top);
// One object, with all that changed and the peaks. Ends with a line end.
std::string diff_json(const Diff& diff);

}  // namespace weir
