// What a value of a variable should look like, and what an unknown name was meant for.
#include <strings.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "comm/check/tree.h"
#include "comm/check/variables.h"

namespace weir::check {
namespace {

constexpr std::size_t kLongestName = 64;

// Letters to insert, to drop, to change, or neighbours to swap, until `a` is `b`. Source: the
// optimal string alignment distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::array<std::array<std::size_t, kLongestName + 1>, kLongestName + 1> table{};
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        table[i][j] = i + j;
        continue;
      }
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      table[i][j] =
          std::min({table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
      }
    }
  }
  return table[a.size()][b.size()];
}

bool same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

bool is_one_of(std::string_view word, std::string_view choices) {
  const std::vector<std::string> words = split(choices, ' ');
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& choice) { return same(word, choice); });
}

// The first word of a list with commas that is not one of the choices.
std::string wrong_words(std::string_view list, std::string_view choices) {
  if (list.starts_with('^')) list.remove_prefix(1);
  for (const std::string& word : split(list, ',')) {
    if (is_one_of(word, choices)) continue;
    return (word.empty() ? "a word is missing" : "'" + word + "' is none of") +
           std::string(word.empty() ? "; known are " : " ") + std::string(choices);
  }
  return {};
}

// "Ring,Tree", "^NVLS", or by collective: "allreduce:tree,ring;broadcast:ring". A first part
// without a collective is for those that no other part names.
std::string wrong_algorithms(const std::string& value, std::string_view choices) {
  constexpr std::string_view kCollectives = "Broadcast Reduce AllGather ReduceScatter AllReduce";
  bool first = true;
  for (const std::string& part : split(value, ';')) {
    const std::size_t colon = part.find(':');
    if (colon == std::string::npos && !first) {
      return "'" + part + "' names no collective: write COLLECTIVE:" + part;
    }
    first = false;
    if (colon != std::string::npos) {
      const std::string collective = part.substr(0, colon);
      if (!is_one_of(collective, kCollectives)) {
        return "'" + collective + "' is none of " + std::string(kCollectives);
      }
    }
    const std::string list = colon == std::string::npos ? part : part.substr(colon + 1);
    if (std::string why = wrong_words(list, choices); !why.empty()) return why;
  }
  return {};
}

std::string wrong_number(const std::string& value, bool flag) {
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(value.c_str(), &end, 0);
  if (errno == ERANGE) return "it is too large for 64 bits: NCCL takes its default";
  if (end == value.c_str()) return "it is no number: NCCL reads it as 0";
  if (*end != '\0') return "it is no whole number: NCCL reads it as " + std::to_string(number);
  if (flag && number != 0 && number != 1) return "it is neither 0 nor 1";
  return {};
}

std::string wrong_level(const std::string& value) {
  constexpr std::string_view kLevels = "LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS";
  if (value.size() == 1 && value[0] >= '0' && value[0] <= '9') return {};
  const std::vector<std::string> levels = split(kLevels, ' ');
  // Here case counts.
  if (std::find(levels.begin(), levels.end(), value) != levels.end()) return {};
  return "it is no level: NCCL takes its default. Levels are LOC NVL PIX PXB PHB SYS";
}

}  // namespace

const Variable* variable_named(std::string_view name) {
  for (const Variable& variable : variables()) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

bool is_known(std::string_view name) {
  const std::span<const std::string_view> others = other_names();
  return variable_named(name) != nullptr ||
         std::find(others.begin(), others.end(), name) != others.end();
}

std::string_view near_to(std::string_view name) {
  if (name.size() > kLongestName) return {};
  std::size_t nearest = 3;
  std::string_view found;
  const auto look_at = [&](std::string_view known) {
    const std::size_t away = distance(name, known);
    if (away < nearest) nearest = away, found = known;
  };
  for (const Variable& variable : variables()) look_at(variable.name);
  for (const std::string_view other : other_names()) look_at(other);
  return found;
}

std::string wrong_with(const Variable& variable, const std::string& value) {
  if (value.empty()) return {};
  switch (variable.kind) {
    case ValueKind::flag:
    case ValueKind::number:
      return wrong_number(value, variable.kind == ValueKind::flag);
    case ValueKind::level:
      return wrong_level(value);
    case ValueKind::choice:
      if (is_one_of(value, variable.choices)) return {};
      return "it is none of " + std::string(variable.choices);
    case ValueKind::words:
      return wrong_words(value, variable.choices);
    case ValueKind::algorithms:
      return wrong_algorithms(value, variable.choices);
    case ValueKind::text:
      break;
  }
  return {};
}

}  // namespace weir::check
