#include "look/report_time.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace weir {

Result<Nanoseconds> parse_time(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
  const auto wrong = [&] {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("\"{}\" is no time: write a number and s, ms, us or ns, as in 1.5s",
                             std::string(text)));
  };
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return wrong();
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, nanoseconds] : kUnits) {
    constexpr double kMost = 9e18;
    if (unit != name) continue;
    if (number * nanoseconds > kMost) return wrong();
    return Nanoseconds{std::llround(number * nanoseconds)};
  }
  return wrong();
}

}  // namespace weir
