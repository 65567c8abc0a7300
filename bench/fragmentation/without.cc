// SPDX-License-Identifier: Apache-2.0
// The mechanisms that a program of bench/fragmentation/run --without leaves out: those whose places
// in the list WEIR_WITHOUT names, as in "0,4".
#include <cstdint>
#include <cstdlib>

#include "core/base/mechanism.h"

namespace weir {
namespace {

std::uint64_t left_out() {
  std::uint64_t all = 0;
  const char* text = std::getenv("WEIR_WITHOUT");
  for (char* end = nullptr; text != nullptr && *text != '\0'; text = *end == ',' ? end + 1 : end) {
    const auto place = std::strtoul(text, &end, 10);
    if (end == text || place >= 64) std::abort();
    all |= std::uint64_t{1} << place;
  }
  return all;
}

}  // namespace

bool without(Mechanism mechanism) {
  static const std::uint64_t all = left_out();
  return (all >> static_cast<unsigned>(mechanism) & 1) != 0;
}

}  // namespace weir
