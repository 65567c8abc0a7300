// NCCL's environment variables: what each takes, its default, and what it is for. Source: the NCCL
// 2.28 user guide, "Environment Variables", and the names in the library itself.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weir::check {

enum class ValueKind {
  flag,        // 0 or 1
  number,      // an integer; decimal, 0x..., or 0...
  text,        // anything: names, addresses, paths
  level,       // how far two devices may be apart: LOC NVL PIX PXB PHB SYS, or a digit
  choice,      // one word of `choices`, in any case
  words,       // words of `choices` with commas between them, perhaps after a '^'
  algorithms,  // NCCL_ALGO's own syntax, with words of `choices`; NCCL_PROTO's is the same
};

struct Variable {
  std::string_view name;
  ValueKind kind;
  std::string_view fallback;  // what holds without it
  std::string_view meaning;
  std::string_view choices{};  // words with spaces between them
};

// In order of the alphabet.
std::span<const Variable> variables();
// Names that are known, and nothing more is said of them.
std::span<const std::string_view> other_names();
// Null: not in the table.
const Variable* variable_named(std::string_view name);
// Is it NCCL's own, in the table or not? There are many that its guide doesn't have.
bool is_known(std::string_view name);
// The known name that `name` is likely meant for: one or two letters away. Empty: none.
std::string_view near_to(std::string_view name);

// What is wrong with the value; empty: nothing.
std::string wrong_with(const Variable& variable, const std::string& value);

}  // namespace weir::check
