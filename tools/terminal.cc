// SPDX-License-Identifier: Apache-2.0
#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

namespace weir {
namespace {

constexpr std::size_t kMostColumns = 1000;

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool shows_colours(int descriptor) {
  return variable("NO_COLOR").empty() && variable("TERM") != "dumb" && ::isatty(descriptor) == 1;
}

}  // namespace

std::optional<std::size_t> columns_of(int descriptor) {
  const std::string_view text = variable("COLUMNS");
  std::size_t columns = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  const bool whole = error == std::errc{} && rest == text.data() + text.size();
  if (whole && columns > 0 && columns <= kMostColumns) return columns;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return std::nullopt;
}

std::string as_trouble(const std::string& text, int descriptor) {
  return shows_colours(descriptor) ? "\x1b[1;31m" + text + "\x1b[0m" : text;
}

}  // namespace weir
