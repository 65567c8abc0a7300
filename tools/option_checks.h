// SPDX-License-Identifier: Apache-2.0
// Options and checks of their values, for every program that reads its options with CLI11.
//
// CLI11 reads "-3" into an unsigned number as 2^64 - 3, cuts off a number that is too large, takes
// "010" for 8, and lets "nan" pass any range. These checks see the text, and CLI11 then reads the
// text that they allow. Give them to CLI::Option::transform().
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace weir {

// Allows decimal digits only: a number from `least` to `most`, which the option's type must be able
// to hold. The help shows the range.
inline CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  const auto check = [least, most, range](std::string& text) -> std::string {
    std::uint64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || rest != end || number < least || number > most) {
      return "'" + text + "' is not a whole number from " + range;
    }
    text = std::to_string(number);  // without leading zeros: CLI11 would read them as octal
    return {};
  };
  return {check, range};
}

// Likewise: any number of 64 bits, such as a seed. The help shows no range.
inline CLI::Validator any_whole_number() {
  return whole_number(0, std::numeric_limits<std::uint64_t>::max()).description("");
}

// Allows a decimal number from `least` to `most`, such as 2, 0.5 or 1e-3.
inline CLI::Validator real_number(double least, double most) {
  std::ostringstream shown;
  shown.precision(std::numeric_limits<double>::digits10);
  shown << least << " to " << most;
  const auto check = [least, most, range = shown.str()](const std::string& text) -> std::string {
    // strtod() alone would allow blanks, hexadecimal digits, "nan" and "inf".
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const bool is_decimal = !text.empty() && end == text.c_str() + text.size() &&
                            text.find_first_not_of("0123456789.eE+-") == std::string::npos;
    if (is_decimal && number >= least && number <= most) return {};
    return "'" + text + "' is not a number from " + range;
  };
  return {check, shown.str()};
}

// Refuses an empty value: usually a variable of the shell that is not set.
inline CLI::Validator not_empty() {
  const auto check = [](const std::string& text) -> std::string {
    return text.empty() ? "the value is empty: give one, or leave the option out" : "";
  };
  return {check, ""};
}

// Adds an option that takes one of the words of `choices`, and sets `target` to what the word
// stands for. The help lists the words. `check`: of the word, in the stead of CLI11's.
template <class T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& target,
                        const std::vector<std::pair<std::string, T>>& choices,
                        const std::string& help, const std::optional<CLI::Validator>& check = {}) {
  std::vector<std::string> words;
  std::string type;
  for (const auto& [word, value] : choices) {
    words.push_back(word);
    type += (type.empty() ? "" : "|") + word;
  }
  const auto choose = [&target, choices](const std::string& word) {
    for (const auto& [each, value] : choices) {
      if (each == word) target = value;
    }
  };
  return app.add_option_function<std::string>(name, choose, help)
      ->check(check ? *check : CLI::Validator(CLI::IsMember(words)))
      ->type_name(type);
}

}  // namespace weir
