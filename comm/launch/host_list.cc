#include "comm/launch/host_list.h"

#include <algorithm>
#include <cstdint>

#include "comm/numbers.h"

namespace weir {
namespace {

using Names = std::vector<std::string>;

// Splits at commas that stand outside brackets. Nothing: brackets that do not match or nest.
std::optional<std::vector<std::string_view>> split_outside(std::string_view list) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[' || list[i] == ']') {
      if (inside == (list[i] == '[')) return {};
      inside = !inside;
    }
    if (list[i] == ',' && !inside) {
      parts.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (inside) return {};
  parts.push_back(list.substr(begin));
  return parts;
}

// "003-005" or "12", with the zeros in front that the first one has.
bool append_range(std::string_view range, std::size_t most, Names& to) {
  constexpr std::uint64_t kLargest = 999'999'999'999;
  const std::size_t dash = range.find('-');
  const std::string_view low_text = range.substr(0, dash);
  const std::string_view high_text =
      dash == std::string_view::npos ? low_text : range.substr(dash + 1);
  const std::optional<std::uint64_t> low = whole_number(low_text, kLargest);
  const std::optional<std::uint64_t> high = whole_number(high_text, kLargest);
  if (!low || !high || *high < *low) return false;
  for (std::uint64_t number = *low; number <= *high && to.size() < most; ++number) {
    const std::string digits = std::to_string(number);
    const std::size_t zeros = low_text.size() > digits.size() ? low_text.size() - digits.size() : 0;
    to.push_back(std::string(zeros, '0') + digits);
  }
  return true;
}

std::optional<Names> expand_brackets(std::string_view inside, std::size_t most) {
  Names numbers;
  for (;;) {
    const std::size_t comma = inside.find(',');
    if (!append_range(inside.substr(0, comma), most, numbers)) return {};
    if (comma == std::string_view::npos) return numbers;
    inside.remove_prefix(comma + 1);
  }
}

// One name, with any number of brackets.
std::optional<Names> expand_name(std::string_view name, std::size_t most) {
  Names names{""};
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    for (std::string& known : names) known += name.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = name.find(']', open);
    const std::optional<Names> numbers =
        expand_brackets(name.substr(open + 1, close - open - 1), most);
    if (!numbers) return {};
    Names longer;
    for (const std::string& known : names) {
      for (const std::string& number : *numbers) {
        if (longer.size() < most) longer.push_back(known + number);
      }
    }
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

std::optional<std::vector<std::string>> expand_hosts(std::string_view list, std::size_t most) {
  const std::optional<std::vector<std::string_view>> parts = split_outside(list);
  if (!parts) return {};
  Names hosts;
  for (const std::string_view part : *parts) {
    const std::optional<Names> names = expand_name(part, most);
    if (!names || part.empty()) return {};
    const std::size_t room = std::min(names->size(), most - std::min(most, hosts.size()));
    hosts.insert(hosts.end(), names->begin(), names->begin() + static_cast<std::ptrdiff_t>(room));
  }
  return hosts;
}

std::optional<int> tasks_on_node(std::string_view list, int node) {
  constexpr std::uint64_t kMost = 1 << 24;
  std::uint64_t nodes_before = 0;
  while (node >= 0) {
    const std::size_t comma = list.find(',');
    std::string_view part = list.substr(0, comma);
    std::uint64_t repeats = 1;
    if (const std::size_t times = part.find("(x"); times != std::string_view::npos) {
      if (!part.ends_with(')')) return {};
      const std::optional<std::uint64_t> given =
          whole_number(part.substr(times + 2, part.size() - times - 3), kMost);
      if (!given) return {};
      repeats = *given;
      part = part.substr(0, times);
    }
    const std::optional<std::uint64_t> tasks = whole_number(part, kMost);
    if (!tasks) return {};
    nodes_before += repeats;
    if (static_cast<std::uint64_t>(node) < nodes_before) return static_cast<int>(*tasks);
    if (comma == std::string_view::npos) return {};
    list.remove_prefix(comma + 1);
  }
  return {};
}

}  // namespace weir
