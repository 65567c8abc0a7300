// SPDX-License-Identifier: Apache-2.0
// Quantities as people read them.
#pragma once

#include <cstdint>
#include <string>

#include "weir/types.h"

namespace weir {

// "1.50", "67.7", "512": a value of 0 to 1000 with its first three digits, two behind the point at
// most.
std::string three_digits(double value);
// "512 B", "1.50 MiB", "9.20 GiB".
std::string in_words(Bytes bytes);
// "850 ns", "67.7 ms", "2.46 s".
std::string in_words(Nanoseconds time);
// `part` over `whole`; 0 of nothing.
double ratio(Bytes part, Bytes whole);
// "257,502".
std::string with_commas(std::uint64_t number);
// "1 page", "2 pages".
std::string counted(std::uint64_t number, const char* what);

}  // namespace weir
