// What a value of a variable should look like, and what an unknown name was meant for.
#include <strings.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <vector>

#include "comm/check/tree.h"
#include "comm/check/variables.h"
#include "comm/numbers.h"
#include "core/base/edit_distance.h"

namespace weir::check {
namespace {

constexpr std::size_t kLongestName = 64;  // that is looked up

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

// Numbers that the guide limits ("Values accepted"). Source: NCCL 2.28 user guide.
struct Limits {
  std::string_view name;
  std::int64_t least = 0, most = std::numeric_limits<std::int64_t>::max();
  std::string_view others{};  // words with spaces between them: allowed too, or alone
};
constexpr Limits kLimits[] = {
    {"NCCL_CROSS_NIC", 0, 2},
    {"NCCL_CUMEM_ENABLE", 0, 1, "-2"},
    {"NCCL_CUMEM_HOST_ENABLE", 0, 1, "-1"},
    {"NCCL_IB_PCI_RELAXED_ORDERING", 0, 2},
    {"NCCL_IB_QPS_PER_CONNECTION", 1, 128},
    {"NCCL_IB_RETRY_CNT", 0, 7},
    {"NCCL_IB_TIMEOUT", 0, 31},
    {"NCCL_MAX_CTAS", 1},
    {"NCCL_MAX_NCHANNELS", 1},
    {"NCCL_MAX_P2P_NCHANNELS", 1},
    {"NCCL_MEM_SYNC_DOMAIN", 0, 1},
    {"NCCL_MIN_CTAS", 1},
    {"NCCL_MIN_NCHANNELS", 1},
    {"NCCL_MIN_P2P_NCHANNELS", 1},
    {"NCCL_MNNVL_ENABLE", 0, 2},
    {"NCCL_NTHREADS", 1, 0, "64 128 256 512"},
    {"NCCL_NVLS_ENABLE", 0, 2},
    {"NCCL_P2P_PXN_LEVEL", 0, 2},
    {"NCCL_SOCKET_NTHREADS", 1, 16},
};

// Of a whole number.
std::string out_of_limits(std::string_view name, const std::string& value) {
  const auto* const limits = std::find_if(std::begin(kLimits), std::end(kLimits),
                                          [&](const Limits& each) { return each.name == name; });
  if (limits == std::end(kLimits)) return {};
  const std::int64_t number = nccl_number_in(value);
  if (limits->least <= number && number <= limits->most) return {};
  if (is_one_of(std::to_string(number), limits->others)) return {};
  const std::string least = std::to_string(limits->least);
  if (limits->most < limits->least) return "it is none of " + std::string(limits->others);
  if (limits->most == std::numeric_limits<std::int64_t>::max()) return "it is less than " + least;
  return "it is not from " + least + " to " + std::to_string(limits->most);
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
    const std::size_t away = edit_distance(name, known);
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
    case ValueKind::number: {
      std::string why = wrong_number(value, variable.kind == ValueKind::flag);
      return why.empty() ? out_of_limits(variable.name, value) : why;
    }
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
